"""The shell around every decider: who may answer, what waits for what, what a standby knows, where a Brain goes on."""

from __future__ import annotations

import asyncio

from rover_bus.brain.service import build_brain
from rover_bus.events.codec import decode
from rover_bus.events.deciding import ServiceProcess
from rover_bus.events.errors import BusError
from rover_bus.events.facts import JobSubmitted, MasterElected, PlanProposed, PlanRefused
from rover_bus.events.host_facts import HostRegistered
from rover_bus.events.identity import HostCapacity
from rover_bus.events.log import Granted
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.memory_bus import MemoryBus
from rover_bus.events.memory_links import CALM, Faults
from rover_bus.events.requests import LeaseReply
from rover_bus.events.shell import Shell
from rover_bus.events.streams import FACTS, LOG
from rover_bus.master.decider import MasterDecider


def test_an_append_whose_ack_is_lost_is_found_in_the_log_and_answered_once(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        it.broker.faults = Faults(ack_lost=1.0)
        asking = asyncio.create_task(worker.lease())
        await it.until(lambda: it.records(Granted))
        assert not asking.done()
        it.broker.faults = CALM
        reply = await asking
        return reply.firsts, [record.firsts for record in it.records(Granted)]

    told, logged = stage(scenario)
    assert logged == [told]


def test_nothing_leaves_a_master_while_its_append_is_under_way(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        it.broker.faults = Faults(append_lost=1.0)
        asked = [asyncio.create_task(worker.lease()), asyncio.create_task(worker.beat())]
        await asyncio.sleep(0.9)
        held = [task.done() for task in asked]
        it.broker.faults = CALM
        await asyncio.gather(*asked)
        return held

    assert stage(scenario) == [False, False]


def test_decisions_made_during_an_append_share_the_next_one(stage):
    """Group commit: many requests, few batches, each answered."""

    async def scenario(it):
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        before = len(it.batches())
        asked = [it.ask_once(worker.bus, 1, worker.next_lease(held=range(1, 40))) for _ in range(32)]
        replies = await asyncio.gather(*asked)
        granted = sum(isinstance(reply, LeaseReply) and bool(reply.tokens) for reply in replies)
        return granted, len(it.batches()) - before

    granted, batches = stage(
        scenario, lambda: MemoryBroker(1, Faults(ack_delay_s=(0.05, 0.05))), records=100_000
    )
    assert granted == 32
    assert batches <= 3


def test_of_three_standbys_one_leads_and_the_others_stand_by(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        await it.leads("m0")
        for name in ("m1", "m2", "m3"):
            it.master(name)
        await asyncio.sleep(1.0)
        leaders = ["m0"]

        def leading():
            return [name for name in it.shells if name not in leaders and it.shells[name].leading]

        for _ in range(3):
            it.kill(leaders[-1])
            await it.until(leading)
            [successor] = leading()
            leaders.append(successor)
        assert not it.ends
        return leaders, [record.term for record in it.records(MasterElected)]

    leaders, terms = stage(scenario)
    assert sorted(leaders) == ["m0", "m1", "m2", "m3"]
    assert terms == [1, 2, 3, 4]


def test_a_standby_replays_nothing_but_the_tail_when_its_turn_comes(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        it.master("m1")
        held = []
        for _ in range(10):
            held += (await worker.lease(held=held)).tokens
        await asyncio.sleep(0.5)
        followed = it.shells["m1"].journal.sequence
        assert followed == it.stored()[-1].sequence
        it.kill("m0")
        await it.leads("m1")
        return followed, it.stored()[-1].sequence

    followed, last = stage(scenario, records=10_000)
    assert last == followed + 1


def test_a_standby_answers_nothing(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        it.master("m1")
        await asyncio.sleep(1.0)
        heard = []
        it.shells["m1"]._intake.on_request = lambda _, message: heard.append(message)
        for _ in range(20):
            await worker.beat()
        assert isinstance(await it.ask_once(worker.bus, 2, worker.next_lease()), BusError)
        return heard

    assert stage(scenario) == []


# -- the Brain behind the same shell (S26, P22) -----------------------------------------------------------------------------


class Recounts(Shell):
    async def _lead(self):
        self.journal.inputs = {}
        await super()._lead()


def brains(stage, shell):
    """A Brain plans a job, dies; the job ends; another Brain comes."""

    async def scenario(it):
        loop = asyncio.get_running_loop()

        async def think(name, kind):
            built, decider = build_brain(
                it.broker.connect(name), process=ServiceProcess(name, loop.time, lambda: 0), timeline=5
            )
            built.__class__ = kind
            it.shells[name], it.deciders[name] = built, decider
            try:
                await built.run()
            finally:
                it.broker.kill(name)

        host = HostRegistered(host="h", capacity=HostCapacity(cores=4, memory_bytes=1 << 30), daemon="d")
        await it.publish(host, "rover.host.h.registered")
        await it.publish(JobSubmitted(job="j", spec=it.spec, uid="0123456789ab"))
        it.tasks["b0"] = asyncio.create_task(think("b0", shell))
        await it.until(lambda: it.facts(PlanProposed))
        it.kill("b0")
        it.master("m0")
        await it.worker()
        await it.publish(
            JobSubmitted(job="other", spec=it.spec.replace(name="other"), uid="0123456789ac"),
            "rover.job.other.job.submitted",
        )
        it.tasks["b1"] = asyncio.create_task(think("b1", shell))
        await it.until(lambda: len({fact.job for fact in it.facts(PlanProposed)}) == 2)
        await asyncio.sleep(1.0)
        noticed = it.deciders["b1"].state
        return [fact.job for fact in it.facts(PlanProposed)], noticed, it.facts(PlanRefused)

    return stage(scenario, plan=False)


def test_a_brain_goes_on_from_its_log_and_plans_nothing_twice(stage):
    planned, state, refused = brains(stage, Shell)
    assert planned == ["j", "other"]
    assert refused == []
    assert set(state.jobs) == {"j", "other"}
    assert state.term == 2


def test_facts_of_a_brain_follow_each_other_without_a_gap_or_a_repeat(stage):
    async def scenario(it):
        loop = asyncio.get_running_loop()
        host = HostRegistered(host="h", capacity=HostCapacity(cores=4, memory_bytes=1 << 30), daemon="d")
        await it.publish(host, "rover.host.h.registered")
        for number in range(6):
            name = f"b{number}"
            shell, _ = build_brain(
                it.broker.connect(name), process=ServiceProcess(name, loop.time, lambda: 0), timeline=5
            )
            it.tasks[name] = asyncio.create_task(shell.run())
            await it.publish(
                JobSubmitted(job=f"k{number}", spec=it.spec.replace(name=f"k{number}"), uid=f"{number:012x}"),
                f"rover.job.k{number}.job.submitted",
            )
            await asyncio.sleep(0.02 * number + 1.0)
            it.kill(name)
            await asyncio.gather(it.tasks[name], return_exceptions=True)
        final, _ = build_brain(
            it.broker.connect("end"), process=ServiceProcess("end", loop.time, lambda: 0), timeline=5
        )
        it.tasks["end"] = asyncio.create_task(final.run())
        await asyncio.sleep(3.0)
        stored = it.broker.streams[FACTS].select(["rover.job.*.plan.proposed"])
        return [decode(each.body, PlanProposed) for each in stored]

    plans = stage(scenario, plan=False)
    assert [plan.job for plan in plans] == [f"k{number}" for number in range(6)]
    positions = [plan.brain_position for plan in plans]
    assert positions == sorted(set(positions))


def test_every_new_leader_says_so_once(stage):
    async def scenario(it):
        await it.begin()
        for number in range(4):
            it.master(f"m{number}")
            await it.leads(f"m{number}")
            await asyncio.sleep(0.2)
            it.kill(f"m{number}")
        return [(fact.term, fact.holder) for fact in it.facts(MasterElected)]

    assert stage(scenario) == [(1, "m0"), (2, "m1"), (3, "m2"), (4, "m3")]


def test_a_leader_takes_its_own_records_in_once_whatever_still_delivers_them(stage, monkeypatch):
    """A follower of the log that was never stopped (its beginning had no answer) counted every record of a leader twice."""
    follow, evolved = MemoryBus.follow, []

    async def leaking(self, stream, subjects, handler, **more):
        if stream == LOG:
            await follow(self, stream, subjects, handler, **more)
        return await follow(self, stream, subjects, handler, **more)

    class Counting(MasterDecider):
        def evolve(self, record):
            evolved.append(type(record).__name__)
            super().evolve(record)

    monkeypatch.setattr(MemoryBus, "follow", leaking)

    async def scenario(it):
        await it.begin()
        leader = it.master("m0", decider=Counting)
        await it.until(lambda: leader.leading)
        await it.until(lambda: "JobOpened" in evolved)
        await asyncio.sleep(5.0)

    stage(scenario)
    assert evolved.count("MasterElected") == 1
    assert evolved.count("JobOpened") == 1
