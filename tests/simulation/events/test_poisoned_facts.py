"""A stored fact that ends whoever decides on it is passed over after three incarnations, by name, and nothing else with it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rover_bus.brain.service import build_brain
from rover_bus.events import poison, subjects
from rover_bus.events.bus import Stored
from rover_bus.events.deciding import ServiceProcess
from rover_bus.events.facts import JobStopRequested, JobSubmitted, MasterElected, PlanModeSet, PlanProposed
from rover_bus.events.host_facts import HostRegistered, QuotaSet
from rover_bus.events.identity import HostCapacity
from rover_bus.events.inputs import Observed
from rover_bus.events.log import ModeFixed, StopAsked
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.memory_links import Faults
from rover_bus.master.decider import MasterDecider


class Poisoned(MasterDecider):
    """Fails in the middle of a decision, when part of it is evolved already."""

    fatal = PlanModeSet

    def _steps(self, input, now):
        if isinstance(input, Observed) and isinstance(input.fact, self.fatal):
            return self._fail()
        return super()._steps(input, now)

    @staticmethod
    def _fail():
        yield ModeFixed(mode="observe", by="poison", cause="poison")
        raise KeyError("never seen before")


async def live(it, name, decider=Poisoned):
    """Start a master; return what ended it, None when it leads and has heard all that is stored."""
    shell = it.master(name, decider=decider)
    await it.until(lambda: it.tasks[name].done() or shell.leading)
    await asyncio.sleep(1.0)
    if not it.tasks[name].done():
        return None
    return it.tasks[name].exception()


async def poisoned(it, lives):
    await it.begin()
    await it.publish(PlanModeSet(job="j", mode="approve"))
    await it.publish(JobStopRequested(job="j", mode="cancel"))
    ends = [await live(it, f"m{number}") for number in range(lives)]
    return ends, it.records(StopAsked), it.records(ModeFixed)


def test_a_fact_that_ended_three_masters_is_passed_over_and_the_next_one_obeyed(stage):
    ends, stops, fixed = stage(lambda it: poisoned(it, 4))
    assert [group is not None and group.subgroup(KeyError) is not None for group in ends] == [
        True,
        True,
        True,
        False,
    ]
    assert len(stops) == 1
    assert not fixed  # nothing of a decision that failed was stored


def test_without_the_count_every_master_ends_by_the_same_fact(stage, monkeypatch):
    monkeypatch.setattr(poison, "INCARNATIONS", 10**6)
    ends, stops, _ = stage(lambda it: poisoned(it, 6))
    assert None not in ends
    assert not stops


def test_who_passes_a_fact_over_names_it_with_its_error(stage, caplog):
    logging.getLogger("rover").setLevel(logging.ERROR)
    stage(lambda it: poisoned(it, 4))
    [line] = [record.getMessage() for record in caplog.records if "passed over" in record.getMessage()]
    assert "rover.job.j.plan.mode_set" in line
    assert "KeyError('never seen before')" in line


def test_a_standby_that_only_followed_the_log_knows_the_count(stage):
    async def scenario(it):
        await it.begin()
        for name in ("m0", "m1", "m2", "m3"):
            it.master(name, decider=Poisoned)
        await it.until(lambda: any(shell.leading for shell in it.shells.values()))
        await it.publish(PlanModeSet(job="j", mode="approve"))
        await it.publish(JobStopRequested(job="j", mode="cancel"))
        await it.until(lambda: it.records(StopAsked))
        return len(it.records(MasterElected)), sum(task.done() for task in it.tasks.values())

    assert stage(scenario) == (4, 3)


def test_a_fact_that_fails_only_once_is_decided_on_by_the_next_life(stage):
    async def scenario(it):
        await it.begin()
        await it.publish(PlanModeSet(job="j", mode="approve"))
        assert await live(it, "m0") is not None
        assert await live(it, "m1", MasterDecider) is None
        return [record.mode for record in it.records(ModeFixed)], it.batches()[-1].failed

    assert stage(scenario) == (["approve"], [])


def test_a_count_is_kept_though_an_append_is_under_way_when_the_decider_fails(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0", decider=Poisoned)
        worker = await it.worker()
        asking = asyncio.create_task(worker.lease())
        await asyncio.sleep(0.02)
        await it.publish(PlanModeSet(job="j", mode="approve"))
        await it.until(lambda: it.tasks["m0"].done())
        failed = it.batches()[-1].failed
        it.master("m1", decider=MasterDecider)
        reply = await asking
        return [each.incarnations for each in failed], len(reply.tokens)

    lives, tokens = stage(scenario, lambda: MemoryBroker(1, Faults(ack_delay_s=(0.2, 0.2))), records=10_000)
    assert lives == [1]
    assert tokens > 0


@pytest.mark.parametrize("other", ["sequence", "time_ms"])
def test_a_fact_that_bears_the_number_of_a_lost_one_is_not_charged_for_it(other):
    def stored(sequence, time_ms):
        return Stored(
            subject="rover.job.j.plan.mode_set", sequence=sequence, time_ms=time_ms, body=b"", headers={}
        )

    cause = poison.of_fact(stored(7, 100))
    failed = poison.charge([], cause, KeyError("a"), "1.0")
    failed = poison.charge(failed, cause, KeyError("b"), "1.0")
    assert [(each.incarnations, each.why) for each in failed] == [(2, "KeyError('b')")]
    renumbered = poison.of_fact(stored(8, 100) if other == "sequence" else stored(7, 200))
    assert poison.find(failed, renumbered, "1.0") is None
    assert [each.incarnations for each in poison.charge(failed, renumbered, KeyError("c"), "1.0")][-1] == 1


def test_a_brain_passes_a_poisoned_fact_over_and_plans_what_came_after_it(stage):
    async def scenario(it):
        host = HostRegistered(host="h", capacity=HostCapacity(cores=4, memory_bytes=1 << 30), daemon="d")
        await it.publish(host, "rover.host.h.registered")
        await it.publish(QuotaSet(tenant="t", cores=1.0), subjects.cluster_fact("quota_set"))
        await it.publish(JobSubmitted(job="j", spec=it.spec, uid="0123456789ab"))
        ends = []
        for number in range(4):
            name = f"b{number}"
            shell, decider = build_brain(
                it.broker.connect(name),
                process=ServiceProcess(name, asyncio.get_running_loop().time, lambda: 0),
                timeline=5,
            )
            decider._notice = poisonous(decider._notice)
            it.tasks[name] = asyncio.create_task(shell.run())
            await asyncio.sleep(10.0)
            ends.append(it.tasks[name].done())
            it.kill(name)
        return ends, [fact.job for fact in it.facts(PlanProposed)]

    assert stage(scenario, plan=False) == ([True, True, True, False], ["j"])


def poisonous(notice):
    def fail(fact, cause, now):
        if isinstance(fact, QuotaSet):
            raise KeyError("never seen before")
        return notice(fact, cause, now)

    return fail
