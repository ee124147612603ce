"""A program without a model: gated.py says how long it sleeps before each batch. Twice the workers are twice as fast."""

from __future__ import annotations

import sys

import rover_bus.client as rover


def main() -> None:
    with rover.join() as job:
        log = rover.open_log(job.data.train, rover.Schema.parse(job.data.schema))
        for _ in job.batches(log):
            pass


if __name__ == "__main__":
    sys.exit(main())
