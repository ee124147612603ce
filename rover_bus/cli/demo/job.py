"""What `rover demo` trains: made-up clicks and the job file of examples/jobs/demo.toml, prepared as a user would.

Fed by a seed and a directory; feeds demonstration.py, and bench/unmanaged.py, which must run the very same job.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from rover_bus.client.job_file import check_data, read_job
from rover_bus.client.programs import find_example
from rover_bus.events.errors import InputError
from rover_bus.events.job import JobSpec

ROWS, EVAL_ROWS = 48_000, 12_000
SERVERS_ROWS, SERVERS_EVAL_ROWS = 24_000, 4_000
USER_WORKERS = 1  # what the demo's user would have asked for: the wrong configuration of the story


def make_clicks(root: Path, seed: int, rows: int = ROWS, evaluated: int = EVAL_ROWS) -> None:
    """Write the demo's click logs into a directory. Raises InputError."""
    made = subprocess.run(
        [
            *(sys.executable, str(find_example("clicks.py")), "clicks_train.tsv", "clicks_eval.tsv"),
            *("--rows", str(rows), "--eval-rows", str(evaluated), "--seed", str(seed)),
        ],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise InputError(f"the demo's data could not be made: {made.stderr.strip()[-500:]}")


def prepare_job(root: Path, seed: int) -> tuple[JobSpec, dict[str, int]]:
    """Make the data and read the job file; return the job and the rows of `train` and `evaluate`."""
    make_clicks(root, seed)
    return _take(root, "demo.toml", seed)


def prepare_servers_job(root: Path, seed: int) -> tuple[JobSpec, dict[str, int]]:
    """The same for the act of the servers: examples/jobs/servers.toml."""
    make_clicks(root, seed, SERVERS_ROWS, SERVERS_EVAL_ROWS)
    return _take(root, "servers.toml", seed)


def _take(root: Path, example: str, seed: int) -> tuple[JobSpec, dict[str, int]]:
    job_file = root / example
    shutil.copyfile(find_example(f"jobs/{example}"), job_file)
    spec = read_job(job_file, seed=seed)
    return spec, check_data(spec)


def as_the_user_asked(spec: JobSpec) -> JobSpec:
    """Return the same job with the user's own number of workers: what runs without a Brain."""
    return spec.replace(workers=spec.workers.replace(count=USER_WORKERS))
