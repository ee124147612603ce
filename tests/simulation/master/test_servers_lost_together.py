"""S19: servers that are lost together are known to be lost before anything is decided: one rewind, not one for each."""

from __future__ import annotations

import asyncio

import pytest

from rover_bus.events.checkpoint_facts import CheckpointOpened, HostPartMirrored
from rover_bus.events.checkpoints import PartReport
from rover_bus.events.facts import MemberLost, MembersDisplaced
from rover_bus.events.job import CheckpointSpec
from rover_bus.events.log import Rewound
from rover_bus.events.requests import HeartbeatRequest
from rover_bus.master import lifecycle

SLOTS = 4096
OWN_HOSTS = {0: "h", 1: "g", 2: "h", 3: "g"}  # as a plan spreads four servers over two hosts


async def commit_and_stage(it, worker, servers):
    progress = await worker.lease()
    await worker.beat([(progress.tokens[0], progress.firsts[0] + 1)], held=progress.tokens)
    await it.until(lambda: it.records(CheckpointOpened))
    share = SLOTS // len(servers)
    for index, server in enumerate(servers):
        slots = [(index * share, (index + 1) * share)]
        asked = await server.master.ask(HeartbeatRequest(**server.who))
        report = PartReport(cut=1, identity=asked.cut.identity, slots=slots)
        await server.master.ask(HeartbeatRequest(**server.who, staged=report))
        other = "h" if server.host == "g" else "g"
        held = HostPartMirrored(
            host=other, job="j", uid="0123456789ab", cut=1, generation=0, part=f"ps-{index}", of=server.host
        )
        await it.publish(held, f"rover.host.{other}.part_mirrored")


async def beat_for(seconds, members):
    for _ in range(round(seconds / 0.25)):
        for member in members:
            await member.beat()
        await asyncio.sleep(0.25)


def lost_together(stage, silent, **spec):
    """A worker and four servers on two hosts, each part of a cut held on both; some servers fall silent at one moment."""

    async def scenario(it):
        await it.begin()
        it.master("m0")
        servers = [await it.worker(index, role="ps", host=host) for index, host in OWN_HOSTS.items()]
        worker = await it.worker(0, host="h")
        await commit_and_stage(it, worker, servers)
        living = [server for index, server in enumerate(servers) if index not in silent]
        await beat_for(4.0, [worker, *living])
        planned = [str(each.member) for _, each in sorted(it.deciders["m0"].state.seats.wanted.items())]
        lost = [str(record.member) for record in it.records(MemberLost)]
        return [record.host for record in it.records(MembersDisplaced)], lost, it.records(Rewound), planned

    return stage(
        scenario,
        workers=1,
        servers=4,
        hosts=("h", "g"),
        on_server_lost="restore",
        leases={"heartbeat_s": 1.0},
        checkpoint=CheckpointSpec(every_s=1.0),
        **spec,
    )


def test_the_servers_of_a_lost_host_go_back_by_one_rewind(stage):
    hosts, lost, [rewind], planned = lost_together(stage, {1, 3})
    assert hosts == ["g"]
    assert lost == ["ps-1.1", "ps-3.1"]
    assert (rewind.cut, rewind.servers) == (1, [1, 3])
    assert planned == ["ps-0.1", "ps-1.2", "ps-2.1", "ps-3.2", "worker-0.1"]


def test_servers_that_fall_silent_together_on_hosts_that_live_go_back_by_one_rewind(stage):
    hosts, lost, [rewind], planned = lost_together(stage, {1, 2})
    assert not hosts
    assert lost == ["ps-1.1", "ps-2.1"]
    assert (rewind.cut, rewind.servers) == (1, [1, 2])
    gone = "ps-1.1, ps-2.1 (silent: three heartbeats missed) are gone with their parts of the model"
    assert gone in rewind.reason
    assert planned == ["ps-0.1", "ps-1.2", "ps-2.2", "ps-3.1", "worker-0.1"]


@pytest.mark.parametrize("silent", [{1, 3}, {1, 2}])
def test_without_the_rule_each_of_them_costs_a_rewind(stage, monkeypatch, silent):
    together = lifecycle.lose_together

    def one_by_one(state, members, *rest):
        for member in members:
            yield from together(state, [member], *rest)

    monkeypatch.setattr(lifecycle, "lose_together", one_by_one)
    _, _, rewinds, _ = lost_together(stage, silent)
    assert len(rewinds) == 2
