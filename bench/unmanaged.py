"""The off column of the demo's verdict: the demo's job without a control plane, with the same seed and the same kills.

    python -m bench.unmanaged [--seeds 1 2 3] [--story] [--record] [--json]

Some minutes a seed, nearly all of it waiting for storage: one worker as the user asked, a share that is fixed, a supervisor that
starts it again. `--record` writes the runs to where the demo finds them; `--story`: with the kills of the narrated demo.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from pathlib import Path

from rover_bus.cli.demo.chaos import draw_strikes, story_strikes
from rover_bus.cli.demo.job import as_the_user_asked, prepare_job
from rover_bus.cli.demo.unmanaged import Unmanaged
from rover_bus.cli.demo.unmanaged_runs import key_of, record


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--story", action="store_true", help="the narrated demo's kills")
    parser.add_argument("--record", action="store_true", help="write the runs to where the demo finds them")
    parser.add_argument("--json", action="store_true", help="print the result as one last JSON line")
    arguments = parser.parse_args()
    machine = f"{os.cpu_count()} cores, {platform.machine()}"
    runs = []
    print("seed    time s      lost     twice     AUC   killed")
    for seed in arguments.seeds:
        strikes = story_strikes(seed) if arguments.story else draw_strikes(seed, "all")
        with tempfile.TemporaryDirectory(prefix="rover-unmanaged-") as root:
            spec, rows = prepare_job(Path(root), seed)
            spec = as_the_user_asked(spec)
            figures = Unmanaged(spec, strikes, Path(root, "off"), lambda _: None).run()
        if arguments.record:
            record(key_of(spec, strikes, rows["train"]), figures, machine)
        runs.append({"seed": seed, **figures})
        print(
            f"{seed:4} {figures['wall_seconds']:9.1f} {figures['samples_lost']:9,} {figures['samples_duplicated']:9,}"
            f" {figures['auc']:7.4f} {figures['workers_lost']:8}",
            flush=True,
        )
    if arguments.json:
        print(json.dumps({"bench": "unmanaged", "machine": machine, "runs": runs}))


if __name__ == "__main__":
    main()
