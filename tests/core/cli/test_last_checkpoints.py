"""What becomes of each job before a stack goes down, by the facts that its master says."""

from __future__ import annotations

import pytest

from rover_bus.cli.last_checkpoints import Keeping
from rover_bus.events import checkpoint_facts as cuts
from rover_bus.events.facts import JobSubmitted, MembersDesired
from rover_bus.events.job import DataSpec, JobSpec, RoleSpec


@pytest.mark.parametrize(
    ("servers", "samples", "kept", "why"),
    [
        (1, 0, True, ""),
        (1, 64, False, "it computes its result, and has not ended within 30 s"),
        (0, 0, True, ""),
        (
            0,
            64,
            False,
            "it has no servers: its model is the program's own, and what that has not stored is lost",
        ),
    ],
)
def test_a_job_whose_master_takes_no_checkpoint_is_told_apart_by_what_it_has(
    servers: int, samples: int, kept: bool, why: str
) -> None:
    spec = JobSpec(name="j", program=["x"], data=DataSpec(train="t"), servers=RoleSpec(max_count=servers))
    each = Keeping("j")
    each.take(JobSubmitted(job="j", uid="0" * 12, spec=spec))
    each.take(MembersDesired(job="j", term=1, plan=1, members=[]))
    each.asked = True
    each.take(cuts.CheckpointDeclined(job="j", reason="x", samples=samples))
    assert each.kept == kept
    assert each.open == (bool(why) and servers > 0), "what will never come is not waited for"
    if each.open:
        each.give_up(30.0)
    assert each.why == why
