"""Nodes whose members say whether cores bind: before the first does they are no axis, then they are, until one says the contrary.

Each input goes through the Brain's log into a twin, so that what is believed is what replay believes (life_of_jobs.py).
"""

from __future__ import annotations

import pytest
from life_of_jobs import GIB, Life

from rover_bus.brain.state import BrainState
from rover_bus.events import host_facts
from rover_bus.events.identity import CoresSeen, HostCapacity

NODE = HostCapacity(cores=8.0, memory_bytes=8 * GIB)


class Nodes:
    """A Brain that hears what operators register, with one job that was there before them all."""

    def __init__(self) -> None:
        self.life = Life(cores=16.0)
        self.life.notice(host_facts.HostLeft(host="h"))  # the one that each life begins with
        self.register("n1")
        self.life.submit("j", lambda workers: 1000.0 * workers, workers=2, cores=1.0, max_cores=8.0)

    @property
    def state(self) -> BrainState:
        return self.life.brain.state

    def register(self, *hosts: str, held: bool | None = None, seen: CoresSeen = "members") -> None:
        """These nodes come, or are registered again; held: the word of the members there, None: there was none."""
        for host in hosts:
            capacity = NODE.replace(cores_bind=bool(held), cores_seen="none" if held is None else seen)
            self.life.notice(host_facts.HostRegistered(host=host, daemon="d", capacity=capacity))

    def leave(self, host: str) -> None:
        self.life.notice(host_facts.HostLeft(host=host))

    @property
    def axis(self) -> bool:
        """Whether the Brain chooses cores: for the job that is there, and for one that comes."""
        assert self.state.jobs["j"].cores_bind == self.state.cores_bind
        return self.state.cores_bind


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def test_before_a_member_has_spoken_cores_are_no_axis_and_from_the_first_that_is_held_on_they_are(
    nodes: Nodes,
) -> None:
    nodes.register("n2", "n3")
    assert not nodes.axis
    nodes.register("n2", held=True)
    assert nodes.axis, "the silent ones are taken to be like it"


def test_one_node_that_sets_no_limit_takes_the_axis_away_while_it_is_there(nodes: Nodes) -> None:
    nodes.register("n2", held=True)
    nodes.register("n3", held=False)
    assert not nodes.axis
    nodes.leave("n3")
    assert nodes.axis
    nodes.register("n3")
    assert nodes.axis, "it comes again, and of the cluster that is there members are held"
    nodes.register("n3", held=False)
    nodes.register("n3", held=True)
    assert nodes.axis, "its last word counts"


def test_nodes_that_come_and_go_change_nothing(nodes: Nodes) -> None:
    nodes.register("n1", held=True)
    for number in range(2, 6):
        nodes.register(f"n{number}")
        assert nodes.axis
        nodes.leave(f"n{number - 1}")
        assert nodes.axis, "also when none of those is left that spoke"


def test_an_operator_that_begins_again_changes_nothing(nodes: Nodes) -> None:
    nodes.register("n2")
    nodes.register("n1", held=True)
    nodes.register("n2", held=False)
    nodes.register("n1", "n2")
    assert (nodes.axis, nodes.state.hosts["n1"].cores_bind) == (False, True)
    assert nodes.state.hosts["n1"].cores_seen == "members"
    records = len(nodes.life.log)
    nodes.register("n1", "n2")
    assert len(nodes.life.log) == records, "the same once more is no news"
    nodes.register("n2", held=True)
    nodes.register("n1", "n2")
    assert nodes.axis


def test_what_an_operator_of_0_3_0_promised_is_not_believed_of_its_successor(nodes: Nodes) -> None:
    nodes.register("n1", held=True, seen="host")
    assert nodes.axis
    nodes.register("n1")
    assert not nodes.axis


def test_a_daemon_that_tried_its_host_says_nothing_of_nodes(nodes: Nodes) -> None:
    nodes.register("local", held=True, seen="host")
    assert not nodes.axis
    nodes.register("n1", held=True)
    assert nodes.axis
    nodes.register("local", held=False, seen="host")
    assert not nodes.axis


def test_where_only_nodes_without_a_limit_have_spoken_the_others_are_like_them(nodes: Nodes) -> None:
    nodes.register("n2", held=True)
    nodes.register("n2", held=False)
    nodes.leave("n2")
    assert not nodes.axis, "n1 never spoke"
