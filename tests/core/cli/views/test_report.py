"""What is counted from outside: masters are not in the job's own log."""

from __future__ import annotations

from rover_bus.cli.views.history import Happened
from rover_bus.cli.views.report import Tally
from rover_bus.events.bus import Stored
from rover_bus.events.facts import Fact, MembersDisplaced, PlanProposed


def _happened(fact: Fact, sequence: int) -> Happened:
    return Happened(Stored(sequence, "rover.job.j.fact", b"", time_ms=1000 * sequence), fact)


def _counted(reason: str) -> int:
    tally = Tally()
    plan = PlanProposed(job="j", plan=1, workers=1, servers=1, masters=["a", "b"])
    for sequence, fact in enumerate([plan, MembersDisplaced(job="j", host="b", reason=reason)], 1):
        tally.observe(_happened(fact, sequence))
    return tally.masters_lost


def test_a_master_on_a_lost_host_is_counted_though_nobody_is_left_there_to_report_its_end() -> None:
    assert _counted("silent") == 1


def test_masters_of_a_host_that_left_in_order_are_not_lost() -> None:
    assert _counted("left") == 0
    assert _counted("leaving") == 0
