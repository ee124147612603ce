"""P7: lease requests that a master holds until it can grant something, as workers live them, in fair weather and in foul."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rover_bus.client.session import Session
from rover_bus.client.spans import HighWater
from rover_bus.events import subjects
from rover_bus.events.bus import Subscription
from rover_bus.events.deciding import Decision, Hold
from rover_bus.events.host_facts import HostExited
from rover_bus.events.identity import Exit, Member
from rover_bus.events.job import Dataset, LeaseSpec
from rover_bus.events.memory_broker import CALM, Faults
from rover_bus.master import service
from rover_bus.master.decider import MasterDecider

Play = Any
World = Any

ROUGH = Faults(
    delay_s=(0.0, 0.02),
    drop=0.05,
    duplicate=0.1,
    reorder=0.1,
    reorder_s=(0.0, 0.7),
    append_lost=0.02,
    ack_lost=0.02,
)
PATIENT = LeaseSpec(target_s=2.0, heartbeat_s=3.0)


class Counting(MasterDecider):
    """Counts what it holds, and what becomes of it."""

    held = released = 0

    def decide(self, input: Any, now: float) -> Decision:
        decision = super().decide(input, now)
        Counting.held += isinstance(decision.reply, Hold)
        Counting.released += sum(
            bool(reply.tokens) for _, reply in decision.released if hasattr(reply, "tokens")
        )
        return decision


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    Counting.held = Counting.released = 0
    defaults = {**(service.build_master.__kwdefaults__ or {}), "decider_type": Counting}
    monkeypatch.setattr(service.build_master, "__kwdefaults__", defaults)


def exact(world: World, end: Any) -> None:
    """Every sample is committed, and every batch of it is on the servers."""
    assert end.state == "completed", end
    assert end.summary["samples_committed"] == 2100
    assert world.every_batch_was_applied()
    assert not world.broken


def test_workers_go_on_at_the_moment_the_next_epoch_opens(play: Play) -> None:
    """A worker of half the speed ends the epoch; the other waits for it, and its request is answered by what ends it."""

    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        opened: dict[int, float] = {}
        began: dict[tuple[str, int], float] = {}
        fact = subjects.job_facts("j", "epoch.opened")
        await world.broker.connect("observer").subscribe(
            fact, lambda message: opened.update({len(opened): loop.time()})
        )

        step_s: dict[Session, float] = {}

        async def meet(session: Session, assigned: Any) -> None:
            began.setdefault((str(session.worker.member), assigned.epoch), loop.time() - step_s[session])

        await world.begin()
        world.worker("w0", 0, step_s=0.05, meet=meet)
        world.worker("w1", 1, step_s=0.1, meet=meet)
        await asyncio.sleep(0)
        step_s |= {world.sessions["w0"]: 0.05, world.sessions["w1"]: 0.1}
        exact(world, await world.ended())
        late = [began[f"worker-{index}.1", 1] - opened[1] for index in range(2)]
        assert max(late) < 0.001, late
        assert Counting.released, "nothing was held that the next epoch let go"

    play(scenario)


class Deaf(Session):
    """Hears of no election."""

    async def _watch_elections(self) -> Subscription | None:
        return None


def asked_after_the_election(play: Play, session_type: type[Session]) -> float:
    """How long after its election a successor has the request that its predecessor held when it was killed."""

    async def scenario(world: World) -> float:
        loop = asyncio.get_running_loop()
        elected: list[float] = []
        world.session_type = session_type
        await world.begin()
        world.start("master-1", world.lead("master-1"))
        world.worker("w0", 0, step_s=60.0)  # holds the only batch
        await asyncio.sleep(0.5)
        world.worker("w1", 1)
        waiting = Member("worker", 1, 1)
        while waiting not in world.deciders["master-0"].unlogged.held:  # noqa: ASYNC110 - it is time that is waited for
            await asyncio.sleep(0.01)
        fact = subjects.job_facts("j", "master.elected")
        await world.broker.connect("observer").subscribe(fact, lambda message: elected.append(loop.time()))
        world.kill("master-0")
        while waiting not in world.deciders["master-1"].unlogged.held:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return loop.time() - elected[0]

    return float(play(scenario, records=10, epochs=1, leases=LeaseSpec(heartbeat_s=5.0)))


def test_a_successor_is_asked_at_once_what_its_predecessor_held(play: Play) -> None:
    assert asked_after_the_election(play, Session) < 0.01
    assert asked_after_the_election(play, Deaf) > 0.1, "the hint is not what does it"


@pytest.mark.parametrize("seed", range(8))
def test_held_requests_survive_loss_doubles_and_deaths(play: Play, seed: int) -> None:
    """Short leases, so that ends of epochs are most of the job; a master and a worker die, each while requests are held."""

    async def scenario(world: World) -> None:
        await world.begin(workers=4)
        world.start("master-1", world.lead("master-1"))
        for index in range(4):
            world.worker(f"w{index}", index, step_s=0.05 * (1 + index))
        await asyncio.sleep(1.0 + 0.3 * seed)
        world.kill("master-0")
        await asyncio.sleep(4.0)
        world.kill("w3")
        exited = HostExited(host="h", job="j", member=Member("worker", 3, 1), exit=Exit(reason="killed"))
        await world.publish(exited, subjects.host_fact("h", "exited"))
        world.worker("w3 again", 3, 2)
        await asyncio.sleep(30.0)
        world.broker.faults = CALM
        exact(world, await world.ended())
        assert Counting.held
        assert Counting.released

    play(scenario, seed=seed, faults=ROUGH, leases=PATIENT, records=210, epochs=10)


def test_a_worker_that_waits_says_two_things_a_heartbeat(play: Play) -> None:
    """That it is alive, and its request again: of a dry stream nothing can be granted for a minute."""

    async def scenario(world: World) -> None:
        world.dataset = Dataset(records=0, batch_size=10, epochs=1, partitions=["a"])
        world.stream = HighWater({"a": 0}, [])
        await world.begin(workers=1)
        world.worker("w0", 0)
        await asyncio.sleep(5.0)
        before = Counting.held
        await asyncio.sleep(60.0)
        assert 60 <= Counting.held - before <= 120
        assert not await world.facts("member.lost")
        world.stream = HighWater({"a": 10}, ["a"])
        end = await world.ended(within_s=2.0)
        assert end.summary["samples_committed"] == 10

    play(scenario)
