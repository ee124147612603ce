"""P15 to P18: one writer a log; nothing is said before it is stored, nothing twice, nothing by one who was replaced."""

from __future__ import annotations

import asyncio

import pytest

from rover_bus.events.batch import Published
from rover_bus.events.codec import HEADROOM_BYTES, encode
from rover_bus.events.deciding import Hold
from rover_bus.events.errors import BusError
from rover_bus.events.facts import (
    JobFact,
    JobPaused,
    JobPauseRequested,
    MasterElected,
    MemberLeft,
    MemberLost,
    WorkerFailed,
)
from rover_bus.events.host_facts import HostExited
from rover_bus.events.identity import Exit, Member
from rover_bus.events.inputs import Observed, Requested
from rover_bus.events.journal import Journal
from rover_bus.events.leadership import Deposed, Leadership
from rover_bus.events.log import Granted
from rover_bus.events.memory_bus import MAX_PAYLOAD_BYTES
from rover_bus.events.memory_links import CALM, Faults
from rover_bus.events.outbox import FactOut, ReadyFacts
from rover_bus.events.requests import FailureReply, FailureRequest, LeaseReply
from rover_bus.events.shell import Shell
from rover_bus.events.streams import LOG
from rover_bus.master.decider import MasterDecider

LOSES_APPENDS = Faults(append_lost=1.0)
LOSES_ACKS = Faults(ack_lost=1.0)


# -- P15: replies leave after the append ---------------------------------------------------------------------------------


class Hasty(Shell):
    def submit(self, input, respond=None, cause=None):
        records, reply, *_ = self.decider.decide(input, self.clock())
        self._pending += records
        self._wake.set()
        if respond is not None and reply is not None and not isinstance(reply, Hold):
            respond(encode(reply))


def told_by_two_masters(stage, shell):
    """The append of a grant never arrives, its master dies, the successor grants: what were two workers told?"""

    async def scenario(it):
        await it.begin()
        it.master("m0", shell)
        workers = [await it.worker(0), await it.worker(1)]
        it.master("m1")
        await asyncio.sleep(1.0)
        it.broker.faults = LOSES_APPENDS
        asking = [asyncio.create_task(worker.lease()) for worker in workers[:1]]
        await asyncio.sleep(0.3)
        it.broker.faults = CALM
        it.kill("m0")
        await it.leads("m1")
        told = [await workers[1].lease(), *await asyncio.gather(*asking)]
        return [first for reply in told for first in reply.firsts]

    return stage(scenario, workers=2)


def test_a_grant_that_was_not_stored_was_told_to_nobody(stage):
    firsts = told_by_two_masters(stage, Shell)
    assert len(firsts) == len(set(firsts)) == 2


def test_with_replies_before_the_append_two_workers_are_told_the_same_batches(stage):
    firsts = told_by_two_masters(stage, Hasty)
    assert len(firsts) > len(set(firsts))


# -- P15: refusals rest on the leadership -------------------------------------------------------------------------------


class TrustsItself(Leadership):
    @property
    def leads_until(self):
        return float("inf")

    @leads_until.setter
    def leads_until(self, value):
        """Who led once leads for ever."""


def answer_of_one_who_was_replaced(stage, leadership):
    """The leader is cut off and nobody notices; another leads; then the way is free again and a worker asks the first."""

    async def scenario(it):
        it.broker.faults = Faults(detect_s=60.0)
        await it.begin()
        it.master("m0", leadership_type=leadership)
        worker = await it.worker()
        it.master("m1")
        await asyncio.sleep(1.0)
        it.broker.partition("m0")
        await it.leads("m1")
        it.broker.heal("m0")
        late = worker.next_lease()
        return await it.ask_once(worker.bus, 1, type(late)(**{**_fields(late), "wanted": 0}))

    return stage(scenario)


def _fields(request):
    return {name: getattr(request, name) for name in request.__struct_fields__}


def test_one_who_was_replaced_answers_nothing(stage):
    assert isinstance(answer_of_one_who_was_replaced(stage, Leadership), BusError)


def test_without_the_ttl_it_answers_from_a_state_that_is_over(stage):
    reply = answer_of_one_who_was_replaced(stage, TrustsItself)
    assert isinstance(reply, LeaseReply)
    assert reply.term == 1


# -- P15: the term is part of the subject ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("told_apart", "lost"), [(True, 0), (False, 10)])
def test_a_stopped_master_in_the_same_queue_group_eats_calls_unless_the_term_tells_them_apart(
    stage, told_apart, lost
):
    async def scenario(it):
        await it.begin()
        stopped = it.broker.connect("stopped")  # SIGSTOP: its subscriptions stand, it never answers
        it.master("m0")
        worker = await it.worker()
        subject = f"rover.rpc.j.{0 if told_apart else 1}.lease"
        await stopped.serve("rover-master-j", {subject: lambda message: None})
        answers = [await it.ask_once(worker.bus, 1, worker.next_lease()) for _ in range(40)]
        return sum(isinstance(answer, BusError) for answer in answers)

    if told_apart:
        assert stage(scenario) == lost
    else:
        assert stage(scenario) >= lost


# -- P16: what error 10071 means ---------------------------------------------------------------------------------------------


class TakesItForFailure(Journal):
    async def _judge_tail(self, own, candidate):
        self.sequence = (await self.bus.last(LOG, self.subject)).sequence
        return 0


class TakesItForSuccess(Journal):
    async def _judge_tail(self, own, candidate):
        return (await self.bus.last(LOG, self.subject)).sequence


def batches_after_a_lost_ack(stage, journal):
    """A grant is stored, its ack is lost, and the broker is away for longer than the dedupe window."""

    async def scenario(it):
        await it.begin()
        it.master("m0", journal_type=journal)
        worker = await it.worker()
        await asyncio.sleep(1.0)
        it.broker.faults = LOSES_ACKS
        asking = asyncio.create_task(worker.lease())
        await it.until(lambda: it.records(Granted))
        it.broker.restart(130.0)
        it.broker.faults = CALM
        await asking
        await worker.lease(held=asking.result().tokens)
        return [batch.id for batch in it.batches()], [record.first_token for record in it.records(Granted)]

    return stage(scenario)


def test_ones_own_batch_at_the_end_of_the_log_is_success(stage):
    ids, tokens = batches_after_a_lost_ack(stage, Journal)
    assert len(ids) == len(set(ids))
    assert tokens == [1, 2]


def test_taken_for_failure_the_batch_is_in_the_log_twice(stage):
    ids, tokens = batches_after_a_lost_ack(stage, TakesItForFailure)
    assert len(ids) > len(set(ids))
    assert tokens == [1, 1, 2]


class NeverRenews(Leadership):
    """Only the log can tell this leader that another writes it."""

    async def keep(self):
        await asyncio.Event().wait()


def granted_after_a_take_over(stage, journal):
    """The first master is cut off while it appends; a second one takes over; then the first hears error 10071."""

    async def scenario(it):
        it.broker.faults = Faults(detect_s=0.2)
        await it.begin()
        it.master("m0", journal_type=journal, leadership_type=NeverRenews)
        worker = await it.worker()
        it.master("m1")
        it.broker.partition("m0")
        it.shells["m0"].submit(
            Requested(it.shells["m0"].serving.read(_message(worker.next_lease()))), replies.append
        )
        await it.leads("m1")
        it.broker.heal("m0")
        await asyncio.sleep(3.0)
        return [record.request for record in it.records(Granted)], it.ends.get("m0")

    replies = []
    granted, end = stage(scenario)
    return granted, replies, end


def _message(request):
    from rover_bus.events.bus import Message

    return Message("rover.rpc.j.1.lease", encode(request))


def test_somebody_elses_batch_is_the_end_of_us_and_nothing_was_said(stage):
    granted, replies, end = granted_after_a_take_over(stage, Journal)
    assert (granted, replies) == ([], [])
    assert isinstance(end, Deposed)


def test_taken_for_success_a_lease_is_told_that_no_log_knows(stage):
    granted, replies, _ = granted_after_a_take_over(stage, TakesItForSuccess)
    assert granted == []
    assert len(replies) == 1


class GivesUp(Journal):
    async def _store(self, body, own, candidate):
        try:
            return await super()._store(body, own, candidate) if self.bus.connected else self.sequence
        except BusError:
            return self.sequence


def state_in_the_log(stage, journal):
    """The broker is away while a master decides; does the log hold afterwards what a worker was told?"""

    async def scenario(it):
        await it.begin()
        it.master("m0", journal_type=journal)
        worker = await it.worker()
        it.broker.restart(0.5)
        it.shells["m0"].submit(
            Requested(it.shells["m0"].serving.read(_message(worker.next_lease()))), told.append
        )
        await asyncio.sleep(5.0)
        return len(it.records(Granted))

    told = []
    return stage(scenario), len(told)


def test_whatever_else_goes_wrong_the_same_bytes_are_repeated(stage):
    assert state_in_the_log(stage, Journal) == (1, 1)


def test_with_an_append_given_up_a_worker_holds_what_no_log_knows(stage):
    assert state_in_the_log(stage, GivesUp) == (0, 1)


# -- P17: inputs once ------------------------------------------------------------------------------------------------------


def watched(decide, see):
    """Return a decider's `decide` that shows each fact of others before it decides on it."""

    def observe(input, now):
        if isinstance(input, Observed):
            see(input)
        return decide(input, now)

    return observe


class Recounts(Shell):
    async def _lead(self):
        self.journal.inputs = {}
        await super()._lead()


def inputs_decided(stage, shell):
    """Two masters lead after each other; how often is each fact of others decided?"""

    async def scenario(it):
        await it.begin()
        seen = []
        for name in ("m0", "m1"):
            it.master(name, shell)
            it.deciders[name].decide = watched(it.deciders[name].decide, lambda fact: seen.append(fact.id))
            await it.leads(name)
            await it.worker() if name == "m0" else await asyncio.sleep(0.5)
            it.kill(name)
        return seen

    return stage(scenario)


def test_an_input_is_decided_once_whoever_leads(stage):
    seen = inputs_decided(stage, Shell)
    assert len(seen) == len(set(seen)) == 2


def test_without_positions_in_the_log_a_successor_decides_them_again(stage):
    assert len(inputs_decided(stage, Recounts)) > 2


# -- P18: facts once, in order -----------------------------------------------------------------------------------------------


class Forgetful(Shell):
    def _after(self, left, confirmed):
        return self.decider.standing()


class SaysItAgain(Shell):
    def _after(self, left, confirmed):
        self.outbox.recall(Published(), "")
        return super()._after(Published(), confirmed=False)


def test_what_is_told_again_goes_by_terms_before_positions():
    """A log that lost its tail: facts of the newest term bear lower positions than what was told of it before (P18, P21)."""
    ready = ReadyFacts()
    fact = MemberLeft(job="j", member=Member("worker", 0, 1), reason="done")
    decided = [FactOut(fact, (at, 0), term) for at, term in ((60, 2), (61, 2), (41, 3))]
    ready.note(decided)
    assert ready.after(Published(2, 60, 0, 9)) == decided[1:]
    assert ready.after(Published(3, 40, 0, 9)) == decided[2:]


def facts_across_a_take_over(stage, shell):
    """The leader decides that a worker is lost and dies before it can say so; 130 s pass, more than the dedupe window."""

    async def scenario(it):
        it.broker.faults = Faults(detect_s=60.0)
        await it.begin()
        leader = it.master("m0")
        await it.worker()
        it.master("m1", shell)
        await asyncio.sleep(130.0)
        leader.outbox.put = lambda items: None
        gone = Member("worker", 0, 1)
        fact = HostExited(host="h", job="j", member=gone, exit=Exit(reason="killed"))
        await it.publish(fact, "rover.host.h.exited")
        await it.until(lambda: it.records(MemberLost))
        it.kill("m0")
        await it.leads("m1")
        await asyncio.sleep(1.0)
        return [fact for fact in it.facts(JobFact) if fact.position is not None]

    return stage(scenario, leases={"heartbeat_s": 1000.0})


def judge(facts):
    positions = [fact.position for fact in facts]
    assert positions == sorted(positions), "out of order"
    assert len(positions) == len(set(positions)), "said twice"
    assert [str(fact.member) for fact in facts if isinstance(fact, MemberLost)] == ["worker-0.1"], (
        "never said"
    )


def test_a_successor_goes_on_after_the_last_fact_that_was_published(stage):
    facts = facts_across_a_take_over(stage, Shell)
    judge(facts)
    assert [fact.term for fact in facts if isinstance(fact, MasterElected)] == [1, 2]


@pytest.mark.parametrize(("shell", "what"), [(Forgetful, "never said"), (SaysItAgain, "out of order")])
def test_without_positions_facts_are_lost_or_said_again(stage, shell, what):
    with pytest.raises(AssertionError, match=what):
        judge(facts_across_a_take_over(stage, shell))


# -- a decider that fails ------------------------------------------------------------------------------------------------------


class Stumbles(MasterDecider):
    """Fails at one fact, half-way: what it decided before is evolved already."""

    def _steps(self, input, now):
        if isinstance(input, Observed) and isinstance(input.fact, JobPauseRequested):
            yield JobPaused(workers=1)
            raise ValueError("a fault of ours")
        return (yield from super()._steps(input, now))


def test_nothing_is_decided_any_more_on_a_state_that_no_log_holds(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0", decider=Stumbles)
        worker = await it.worker()
        it.master("m1")
        await it.publish(JobPauseRequested(job="j"))
        await it.until(it.tasks["m0"].done)
        await it.leads("m1")
        await it.until(lambda: it.records(JobPaused))
        await worker.beat()
        return it.tasks["m0"].exception(), [batch.holder for batch in it.batches() if _pauses(batch)]

    error, holders = stage(scenario)
    assert isinstance(error, ExceptionGroup)
    assert "a fault of ours" in repr(error.exceptions)
    assert holders == ["m1"]


def _pauses(batch):
    return any(isinstance(record, JobPaused) for record in batch.records)


# -- what no batch can hold ------------------------------------------------------------------------------------------------------


def test_a_request_that_would_make_a_batch_too_large_is_refused_by_name_and_the_master_goes_on(stage):
    """The record of it would be refused by the broker for ever, in every successor too."""

    async def scenario(it):
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        text = "x" * (MAX_PAYLOAD_BYTES - 400)
        request = FailureRequest(**worker.who, exception="E", traceback=text)
        refused = [await it.ask_once(worker.bus, 1, request) for _ in range(3)]
        return [reply.code for reply in refused], len((await worker.lease()).tokens), it.ends

    codes, granted, ends = stage(scenario)
    assert codes == ["too_large"] * 3
    assert (granted, ends) == (1, {})


def test_the_largest_request_that_is_taken_in_is_logged_and_published(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        text = "x" * (MAX_PAYLOAD_BYTES - HEADROOM_BYTES - 500)
        request = FailureRequest(**worker.who, exception="E", traceback=text)
        reply = await it.ask_once(worker.bus, 1, request)
        await it.until(lambda: it.facts(WorkerFailed))
        return reply, it.facts(WorkerFailed)[0].traceback == text, it.ends

    reply, whole, ends = stage(scenario)
    assert isinstance(reply, FailureReply)
    assert whole
    assert ends == {}


def test_so_is_a_fact_passed_over_that_is_too_large(stage):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        worker = await it.worker()
        await it.publish(JobPauseRequested(job="j", reason="x" * (MAX_PAYLOAD_BYTES - 1000)))
        await it.publish(JobPauseRequested(job="j"))
        await it.until(lambda: it.records(JobPaused))
        await worker.lease()
        return it.shells["m0"].bad_messages, it.ends

    assert stage(scenario) == (1, {})
