"""A program without a model whose workers sleep one at a time: two of them are as fast as one."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path

import rover_bus.client as rover

TURN_S = 0.1
# For another worker to begin its turn: one that asks again at once is often first, and the others say nothing for whole windows.
LEAVES_S = 0.002


def main() -> None:
    with rover.join() as job:
        log = rover.open_log(job.data.train, rover.Schema.parse(job.data.schema))
        turns = Path(job.data.train).with_name(f"{os.environ['ROVER_JOB']}.turn")
        for _ in job.batches(log):
            with turns.open("w") as turn:
                fcntl.flock(turn, fcntl.LOCK_EX)
                time.sleep(TURN_S)
            time.sleep(LEAVES_S)


if __name__ == "__main__":
    sys.exit(main())
