"""What a member says when it joins stands in the fact of its admission."""

from __future__ import annotations

import pytest

from rover_bus.events.facts import JobSubmitted, MemberAdmitted, PlanProposed
from rover_bus.events.identity import Member, Role
from rover_bus.events.inputs import Observed, Requested, TookOver
from rover_bus.events.job import DataSpec, JobSpec
from rover_bus.events.requests import JoinRequest
from rover_bus.master.decider import MasterDecider


@pytest.mark.parametrize("role", ["worker", "ps"])
@pytest.mark.parametrize("held", [True, False, None])
def test_whether_a_member_is_held_to_its_cores_is_logged(role: Role, held: bool | None) -> None:
    master = MasterDecider("j")
    spec = JobSpec(name="j", program=["true"], data=DataSpec(train="x", batch_size=10))
    master.decide(TookOver("m", 1), 0.0)
    master.decide(Observed(JobSubmitted(job="j", spec=spec, uid="0123456789ab"), "F:1"), 0.0)
    master.decide(Observed(PlanProposed(job="j", plan=1, workers=1, servers=1, hosts=["h"]), "F:2"), 0.0)
    join = JoinRequest(member=Member(role, 0, 1), nonce="n", host="h", cores_held=held)
    records, *_ = master.decide(Requested(join), 0.0)
    [admitted] = [each for each in records if isinstance(each, MemberAdmitted)]
    assert admitted.cores_held is held
