"""Every fact that a real stack stores says what led to it, the daemon's, the Brain's and the masters' (design 2.4)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from outside import living
from small_job import SmallJob
from walked import of_stopped_stack

from rover_bus.cli.stack import RunningStack


def test_the_story_of_every_fact_of_a_job_that_was_struck_reaches_its_submission(tmp_path: Path) -> None:
    with RunningStack(tmp_path / "state", disposable=True) as stack:
        job = SmallJob(
            folder=tmp_path,
            home=stack.home.root,
            rows=640,
            epochs=1,
            workers=1,
            servers=1,
            checkpoint=f'path = "{tmp_path / "stored"}"',
        )
        job.submit()
        job.until(lambda: job.facts("epoch.opened"), "a job that trains")
        [worker] = living(job.home, job.name, "worker")
        os.kill(worker["pid"], signal.SIGKILL)
        job.until(lambda: job.facts("member.lost"), "the loss")
        job.complete()
    assert of_stopped_stack(stack.home) == []
