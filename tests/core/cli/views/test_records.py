"""A fact as programs read it: in one form, whatever the format that it was written in."""

from __future__ import annotations

import pytest

from rover_bus.cli.views.history import Happened
from rover_bus.cli.views.records import event_record
from rover_bus.events.bus import Stored
from rover_bus.events.codec import encode
from rover_bus.events.facts import MembersDesired
from rover_bus.events.identity import DesiredMember, Member, Resources
from rover_bus.events.later_forms import as_written
from rover_bus.events.subjects import job_fact


@pytest.mark.parametrize("written", [1, 2])
def test_members_that_are_desired_are_shown_one_by_one_in_any_format(written: int) -> None:
    wanted = DesiredMember(
        member=Member("worker", 3, 2), host="h", command=["train"], resources=Resources(cores=2.0)
    )
    fact = MembersDesired(job="j", term=1, plan=4, members=[wanted])
    body = encode(as_written(fact, written))
    stored = Stored(9, job_fact("j", "members.desired"), body, {}, 0)
    shown = event_record(Happened(stored, fact))["body"]
    assert shown["type"] == "members.desired.v1"
    [member] = shown["members"]
    assert (member["member"]["index"], member["member"]["incarnation"], member["host"]) == (3, 2, "h")
    assert member["command"] == ["train"]
