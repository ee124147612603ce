"""What a release writes, recorded once: `python tests/upgrade/record.py WHEEL` fills the folder in which its wheel lies.

    <release>/rover_bus-<release>-py3-none-any.whl    the release, for mixes (test_mixes.py)
    <release>/events/                                 one of each event, encoded by it
    <release>/backup/, stored/                        `rover backup` of a stack on which a job ended, and that job's checkpoints

The release runs in an environment of its own below /tmp, so that no path of the recording machine is in what it writes. A folder
that is there is never written over: what a release wrote is what it wrote.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

JOB = """
name = "ads"
program = "dlrm"
[data]
train = "train.tsv"
evaluate = "eval.tsv"
batch_size = 64
epochs = 2
schema = { format = "criteo" }
[workers]
count = 2
[servers]
count = 2
[checkpoint]
every = "1s"
keep = 1
path = "stored"
"""


def record(wheel: Path) -> None:
    """Run the release and keep what it writes beside its wheel."""
    release = wheel.name.split("-")[1]
    place = Path(f"/tmp/rover-{release}")  # its name is in what is recorded
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
    python, rover = place / "venv/bin/python", place / "venv/bin/rover"
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"{wheel}[broker,speed]"], check=True)
    subprocess.run(
        [python, "-m", "rover_bus.cli.schemas", "--corpus", wheel.parent / "events"], cwd=place, check=True
    )
    (place / "job.toml").write_text(JOB)
    clicks = "import rover_bus._examples.clicks as clicks; clicks.main()"
    sizes = ["--rows", "2000", "--eval-rows", "100", "--seed", "3"]
    subprocess.run([python, "-c", clicks, "train.tsv", "eval.tsv", *sizes], cwd=place, check=True)
    with subprocess.Popen([rover, "up", "--dir", "state"], cwd=place) as up:
        try:
            until_it_answers([rover, "jobs", "--dir", "state"], place)
            subprocess.run([rover, "submit", "job.toml", "--wait", "--dir", "state"], cwd=place, check=True)
            subprocess.run(
                [rover, "backup", wheel.parent / "backup", "--dir", "state"], cwd=place, check=True
            )
        finally:
            up.terminate()
    shutil.copytree(place / "stored", wheel.parent / "stored")
    shutil.rmtree(place)


def until_it_answers(command: list[str | Path], place: Path) -> None:
    """Wait for the stack."""
    for _ in range(120):
        if subprocess.run(command, cwd=place, capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.5)
    raise SystemExit("the stack does not come up")


if __name__ == "__main__":
    record(Path(sys.argv[1]).resolve())
