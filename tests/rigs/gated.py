"""A training program that ends when a test says so: until a file exists, its last batch waits for it.

    python gated.py GATE PACE_S PROGRAM

Runs PROGRAM (the example's train.py, counting.py) with one difference. While the file GATE is missing, every batch takes PACE_S
longer and the last batch of the last epoch waits. So a job under test is busy for as long as its test needs it, on a slow machine
and on a fast one, and runs at full speed to its end once the test opens the gate. `Gate` is what a test holds.
"""

from __future__ import annotations

import runpy
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import rover_bus.client as rover
from rover_bus.client.programs import find_example

LOOK_S = 0.05
PACE_S = 0.03


@dataclass(frozen=True)
class Gate:
    """What holds a job open. `pace_s`: what every batch takes longer until then, so that there is always something to disturb."""

    path: Path
    pace_s: float = PACE_S

    def open(self) -> None:
        """Let the job run to its end."""
        self.path.touch()

    def program(self, program: str | Path = "") -> str:
        """Return the `program` of a job file: this one around another, the example's `dlrm` unless told otherwise."""
        inner = program or find_example("dlrm/train.py")
        words = [sys.executable, __file__, self.path, self.pace_s, inner]
        return "[" + ", ".join(f'"{word}"' for word in words) + "]"

    def let_pass(self, job, last):
        """Wait before a batch; False when its worker is asked to leave meanwhile."""
        until_s = time.monotonic() + self.pace_s
        while not self.path.exists():
            left_s = until_s - time.monotonic()
            if job.drained:
                return False
            if left_s <= 0 and not last:
                break
            time.sleep(min(LOOK_S, left_s) if left_s > 0 else LOOK_S)
        return True

    def hold(self, batches):
        """Return `Job.batches` with this gate before every batch. A batch that is not let pass goes back with its lease."""

        def held(job, source, **more):
            size, epochs = job.data.batch_size, job.data.epochs
            final = (epochs - 1, source.dataset(size).batches - 1)
            for batch in batches(job, source, **more):
                if not self.let_pass(job, (batch.epoch, batch.number) == final):
                    return
                yield batch

        return held


def main() -> None:
    path, pace_s, program = sys.argv[1:]
    gate = Gate(Path(path), float(pace_s))
    rover.Job.batches = gate.hold(rover.Job.batches)
    sys.path[0] = str(Path(program).parent)
    sys.argv = [program]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
