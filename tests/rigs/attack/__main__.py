"""Many histories, several at once, and what was struck in all of them: `make attack SEEDS=A..B`.

    python -m attack A..B [--at-once N]     each seed in a process and on stacks of its own; exit 1 where something was found
    python -m attack SEED --in FOLDER       one history; its outcome goes to FOLDER/outcome.json

A history mostly waits for the moments of its blows, so that two or three share a machine of two cores. Of a seed with a finding
the folder stays, with all that its hosts left.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from attack.blows import describe
from attack.drawing import History, draw
from attack.play import play

LONGEST_S = 900.0
AT_ONCE = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="attack")
    parser.add_argument("seeds")
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    parser.add_argument("--in", dest="folder", type=Path)
    given = parser.parse_args()
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # whatever ends it, nothing that it started stays
    first, _, last = given.seeds.partition("..")
    if given.folder:
        return _one(int(first), given.folder)
    return _all(range(int(first), int(last or first) + 1), given.at_once)


def _one(seed: int, folder: Path) -> int:
    history = draw(seed)
    print(f"seed {seed}: {history.hosts} hosts, memory {history.memory_mib} MiB, disk {history.disk_mib} MiB")
    print("\n".join(map(str, history.jobs)))
    print("\n".join(describe(history.blows)))
    outcome = play(history, folder)
    print("\n".join(["done:", *outcome.done, str(outcome.ends), *outcome.wrong]))
    (folder / "outcome.json").write_text(json.dumps(asdict(outcome)))
    return bool(outcome.wrong)


def _all(seeds: range, at_once: int) -> int:
    """Play seeds, and say what was struck and found; Ctrl-C ends those that are played, begins no other, and says as much."""
    began_s, struck, found, done = time.monotonic(), Counter[str](), [], 0
    playing: set[subprocess.Popen[bytes]] = set()
    with ThreadPoolExecutor(at_once) as pool:
        try:
            for running in as_completed([pool.submit(_apart, seed, playing) for seed in seeds]):
                seed, code, counts = running.result()
                struck.update(counts)
                found += [seed] if code else []
                done += 1
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(playing):
                process.send_signal(signal.SIGINT)  # what it started ends with it
    took_s = time.monotonic() - began_s
    print(f"{done} of {len(seeds)} histories in {took_s:.0f} s, {took_s / max(done, 1):.1f} s a history")
    print("struck: " + ", ".join(f"{act} {count}" for act, count in sorted(struck.items())))
    print(f"found something: seeds {found}" if found else "found nothing")
    return bool(found) or done < len(seeds)


def _apart(seed: int, playing: set[subprocess.Popen[bytes]]) -> tuple[int, int, Counter[str]]:
    """Play a seed in a process of its own, which is in `playing` meanwhile."""
    folder, began_s = Path(tempfile.mkdtemp(prefix=f"rover-attack-{seed}-")), time.monotonic()
    command = [sys.executable, "-m", "attack", str(seed), "--in", str(folder)]
    with (folder / "attack.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ)
        playing.add(process)
        try:
            code = process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # what it started ends with it
            code = process.wait() or 1
        finally:
            playing.discard(process)
    print(
        f"seed {seed}: {'found something' if code else 'holds'}, {time.monotonic() - began_s:.0f} s",
        flush=True,
    )
    if code:
        print((folder / "attack.log").read_text(errors="replace"), f"all that is left: {folder}", flush=True)
        return seed, code, Counter()
    counts = Counter(json.loads((folder / "outcome.json").read_text())["struck"]) + _shape(draw(seed))
    shutil.rmtree(folder)
    return seed, code, counts


def _shape(history: History) -> Counter[str]:
    shape = Counter({"histories": 1, f"of {len(history.jobs)} jobs": 1, f"of {history.hosts} hosts": 1})
    shape["with a small memory"] = bool(history.memory_mib)
    shape["with a small disk"] = bool(history.disk_mib)
    return shape


if __name__ == "__main__":
    sys.exit(main())
