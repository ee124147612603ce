"""`checkpoint.redundant` is published once, when the parts cover every slot and each has a copy: never for half a cut (P13)."""

from __future__ import annotations

import pytest

from rover_bus.events.checkpoint_facts import (
    CheckpointOpened,
    CheckpointRedundant,
    HostManifestWritten,
    HostPartMirrored,
    HostPartPersisted,
)
from rover_bus.events.checkpoints import PartReport
from rover_bus.events.job import CheckpointSpec
from rover_bus.events.requests import HeartbeatRequest

HALF = [(0, 2048)], [(2048, 4096)]


@pytest.fixture
def it(desk):
    """A job of two servers whose first cut is open."""
    it = desk(servers=2, records=100, checkpoint=CheckpointSpec(every_s=1.0, copies=1))
    reply = it.lease(0, 1, servers=(1, 1))
    it.beat(0, 1, [(reply.tokens[0], reply.firsts[0] + reply.counts[0])], servers=(1, 1))
    it.tick(0.5)
    assert len(it.records(CheckpointOpened)) == 1
    return it


def stage(it, index):
    report = PartReport(cut=1, identity=it.state.cuts.known[1].identity, slots=HALF[index])
    it.ask(HeartbeatRequest(**it.who(index, "ps"), staged=report))


def copy(it, index, holder="other"):
    it.notice(
        HostPartMirrored(
            host=holder, job="j", uid=it.state.job.uid, cut=1, generation=0, part=f"ps-{index}", of="h"
        )
    )


def store(it):
    named = {"host": "h", "job": "j", "uid": it.state.job.uid, "cut": 1, "generation": 0}
    for part in ("ps-0", "ps-1"):
        it.notice(HostPartPersisted(**named, part=part, files=[]))
    it.notice(HostManifestWritten(**named, part="", path="p"))
    assert it.state.cuts.known[1].state == "ready"


@pytest.mark.parametrize(
    ("events", "published"),
    [
        ("s0 c0 s1 c1", [0, 0, 0, 1]),
        ("s0 c0 c1 s1", [0, 0, 0, 1]),
        ("s0 s1 c1 c0", [0, 0, 0, 1]),
        ("s0 s1 c0 a0 c1 a1 a0", [0, 0, 0, 0, 1, 1, 1]),
        ("s0 c0 s1 a0", [0, 0, 0, 0]),
        ("s0 s1 r c0 c1", [0, 0, 0, 0, 1]),
        ("s0 s1 c0 r c1 a1", [0, 0, 0, 0, 1, 1]),
    ],
)
def test_redundant_is_published_once_and_for_the_whole(it, events, published):
    """s: staged, c: copied to another host, a: to a third one, r: all is stored and ready; counted after each."""
    counts = []
    for event in events.split():
        kind, index = event[0], int(event[1:] or 0)
        if kind == "s":
            stage(it, index)
        elif kind == "r":
            store(it)
        else:
            copy(it, index, "other" if kind == "c" else "third")
        counts.append(len(it.records(CheckpointRedundant)))
    assert counts == published
