"""`rover members`: how a member ended, as its job and its host tell it."""

from pathlib import Path

from rover_bus.cli.commands.members import list_members
from rover_bus.cli.connection import Address
from rover_bus.cli.home import Home
from rover_bus.events.identity import DesiredMember, Member
from rover_bus.node.layout import Ended, Layout, Order


def stack_with_ends(root: Path) -> Address:
    """Two workers that were asked to leave; both did."""
    home = Home(root)
    for index in range(2):
        member = Member("worker", index, 1)
        life = Layout(home.node).life("demo", "u1", member)
        life.path.mkdir(parents=True)
        desired = DesiredMember(member=member, host="h", command=["true"])
        life.write("order", Order(job="demo", uid="u1", desired=desired, cpus={}))
        life.write("exit", Ended(reason="drained", status=0, detail="asked to leave"))
    return Address("", None, home)


def test_who_left_because_its_work_was_done_is_not_called_drained(tmp_path: Path) -> None:
    rows = list_members(stack_with_ends(tmp_path), "demo", "", everyone=True, done=frozenset({"worker-0.1"}))
    assert {(row["index"], row["exit"]) for row in rows} == {(0, "done"), (1, "drained")}
