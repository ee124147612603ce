"""`rover members`: how a member ended, as its job and its host tell it."""

from pathlib import Path

from rover_bus.cli.commands.members import list_members
from rover_bus.cli.connection import Address
from rover_bus.cli.home import Home
from rover_bus.cli.views.elsewhere import find_elsewhere
from rover_bus.events.facts import Fact, MemberLost, MembersDisplaced
from rover_bus.events.host_facts import HostExited, HostStarted
from rover_bus.events.identity import DesiredMember, Exit, Member, Process
from rover_bus.node.local.layout import ExitRecord, OrderRecord, StateDirectory


def stack_with_ends(root: Path) -> Address:
    """Two workers that were asked to leave; both did."""
    home = Home(root)
    for index in range(2):
        member = Member("worker", index, 1)
        life = StateDirectory(home.node).incarnation("demo", "u1", member)
        life.path.mkdir(parents=True)
        desired = DesiredMember(member=member, host="h", command=["true"])
        life.write("order", OrderRecord(job="demo", uid="u1", desired=desired, cpus={}))
        life.write("exit", ExitRecord(reason="drained", status=0, detail="asked to leave"))
    return Address("", None, home)


def test_who_left_because_its_work_was_done_is_not_called_drained(tmp_path: Path) -> None:
    rows = list_members(stack_with_ends(tmp_path), "demo", "", everyone=True, done=frozenset({"worker-0.1"}))
    assert {(row["index"], row["exit"]) for row in rows} == {(0, "done"), (1, "drained")}


def started(role: str, index: int, host: str, job: str = "demo", incarnation: int = 1) -> HostStarted:
    member = Member(role, index, incarnation)
    return HostStarted(host=host, job=job, process=Process(member=member, pid=100 + index, host=host))


def test_who_runs_on_other_hosts_is_told_until_it_ended_was_lost_or_its_host_was_given_up() -> None:
    facts: list[Fact] = [
        started("master", 0, "a"),
        started("master", 1, "b"),
        started("ps", 0, "b"),
        started("worker", 0, "c"),
        started("worker", 1, "c"),
        started("worker", 2, "c", job="other"),
    ]

    def told(*more: Fact) -> list[str]:
        rows = find_elsewhere("demo", [*facts, *more], {"master-0.1"}, leader="master-1.1")
        assert [row["role"] for row in rows if row["leads"]] in ([], ["master"])
        return [
            f"{row['role']}-{row['index']}.{row['incarnation']} {row['host']} {row['pid']}" for row in rows
        ]

    everybody = ["master-1.1 b 101", "ps-0.1 b 100", "worker-0.1 c 100", "worker-1.1 c 101"]
    assert told() == everybody
    gone = HostExited(host="c", job="demo", member=Member("worker", 1, 1), exit=Exit(reason="killed"))
    assert told(gone) == everybody[:3]
    assert told(gone, started("worker", 1, "b", incarnation=2))[3:] == ["worker-1.2 b 101"]
    assert told(MemberLost(job="demo", member=Member("worker", 0, 1), reason="silent")) == [
        *everybody[:2],
        everybody[3],
    ]
    assert told(MembersDisplaced(job="demo", host="b", members=[])) == everybody[2:]
