"""The one service shell: stand by, take over, replay, subscribe, decide, append, answer, publish.

Masters and the Brain are a pure decider behind this shell; they differ in what they serve and follow. The order of effects is
always the same: decide -> append (group commit: all that was decided while the last append was under way) -> replies -> facts
and buckets. Until an append is known to be stored, nothing leaves (protocol P16), and no append waits for what leaves. A standby
follows the log from its newest snapshot on, as it grows, so a take-over replays nothing but the tail. The shell has the clock, the
bus and the tasks; it decides nothing. intake.py makes inputs of what arrives, outbox.py publishes what leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

from rover_bus.events import poison, positions
from rover_bus.events.batch import Published
from rover_bus.events.bus import Bus, ConnectionState, Stored, Subscription
from rover_bus.events.codec import encode
from rover_bus.events.deciding import Hold, LogDecider, ServiceProcess, Serving, Wiring, try_to_write
from rover_bus.events.errors import WrongSequence
from rover_bus.events.fact import Record
from rover_bus.events.formats import NewerFormat, follow_format, take_format
from rover_bus.events.inputs import BusLost, BusRegained, Continued, Input, Ticked, TookOver
from rover_bus.events.insisting import insist
from rover_bus.events.intake import Intake, Respond, drop
from rover_bus.events.journal import ChainBroken, Journal, LogDamaged, snapshot_chunks
from rover_bus.events.leadership import Deposed, Leadership
from rover_bus.events.log import SnapshotChunk
from rover_bus.events.logs import get_logger
from rover_bus.events.moments import Moments
from rover_bus.events.outbox import Outbox, Outgoing, ReadyFacts
from rover_bus.events.poison import Cause, Failure
from rover_bus.events.published import newest_published
from rover_bus.events.retention import Retention
from rover_bus.events.streams import FACTS, LOG, PROFILES
from rover_bus.events.tracing import tracer_of

log = get_logger("rover.shell")

TICK = Cause("rule", "tick")  # what no rule of a tick is to blame for


class Shell:
    """One service process's part in one log: standby first, leader when its time comes."""

    journal_type = Journal
    leadership_type = Leadership
    intake_type = Intake

    def __init__(
        self,
        bus: Bus,
        decider: LogDecider[Any],
        wiring: Wiring,
        process: ServiceProcess,
        serving: Serving | None = None,
    ) -> None:
        self.bus, self.decider, self.wiring, self.clock = bus, decider, wiring, process.clock
        self.holder = holder = process.holder
        self.journal = self.journal_type(
            bus, wiring.log_subject, wiring.job, holder, wiring.batch_type, process.wall_ms
        )
        self.leadership = self.leadership_type(
            bus, wiring.leader_key, holder, self.clock, wiring.leader_ttl_s
        )
        self.outbox = Outbox(bus, wiring.job, holder, Moments(bus, wiring, decider.anew).facts_after)
        if tracer := tracer_of(bus, wiring.spans, decider):
            self.outbox.traceparent = tracer.traceparent
        self._tracer = tracer
        self.leading, self.serving = False, serving
        self._pending: list[Record] = []
        self._replies: list[tuple[Respond, Any]] = []
        self._held: dict[Hashable, Respond] = {}  # how to answer once the decider releases it
        self._appending = False
        self._wake = asyncio.Event()
        self._going_on: asyncio.TimerHandle | None = None
        self._subscriptions: list[Subscription] = []
        self._ready = ReadyFacts()
        self._intake = self.intake_type(bus, wiring, self.journal, self.submit)
        self._shaken = False  # the connection was lost while we were no leader
        self._following = (
            False  # the log, as a standby: a leader that took its own records in would count them twice
        )
        self._bookmark = False  # what was consumed shall be logged, also if nothing follows from it
        self._first_chunk = 0
        self._snapshots = 0
        self._returned = asyncio.Event()
        self._damage: asyncio.Future[LogDamaged | Deposed] = asyncio.get_running_loop().create_future()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._charged: list[Failure] = []  # what is known of failures, with the one that broke the decider
        bus.on_connection(self._on_connection)

    @property
    def bad_messages(self) -> int:
        """How many messages could not be read, or are left out."""
        return self._intake.bad_messages

    # -- the run of a service -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Stand by, take over, lead. Ends by cancellation, or raises Deposed when another leads."""
        wiring = self.wiring
        key = (
            positions.of_all(self.holder) if wiring.of_all_jobs else positions.of_job(wiring.job, self.holder)
        )
        reporting = asyncio.create_task(positions.report_for_ever(self.bus, key, self._read_to))
        try:
            await self._stand_by()
            await self._lead()
        except ChainBroken as broken:
            raise await self.journal.judge(broken) from None
        finally:
            if self._going_on is not None:
                self._going_on.cancel()
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
            for subscription in self._subscriptions:
                await subscription.stop()
            if self.leading:
                self.leading = False
                await self.leadership.resign()

    async def _stand_by(self) -> None:
        self._following = True
        beginning = await insist(self.journal.beginning)
        follower = await insist(
            lambda: self.bus.follow(LOG, [self.wiring.log_subject], self._observe, start=beginning)
        )
        try:
            await self._acquire()
        finally:
            self._following = False  # first: what is still delivered is void
            await follower.stop()
        keeper = asyncio.create_task(self.leadership.keep())
        try:
            await self._take_over()
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def _acquire(self) -> None:
        """Wait for the lead, or learn that this log cannot be led from: then leave the key to others (LogDamaged)."""
        acquiring = asyncio.ensure_future(self.leadership.acquire())
        try:
            waiting: list[asyncio.Future[Any]] = [acquiring, self._damage]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if self._damage.done():
                raise self._damage.result()
            await acquiring
        finally:
            acquiring.cancel()

    def _observe(self, stored: Stored) -> None:
        """Follow the log as a standby. An error is not this callback's to raise: it ends the standing by."""
        if self._damage.done() or not self._following:
            return
        try:
            self._replay(stored)
        except (LogDamaged, Deposed) as error:
            self._damage.set_result(error)

    async def _take_over(self) -> None:
        """Catch up with the log, then write the record that begins our term; only then answer (P15, P16)."""
        while True:
            self._shaken = False
            for stored in await self.journal.replay_from(self.journal.sequence + 1):
                self._replay(stored)
            if not await self.journal.at_tail():
                continue
            left, subject, confirmed = await newest_published(
                self.bus, self.wiring.publishes, self.journal.published, self.decider.position_of
            )
            lost = (left.term, left.batch) > self.journal.decided
            self.outbox.recall(left, subject)
            self.outbox.put(self._after(left, confirmed))
            replayed, sequence = self.journal.records_replayed, self.journal.sequence
            self.journal.term = max(self.journal.term, left.term) + 1  # never one that others have observed
            self.journal.number = 0
            failing = poison.failing_rules(self.journal.failed, self.wiring.release)
            term, release = self.journal.term, self.wiring.release
            took_over = TookOver(self.holder, term, replayed, lost, sequence, failing, release)
            records = await self._decide_take_over(took_over)
            for rule in failing:  # the records hold them from here on
                self.journal.failed = poison.without(self.journal.failed, Cause("rule", rule))
            self.journal.timeline = self.decider.timeline
            self.journal.published, self.journal.waiting = self.outbox.left, self.outbox.waiting
            first, *rest = self.journal.fit_together(records)
            try:
                await self.journal.append(first.stored, self.journal.inputs, candidate=True)
            except WrongSequence:
                # Only an older term wrote meanwhile: what we decided is void, the state must be rebuilt without it.
                await self._start_again()
                continue
            for each in rest:
                await self.journal.append(each.stored, self.journal.inputs)
            log.info("leads", job=self.wiring.job, term=self.journal.term, replayed=replayed, after=sequence)
            self._release(records)
            return

    async def _decide_take_over(self, took_over: TookOver) -> Sequence[Record]:
        """Decide what a new leader does first; what makes that impossible is charged like everything else."""
        try:
            records = self.decider.decide(took_over, self.clock()).effects
            try_to_write(self.decider, records, self.journal.term)
        except Exception as error:
            self.journal.failed = poison.charge(
                self.journal.failed, Cause("rule", "take-over"), error, self.wiring.release
            )
            await self.journal.append([], self.journal.inputs)
            raise
        return records

    async def _start_again(self) -> None:
        raise Deposed(f"{self.wiring.log_subject} grew during the take-over: starting again as a standby")

    def _replay(self, stored: Stored) -> None:
        beginning = self.journal.sequence == 0
        snapshot, records = self.journal.take(stored)
        if beginning:
            self._ready.begin(whole=self.journal.is_whole)
        self._ready.learn(self.journal.published, self.journal.waiting)
        if snapshot is not None:
            self.decider.restore(snapshot)
        for index, record in enumerate(records):
            try:
                self.decider.evolve(record)
            except (ValueError, LookupError) as error:
                raise LogDamaged(
                    f"batch {stored.sequence} of {self.wiring.log_subject} does not follow from what stands before it ({error!r}): "
                    f"restore the log from a backup"
                ) from error
            self._ready.note(self.decider.outgoing(record, (stored.sequence, index), self.journal.term))
            if self._tracer is not None:
                self._tracer.replayed(record, stored.sequence, self.journal.time_ms)

    def _after(self, left: Published, confirmed: bool) -> list[Outgoing]:
        """What former leaders decided but had not published when they ended (P18).

        Where not all of it is at hand, or facts that had left are gone with a power cut, the log has it.
        """
        if confirmed and self._ready.whole:
            return [*self.decider.standing(), *self._ready.after(left)]
        self.outbox.owe(self.journal.sequence)
        return self.decider.standing()

    async def _lead(self) -> None:
        self.leading = True
        if self._shaken:
            raise Deposed(
                "the broker was away during the take-over, and may have forgotten what was read: again"
            )
        await insist(self._intake.begin)
        term = self.journal.term
        self.outbox.timeline = self.journal.timeline
        if self.serving is not None:
            on_request = partial(self._intake.on_request, self.serving)
            endpoints = dict.fromkeys(self.wiring.endpoints(term), on_request)
            metadata = {**self.wiring.metadata, "term": str(term), "holder": self.holder}
            self._subscriptions.append(
                await insist(lambda: self.bus.serve(self.wiring.service, endpoints, metadata=metadata))
            )
        self._subscriptions.append(
            await insist(
                lambda: self.bus.follow(
                    FACTS, self.wiring.follows, self._on_fact, start=self._intake.begun_at
                )
            )
        )
        if self.wiring.samples:
            self._subscriptions.append(
                await insist(
                    lambda: self.bus.follow(
                        PROFILES, self.wiring.samples, self._intake.on_sample, start="new"
                    )
                )
            )
        await insist(lambda: self.leadership.announce(term, self.journal.timeline))
        await take_format(self.bus, self.journal, self.outbox)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.leadership.keep())
                tasks.create_task(self.outbox.run())
                tasks.create_task(self._append_for_ever())
                tasks.create_task(self._tick_for_ever())
                tasks.create_task(self._look_back_for_ever())
                tasks.create_task(insist(self._intake.say_what_was_purged))
                tasks.create_task(self._retention().run())
                tasks.create_task(follow_format(self.bus, self.journal, self.outbox))
                if self._tracer is not None:
                    tasks.create_task(self._tracer.run())
        except BaseExceptionGroup as group:
            damaged = group.subgroup((LogDamaged, NewerFormat))
            raise damaged.exceptions[0] if damaged is not None else group from None

    def _retention(self) -> Retention:
        wiring = self.wiring
        followers = (
            [positions.EVERY] if wiring.of_all_jobs else [positions.of_job(wiring.job), positions.of_all()]
        )
        return Retention(self.bus, self.journal, self.outbox, wiring.keep, wiring.purges, followers)

    def _read_to(self) -> positions.FollowerPosition:
        """Say how far we are: no service shall purge what we have not read, nor what the log does not say that we did (P17)."""
        if not self.leading:
            own = self.wiring.log_subject
            return positions.FollowerPosition(stream=LOG, subjects=[own], position=self.journal.sequence)
        position = self._intake.read_to()
        if self._intake.is_bookmark_due():
            self._bookmark = True
            self._wake.set()
        return position

    # -- inputs ----------------------------------------------------------------------------------------------------------

    def submit(self, input: Input, respond: Respond | None = None, cause: Cause = TICK) -> None:
        """Decide one input now; its records join the pending batch, its reply waits for them.

        A decider that raises has evolved what no log will hold: nothing is decided on that state any more, it is built again.
        `cause` is charged for it, unless a rule that ran behind it is to blame.
        """
        if self._broken.done():
            return
        try:
            records, reply, released, unfinished = self.decider.decide(input, self.clock())
            try_to_write(self.decider, records, self.journal.term)
        except Exception as error:  # noqa: BLE001 - it ends our lead, in the task that waits for it
            self._break(error, cause)
            return
        if records:
            self._pending += records
            self._wake.set()
        for key, answer in released:
            self._answer(self._held.pop(key, drop), answer)
        if unfinished and self._going_on is None:  # after what has arrived by then
            self._going_on = asyncio.get_running_loop().call_later(0.0, self._go_on)
        if respond is None:
            return
        if isinstance(reply, Hold):
            self._held[reply.key] = respond
        else:
            self._answer(respond, reply)

    def _go_on(self) -> None:
        self._going_on = None
        self.submit(Continued())

    def _answer(self, respond: Respond, reply: Any) -> None:
        """Answer at once, or once all that was decided so far is stored. None: no answer is waited for."""
        if reply is None:
            return
        if self._pending or self._appending or self.clock() >= self.leadership.leads_until:
            self._replies.append((respond, reply))
            self._wake.set()
        else:
            respond(encode(reply))

    def _break(self, error: Exception, cause: Cause) -> None:
        self._charged = poison.charge(self.journal.failed, cause, error, self.wiring.release)
        blamed = self._charged[-1]
        log.error(
            "could not decide",
            job=self.wiring.job,
            on=str(blamed.cause),
            why=blamed.why,
            incarnations=blamed.incarnations,
        )
        self._broken.set_exception(error)
        self._wake.set()

    def _on_fact(self, stored: Stored) -> None:
        if not self._broken.done():  # what it came to would not be decided on, and must not count as consumed
            self._intake.on_fact(stored)

    def _on_connection(self, state: ConnectionState) -> None:
        if not self.leading:
            self._shaken = True
            if state == "connected":
                self.leadership.wait_one_ttl()
            return
        lost = state != "connected"
        if not lost:
            self.outbox.doubt()
            self._returned.set()
        self.submit(BusLost() if lost else BusRegained())

    async def _look_back_for_ever(self) -> None:
        """The broker is back: does it still have what it acknowledged? If not, what we know is void, also if we never append again.

        A service that stops here is built again from what is left, and publishes again what followed from it (P18, P21).
        """
        while True:
            await self._returned.wait()
            self._returned.clear()
            if not await insist(self.journal.still_there):
                raise Deposed(
                    f"{self.wiring.log_subject} lost its tail (a power cut?): starting again as a standby"
                )
            if not await insist(self.outbox.still_there):
                raise Deposed(
                    f"facts of {self.wiring.job} are lost (a power cut?): starting again as a standby"
                )
            if not await insist(self._intake.still_stored):
                raise Deposed(
                    f"facts that {self.wiring.job} received are lost (a power cut?): others will bear their numbers"
                )

    async def _tick_for_ever(self) -> None:
        unanswered = False
        while True:
            await asyncio.sleep(self.wiring.tick_s)
            unanswered = self._look_at_the_lead(unanswered)
            self.submit(Ticked(self.journal.wall_ms()))
            if self.journal.batches_since_snapshot >= self.wiring.keep.snapshot_batches:
                self._take_snapshot()

    def _look_at_the_lead(self, unanswered: bool) -> bool:
        """Whether renewals of the lead go unanswered: a broker hangs long before its connections end, and hears no member (P19)."""
        now_unanswered = self.clock() >= self.leadership.leads_until
        if now_unanswered != unanswered:
            self.submit(BusLost() if now_unanswered else BusRegained())
        return now_unanswered

    def _take_snapshot(self) -> None:
        """The whole state as records behind what is pending; a take-over begins with it once it is stored (P21)."""
        self._snapshots += 1
        self.journal.batches_since_snapshot = 0
        self._pending += snapshot_chunks(self._snapshots, self.decider.dump())
        self._wake.set()

    # -- the group commit --------------------------------------------------------------------------------------------------

    async def _append_for_ever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._broken.done():
                await self._end_with_the_decider()
            records, self._pending = self._pending, []
            replies, self._replies = self._replies, []
            if records or self._bookmark:
                self._bookmark = False
                await self._append(records, replies)
            elif replies:
                await self._answer_within_lease(replies)

    async def _end_with_the_decider(self) -> None:
        """Raise what the decider raised; what ended it is charged in the log first, or it would end every successor too.

        What else was decided and not stored is not: it will be decided again.
        """
        self.journal.failed = self._charged
        await self.journal.append([], self.journal.inputs)
        await self._broken

    async def _append(self, records: list[Record], replies: list[tuple[Respond, Any]]) -> None:
        """Store everything, in pieces if need be; only the last piece says that its inputs are consumed (P17)."""
        before, consumed = self.journal.inputs, dict(self._intake.consumed)
        self.journal.timeline = self.outbox.timeline = self.decider.timeline
        self._appending = True
        try:
            appends = self.journal.cut(records)
            for each in appends:
                self.journal.published, self.journal.waiting = self.outbox.left, self.outbox.waiting
                inputs = consumed if each is appends[-1] else before
                sequence = await self.journal.append(each.stored, inputs)
                if self._broken.done():
                    return  # what leaves would be made of a broken state: successors tell it
                self._release(each.whole)
                self._note_snapshot(each.stored, sequence)
        finally:
            self._appending = False
        for respond, reply in replies:
            respond(encode(reply))

    def _note_snapshot(self, piece: Sequence[Record], sequence: int) -> None:
        """A snapshot that is whole in the log is where the next take-over begins: every batch from here on names it."""
        chunk = piece[0] if piece else None
        if not isinstance(chunk, SnapshotChunk):
            return
        if chunk.index == 0:
            self._first_chunk = sequence
        if chunk.index + 1 == chunk.count:
            self.journal.snapshot = self._first_chunk

    async def _answer_within_lease(self, replies: list[tuple[Respond, Any]]) -> None:
        """Replies that rest on no append of ours wait until we know that we lead (P15)."""
        while self.clock() >= self.leadership.leads_until:  # noqa: ASYNC110 - it is time that is waited for
            await asyncio.sleep(0.02)
        for respond, reply in replies:
            respond(encode(reply))

    def _release(self, records: Sequence[Record]) -> None:
        items: list[Outgoing] = []
        for index, record in enumerate(records):
            items += self.decider.outgoing(record, (self.journal.sequence, index), self.journal.term)
        self.outbox.put(items)
        if self._tracer is not None:
            self._tracer.released(records, self.journal.sequence, self.journal.time_ms)
