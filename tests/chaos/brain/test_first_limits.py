"""Members whose first memory limit is smaller than what a process needs to start: they get larger ones, and the job trains.

They died a hundred times, two of them a second, and their job with them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from small_job import SmallJob

from rover_bus.cli.stack import Here, RunningStack

pytestmark = [pytest.mark.chaos, pytest.mark.broker, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("role", "reason"), [("worker", "oom_larger_worker"), ("server", "oom_larger_server")]
)
def test_a_limit_that_no_process_can_start_with_is_raised(tmp_path: Path, role: str, reason: str) -> None:
    lines = {f"{role}_lines": 'memory = "16MiB"'}
    with RunningStack(tmp_path / "home", here=Here("h1"), disposable=True) as stack:
        job = SmallJob(
            folder=tmp_path,
            home=stack.home.root,
            rows=4_000,
            epochs=1,
            workers=1,
            servers=1,
            checkpoint="",
            **lines,  # type: ignore[arg-type]
        )
        job.submit()
        job.complete()
        raised = [plan for plan in job.facts("plan.proposed") if plan["constant"] == reason]
        assert raised
        killed = [each for each in job.facts("member.lost") if each["reason"] == "out_of_memory"]
        assert 1 <= len(killed) <= 30
