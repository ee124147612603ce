"""A request on which every master fails is refused by name after three; a rule of a tick that fails is switched off alone."""

from __future__ import annotations

import asyncio

import pytest

from rover_bus.brain import starting
from rover_bus.brain.service import build_brain
from rover_bus.cli.views.history import JobRow
from rover_bus.events import poison, subjects
from rover_bus.events.deciding import ServiceProcess
from rover_bus.events.facts import (
    JobPaused,
    JobReported,
    JobResumed,
    JobResumeRequested,
    JobSubmitted,
    MembersDesired,
    PlanProposed,
    RuleSwitchedOff,
    RuleSwitchedOn,
)
from rover_bus.events.host_facts import HostRegistered
from rover_bus.events.identity import HostCapacity
from rover_bus.events.requests import FailureRequest, LeaseReply, RefusedReply
from rover_bus.master import cutting, lifecycle
from rover_bus.master.decider import MasterDecider

SWITCHED = (RuleSwitchedOff, RuleSwitchedOn)
OFF, ON = (kind.kind() for kind in SWITCHED)


def broken(*_args, **_more):
    raise KeyError("never seen before")
    yield


class FailsOnFailures(MasterDecider):
    """Cannot decide on what a worker says of its failure."""

    def _answer(self, state, request, now):
        return broken() if isinstance(request, FailureRequest) else super()._answer(state, request, now)


async def masters(it, decider=MasterDecider, tag="m", count=6):
    """Start a master whenever the last one has ended, as a platform does, until one lives on; return how many ended."""
    for number in range(count):
        name = f"{tag}{number}"
        shell = it.master(name, decider=decider)
        await it.until(lambda n=name, s=shell: it.tasks[n].done() or s.leading)
        await asyncio.sleep(8.0)
        if not it.tasks[name].done():
            return number
        assert it.tasks[name].exception() is not None
    return count


def test_a_request_that_ended_three_masters_is_refused_by_name_and_nothing_else_is(stage):
    async def scenario(it):
        await it.begin()
        living = asyncio.create_task(masters(it, FailsOnFailures))
        worker = await it.worker()
        ask = FailureRequest(**worker.who, token=0, exception="E", message="m", fingerprint="f")
        refused = await worker.master.ask(ask)
        again = await worker.master.ask(ask)
        lease = await worker.lease()
        return refused, again, lease, await living

    refused, again, lease, ended = stage(scenario, leases={"heartbeat_s": 86_400.0})
    assert isinstance(refused, RefusedReply)
    assert refused.code == "poisoned_request"
    assert "failure of worker-0.1 ended 3 masters" in refused.message
    assert "KeyError('never seen before')" in refused.message
    assert again == refused
    assert isinstance(lease, LeaseReply)
    assert ended == 3


def test_without_the_count_a_request_ends_every_master(stage, monkeypatch):
    monkeypatch.setattr(poison, "INCARNATIONS", 10**6)

    async def scenario(it):
        await it.begin()
        living = asyncio.create_task(masters(it, FailsOnFailures))
        worker = await it.worker()
        ask = FailureRequest(**worker.who, token=0, exception="E", message="m", fingerprint="f")
        asking = asyncio.create_task(worker.master.ask(ask))
        ended = await living
        asking.cancel()
        return ended

    assert stage(scenario, leases={"heartbeat_s": 86_400.0}) == 6


def test_what_cannot_be_written_is_charged_to_the_request_that_asked_for_it(stage):
    class Unwritable(MasterDecider):
        def _answer(self, state, request, now):
            if isinstance(request, FailureRequest):
                yield JobReported(epoch=1 << 70, committed=0, dead_lettered=0, total=0, cause="x")
            return (yield from super()._answer(state, request, now))

    async def scenario(it):
        await it.begin()
        living = asyncio.create_task(masters(it, Unwritable))
        worker = await it.worker()
        ask = FailureRequest(**worker.who, token=0, exception="E", message="m", fingerprint="f")
        refused = await worker.master.ask(ask)
        return refused.code, await living

    assert stage(scenario, leases={"heartbeat_s": 86_400.0}) == ("poisoned_request", 3)


async def lose_a_worker_while(it, others=()):
    """Two workers; one dies without a word. Return how many masters ended, and what the job's facts say."""
    await it.begin()
    living = asyncio.create_task(masters(it))
    first, _ = await it.worker(0), await it.worker(1)

    async def work():
        while True:
            await first.lease()
            await asyncio.sleep(0.5)

    working = asyncio.create_task(work())
    ended = await living
    await asyncio.sleep(10.0)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return ended


LONG = {"workers": 2, "records": 100_000, "batch": 10}


def test_a_rule_that_fails_is_switched_off_alone_and_says_so(stage, monkeypatch):
    monkeypatch.setattr(MasterDecider, "_report", broken)

    async def scenario(it):
        ended = await lose_a_worker_while(it)
        return (
            ended,
            it.facts(RuleSwitchedOff),
            it.facts(MembersDesired)[-1],
            it.facts(JobReported),
            it.facts(JobPaused),
        )

    ended, [off], desired, reported, paused = stage(scenario, **LONG)
    assert ended == 3
    assert (off.rule, off.exact) == ("report", False)
    assert "KeyError('never seen before')" in off.why
    # The other rules of the same tick ran: the silent worker was missed, and its successor named.
    assert "worker-1.2" in [str(each.member) for each in desired.members]
    assert not reported
    assert not paused


def test_a_rule_of_exactness_that_fails_pauses_the_job_and_a_resume_tries_it_again(stage, monkeypatch):
    monkeypatch.setattr(MasterDecider, "_miss", broken)

    async def scenario(it):
        ended = await lose_a_worker_while(it)
        view = JobRow("j")
        for fact in it.facts(RuleSwitchedOff):
            view.take(fact, 1)
        paused = it.facts(JobPaused)
        monkeypatch.undo()
        await it.publish(JobResumeRequested(job="j", by="ada"))
        await it.until(lambda: it.facts(RuleSwitchedOn))
        await asyncio.sleep(10.0)
        return (
            ended,
            view.rules_off,
            paused,
            it.records((JobPaused, JobResumed))[-1],
            it.facts(MembersDesired)[-1],
        )

    ended, off, [paused], still, desired = stage(scenario, **LONG)
    assert ended == 3
    assert list(off) == ["silence"]
    assert "P19" in paused.reason
    assert isinstance(still, JobResumed)
    assert [each.member.role for each in desired.members] == ["worker", "worker"]


def test_a_rule_that_still_fails_after_a_resume_pauses_the_job_again(stage, monkeypatch):
    monkeypatch.setattr(cutting, "tick", broken)

    async def scenario(it):
        await it.begin()
        living = asyncio.create_task(masters(it))
        await it.until(lambda: it.facts(RuleSwitchedOff), 120.0)
        await living
        await it.publish(JobResumeRequested(job="j"))
        await masters(it, tag="n", count=6)
        return [(record.rule, record.kind()) for record in it.records(SWITCHED)]

    assert stage(scenario) == [("cuts", OFF), ("cuts", ON), ("cuts", OFF)]


def test_another_release_runs_the_rule_again(stage, monkeypatch):
    monkeypatch.setattr(lifecycle, "fill_gaps", broken)

    async def scenario(it):
        await it.begin()
        await masters(it)
        name = next(name for name, task in it.tasks.items() if not task.done())
        it.kill(name)
        monkeypatch.undo()
        shell = it.master("newer")
        object.__setattr__(shell.wiring, "release", "9.9")
        await it.leads("newer")
        return [(record.rule, record.kind(), record.release) for record in it.records(SWITCHED)]

    [off, on] = stage(scenario)
    assert off[:2] == ("gaps", OFF)
    assert on == ("gaps", ON, "9.9")


def test_what_a_new_leader_does_first_may_fail_too(stage, monkeypatch):
    async def scenario(it):
        await it.begin()
        it.master("first")
        await it.until(
            lambda: it.deciders["first"].timeline
        )  # the job is open: there is something to go on with
        it.kill("first")
        monkeypatch.setattr(MasterDecider, "_go_on", broken)
        lives = 0
        while True:
            name = f"m{lives}"
            shell = it.master(name)
            await it.until(lambda n=name, s=shell: it.tasks[n].done() or s.leading)
            if not it.tasks[name].done():
                break
            lives += 1
        return lives, [record.rule for record in it.records(SWITCHED)]

    assert stage(scenario) == (3, ["take-over"])


def test_a_brain_leaves_the_rule_of_one_job_out_and_goes_on_with_the_others(stage, monkeypatch):
    whole = starting.size_to_begin_with

    def size_to_begin_with(job, state):
        if job.spec.name == "j":
            raise KeyError("never seen before")
        return whole(job, state)

    monkeypatch.setattr(starting, "size_to_begin_with", size_to_begin_with)

    async def scenario(it):
        host = HostRegistered(host="h", capacity=HostCapacity(cores=4, memory_bytes=1 << 30), daemon="d")
        await it.publish(host, "rover.host.h.registered")
        await it.publish(JobSubmitted(job="j", spec=it.spec, uid="0123456789ab"))
        other = JobSubmitted(job="k", spec=it.spec.replace(name="k"), uid="0123456789ac")
        await it.publish(other, subjects.job_fact("k", "job.submitted"))
        ends = 0
        loop = asyncio.get_running_loop()
        for number in range(6):
            name = f"b{number}"
            shell, decider = build_brain(
                it.broker.connect(name), process=ServiceProcess(name, loop.time, lambda: 0), timeline=5
            )
            it.tasks[name] = asyncio.create_task(shell.run())
            await asyncio.sleep(10.0)
            if not it.tasks[name].done():
                break
            ends += 1
            it.kill(name)
        return (
            ends,
            [fact.job for fact in it.facts(PlanProposed)],
            it.facts(RuleSwitchedOff),
            decider.state.rules_off,
        )

    ends, planned, [off], known = stage(scenario, plan=False)
    assert ends == 3
    assert planned == ["k"]
    assert (off.job, off.rule) == ("j", "brain: start of j")
    assert list(known) == ["start of j"]


@pytest.mark.parametrize("lives", [1, 2])
def test_what_failed_less_than_three_times_is_decided_on(stage, monkeypatch, lives):
    whole, left = MasterDecider._report, [lives]

    def report(self, state, now):
        if left[0]:
            left[0] -= 1
            return broken()
        return whole(self, state, now)

    monkeypatch.setattr(MasterDecider, "_report", report)

    async def scenario(it):
        await it.begin()
        return await masters(it), it.records(SWITCHED)

    assert stage(scenario) == (lives, [])
