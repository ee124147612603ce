"""A real Brain and a real master on one bus, members spoken for by hand: a host slows, and what follows leaves."""

from __future__ import annotations

import asyncio

import msgspec

from rover_bus.brain.service import build_brain
from rover_bus.events import subjects
from rover_bus.events.codec import encode
from rover_bus.events.deciding import ServiceProcess
from rover_bus.events.facts import MembersDesired, PlanProposed, PlanSettled
from rover_bus.events.host_facts import HostRegistered, HostSlow
from rover_bus.events.identity import HostCapacity
from rover_bus.events.job import PlanSpec, RoleSpec, WorkersSpec
from rover_bus.events.profiles import WorkerProfile
from rover_bus.events.reading import read_fact
from rover_bus.events.streams import FACTS

SPEC = {
    "workers": WorkersSpec(count=4),
    "servers": RoleSpec(count=1),
    "plan": PlanSpec(window_s=2.0, cooldown_s=5.0),
}


def brain(it, name):
    shell, decider = build_brain(
        it.broker.connect(name),
        process=ServiceProcess(name, asyncio.get_running_loop().time, lambda: 0),
        timeline=7,
    )
    it.tasks[name] = asyncio.create_task(shell.run(), name=name)
    return decider


def on_hosts(it):
    """What has left on hosts' subjects, read as every reader reads it."""
    return [read_fact(stored) for stored in it.stored(FACTS, "rover.host.*.*")]


async def members(it, slow):
    """Play what the newest desired set names: join, beat, publish samples of a second; `slow`: host -> share of its speed."""
    living = {}
    bus = it.broker.connect("samples")
    while True:
        desired = it.facts(MembersDesired)[-1:]
        wanted = {each.member: each.host for fact in desired for each in fact.members}
        for member in set(living) - set(wanted):
            await living.pop(member).leave()
        for member, host in wanted.items():
            if member not in living:
                living[member] = await it.worker(member.index, member.incarnation, member.role, host)
        for member, worker in living.items():
            await worker.beat()
            samples = round(1000 * slow.get(worker.host, 1.0))
            profile = WorkerProfile(
                window_s=1.0, job="j", member=member, samples=samples, batches=1, compute_s=1.0
            )
            await bus.publish(subjects.member_profile("j", "worker", member.index), encode(profile))
        await asyncio.sleep(1.0)


def test_a_host_that_slows_is_named_once_and_left(stage):
    async def scenario(it):
        slow: dict[str, float] = {}
        it.spec = msgspec.structs.replace(it.spec, **SPEC)
        brain(it, "b0")
        for host in ("h", "i"):
            capacity = HostCapacity(cores=8.0, memory_bytes=1 << 30)
            await it.publish(
                HostRegistered(host=host, daemon=host, capacity=capacity),
                subjects.host_fact(host, "registered"),
            )
        await it.begin()
        it.master("m0")
        await it.leads("m0")
        await it.until(lambda: it.facts(MembersDesired))
        it.tasks["members"] = asyncio.create_task(members(it, slow))
        await it.until(lambda: it.facts(PlanSettled))
        await asyncio.sleep(20.0)
        slow["i"] = 0.4
        await it.until(lambda: any(isinstance(fact, HostSlow) for fact in on_hosts(it)), 60.0)

        def left():
            where = {each.host for each in it.facts(MembersDesired)[-1].members}
            return where == {"h"}

        await it.until(left, 120.0)
        it.kill("b0")
        successor = brain(it, "b1")
        await it.until(lambda: "i" in successor.state.slow_hosts, 60.0)
        await asyncio.sleep(30.0)
        return on_hosts(it), it.facts(PlanProposed)

    facts, plans = stage(scenario, plan=False)
    [named] = [fact for fact in facts if isinstance(fact, HostSlow)]
    assert (named.host, named.brain_term > 0, named.brain_position is not None) == ("i", True, True)
    assert {name.split(".")[0] for name in named.members} <= {
        "j/worker-0",
        "j/worker-2",
    }  # the server has the first host
    [moved] = [plan for plan in plans if plan.constant == "host_slow"]
    assert (moved.slow_hosts, len(moved.replaces)) == (["i"], 2)
