"""counting.py, but batches pass one at a time over all workers of the job: a second worker brings nothing."""

from __future__ import annotations

import fcntl
import time

import counting

import rover_bus.client as rover

BATCH_S = 0.1


def one_at_a_time(batches):
    """Return `Job.batches`, each batch behind a lock that all workers share: the data file's own."""

    def held(job, source, **more):
        with open(job.data.train) as lock:
            for batch in batches(job, source, **more):
                fcntl.flock(lock, fcntl.LOCK_EX)
                time.sleep(BATCH_S)
                fcntl.flock(lock, fcntl.LOCK_UN)
                yield batch

    return held


if __name__ == "__main__":
    rover.Job.batches = one_at_a_time(rover.Job.batches)
    counting.main()
