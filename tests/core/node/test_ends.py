"""What a daemon finds ended as it begins, named by what is desired."""

import pytest

from rover_bus.events.identity import DesiredMember, Exit, Member
from rover_bus.node.ends import UNSEEN, FoundEnds
from rover_bus.node.members import DesiredJob, HostMembers
from rover_bus.node.port import Exited

RUN, READ = "0000000000a1", (1, 1, 0, 0)
WORKER, MASTER = Member("worker", 0, 1), Member("master", 0, 1)
DESIRED = DesiredMember(member=WORKER, host="here", command=["x"])
NEXT = DesiredMember(member=Member("worker", 0, 2), host="here", command=["x"])

JOBS: dict[str, tuple[DesiredJob, Member, str]] = {
    "it is desired no more": (DesiredJob(RUN, READ), WORKER, "drained"),
    "its successor is desired": (DesiredJob(RUN, READ, {"worker-0": NEXT}), WORKER, "drained"),
    "it is desired": (DesiredJob(RUN, READ, {"worker-0": DESIRED}), WORKER, "completed"),
    "its successor is on its way": (
        DesiredJob(RUN, READ, {"worker-0": NEXT}, {"worker-0": DESIRED}),
        WORKER,
        "completed",
    ),
    "its job ended": (DesiredJob(RUN, READ, ended=True), WORKER, "completed"),
    "what is desired was never said": (DesiredJob(RUN), WORKER, "completed"),
    "another run's members were": (DesiredJob("0000000000b2", READ), WORKER, "completed"),
    "it is a master": (DesiredJob(RUN, READ), MASTER, "completed"),
}


@pytest.mark.parametrize("what", JOBS)
def test_an_end_in_order_waits_for_what_is_desired(what: str) -> None:
    job, member, reason = JOBS[what]
    reported = list[Exited]()
    found = FoundEnds(reported.append)
    ended = Exited("ads", RUN, member, Exit(reason="completed", status=0), 3.0, 9.0)
    found.take(ended)
    assert reported == []
    found.read(HostMembers("here", jobs={"ads": job}))
    assert [(each.exit.reason, each.exit.status, each.ran_s) for each in reported] == [(reason, 0, 3.0)]
    assert (reported[0].exit.detail == UNSEEN) == (reason == "drained")
    found.take(ended)
    assert reported[1:] == [ended], "from then on its platform sees whom it asks to leave"


@pytest.mark.parametrize("reason", ["failed", "killed", "drained"])
def test_any_other_end_is_reported_at_once_and_as_it_is(reason: str) -> None:
    reported = list[Exited]()
    ended = Exited("ads", RUN, WORKER, Exit(reason=reason), 3.0, 9.0)  # type: ignore[arg-type]
    FoundEnds(reported.append).take(ended)
    assert reported == [ended]


def test_what_a_former_daemon_published_is_not_published_again() -> None:
    reported = list[Exited]()
    found = FoundEnds(reported.append)
    found.take(Exited("ads", RUN, WORKER, Exit(reason="completed"), 3.0, 9.0, reported=True))
    found.take(Exited("ads", RUN, WORKER, Exit(reason="killed"), 3.0, 9.0, reported=True))
    found.read(HostMembers("here", jobs={"ads": DesiredJob(RUN, READ)}))
    assert reported == []
