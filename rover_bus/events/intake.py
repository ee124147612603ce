"""What arrives at a leader becomes inputs of its decider: checked, decoded, in order; what has ended too many services is left out.

Fed by the shell's subscriptions; feeds `Shell.submit`. Here is known what was received up to where (P17). Apart, because what a
stranger can send is read here, and nothing behind it need doubt a type or a size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rover_bus.events import causes, poison, traces
from rover_bus.events.bus import Bus, Message, Stored
from rover_bus.events.codec import check_input, decode_profile, encode
from rover_bus.events.consumed import LastObserved, consumed_of_what_is_there, newest_since, where_facts_begin
from rover_bus.events.deciding import Serving, Wiring
from rover_bus.events.errors import RoverError
from rover_bus.events.inputs import Input, Observed, Requested, Sampled
from rover_bus.events.journal import Journal
from rover_bus.events.logs import Bound, get_logger
from rover_bus.events.nats_jetstream import copied_sequence
from rover_bus.events.poison import Cause, Failure
from rover_bus.events.positions import FollowerPosition, purged_beyond
from rover_bus.events.profiles import AnyProfile, HostProfile, OperatorProfile
from rover_bus.events.reading import read_fact
from rover_bus.events.streams import FACTS
from rover_bus.events.subjects import Parsed, parse
from rover_bus.events.tenancy import of_control

log = get_logger("rover.shell")

Respond = Callable[[bytes], None]
POISONED = "poisoned_request"
IDLE_REPORTS = 40  # of a position, without a record: then the log says what was consumed all the same


class Submit(Protocol):
    """Decides one input. `cause` is charged where that ends the service."""

    def __call__(self, input: Input, respond: Respond | None = None, *, cause: Cause) -> None: ...


class Intake:
    """Messages in, inputs out.

    `consumed`: by stream, the last sequence that was taken in. `begun_at`: in FACTS, nothing before it can matter here.
    `bad_messages`: how many could not be read, or are left out.
    """

    def __init__(self, bus: Bus, wiring: Wiring, journal: Journal, submit: Submit) -> None:
        self._bus, self._wiring, self._journal, self._submit = bus, wiring, journal, submit
        self.consumed: dict[str, int] = {}
        self.begun_at = 1
        self._began_with = 0  # was consumed before this term
        self.bad_messages = 0
        self._idle = self._seen = 0  # reports since the log grew, and to where it had
        self._last_fact = LastObserved()  # the last fact of others that was observed

    async def begin(self) -> None:
        """Find where facts are read from: behind what the log says was consumed, as far as it is still there. Raises BusError."""
        inputs, since_ms = self._journal.inputs, self._journal.inputs_ms
        self.consumed = await consumed_of_what_is_there(self._bus, inputs, since_ms)
        self._began_with = self.consumed.get(FACTS, 0)
        self.begun_at = self._began_with + 1
        if not self._began_with and self._wiring.begins:
            self.begun_at = await where_facts_begin(self._bus, self._wiring.begins)

    def on_request(self, serving: Serving, message: Message) -> None:
        """Take in a request, or refuse it by a typed error."""
        respond = message.respond or drop
        try:
            check_input(message.body, "a request", self._bus.max_payload_bytes)
            request = serving.read(message)
        except RoverError as error:
            self.bad_messages += 1
            respond(encode(serving.refuse(error.code, str(error))))
            return
        cause = Cause("request", serving.name_of(request))
        if known := self._left_out(cause):
            text = f"{cause.name} ended {known.incarnations} masters in a row ({known.why}): this release decides on it no more"
            respond(encode(serving.refuse(POISONED, text)))
            return
        with Bound(cause=cause.name):
            self._submit(Requested(request), respond, cause=cause)

    def on_fact(self, stored: Stored) -> None:
        """Take in a fact that was not consumed before."""
        if stored.sequence <= self.consumed.get(FACTS, 0):
            return
        if not self._left_out(poison.of_fact(stored)):
            self._take_in(stored)
        self.consumed[FACTS] = stored.sequence
        self._last_fact = LastObserved(stored.sequence, stored.subject, stored.time_ms)

    def on_sample(self, stored: Stored) -> None:
        """Take in a sample; one that cannot be read is lost, as samples may be."""
        cause = Cause("sample", stored.subject)
        try:
            sample = decode_profile(stored.body)
        except RoverError:
            self.bad_messages += 1
            return
        left_out = poison.is_left_out(self._journal.failed, cause, self._wiring.release)
        at = parse(stored.subject)
        if left_out or at is None or not is_of(sample, at):
            self.bad_messages += 1
        elif not isinstance(sample, OperatorProfile):  # nothing is decided by how an operator does
            self._submit(Sampled(of_control(sample, at.tenant)), cause=cause)

    def read_to(self) -> FollowerPosition:
        """Say how far facts are read, as the log says it. Asked for each report of a position."""
        seen = self._journal.sequence
        self._idle = self._idle + 1 if seen == self._seen else 0
        self._seen = seen
        return FollowerPosition(stream=FACTS, subjects=self._wiring.follows, position=self._known)

    def is_bookmark_due(self) -> bool:
        """Whether the log shall say what was consumed although no record follows from it."""
        due = self._idle >= IDLE_REPORTS and self.consumed.get(FACTS, 0) > self._known
        self._idle = 0 if due else self._idle
        return due

    @property
    def _known(self) -> int:
        """Up to where the log says that facts are consumed, or none can matter."""
        return max(self._journal.inputs.get(FACTS, 0), self.begun_at - 1)

    async def say_what_was_purged(self) -> None:
        """Facts purged while no process of ours read are no loss: what they came to is kept, and in the log's snapshot.

        Raises BusError.
        """
        read_to = self._began_with
        missed = read_to and await purged_beyond(self._bus, self._wiring.follows, read_to)
        if missed:
            log.warning(
                "facts were purged before they were read here: the state is the log's snapshot and the newest that are kept",
                job=self._wiring.job,
                read_to=read_to,
                subjects=missed,
            )

    async def still_stored(self) -> bool:
        """Whether the last fact that was taken in is still there. Raises BusError."""
        return not self._last_fact.subject or (await newest_since(self._bus, self._last_fact))[0]

    def _take_in(self, stored: Stored) -> None:
        try:
            check_input(stored.body, "a fact", self._bus.max_payload_bytes)
            fact = read_fact(stored)
        except RoverError as error:
            self.bad_messages += 1
            log.warning("fact skipped", sequence=stored.sequence, why=str(error))
            return
        source = source_of(stored)
        trace = traces.named(traces.of_headers(stored.headers))
        with Bound(job=getattr(fact, "job", "") or self._wiring.job, cause=source, **trace):
            self._submit(Observed(fact, source), cause=poison.of_fact(stored))

    def _left_out(self, cause: Cause) -> Failure | None:
        known = poison.is_left_out(self._journal.failed, cause, self._wiring.release)
        if known is not None:
            log.error(
                "passed over: it ended all that decided on it",
                job=self._wiring.job,
                what=str(cause),
                incarnations=known.incarnations,
                why=known.why,
            )
        return known


def source_of(stored: Stored) -> str:
    """Return what names a stored fact as a cause. A copy of a tenant's is named by its number in the tenant's stream."""
    at, number = parse(stored.subject), copied_sequence(stored.headers)
    tenant = at.tenant if at is not None and number else ""
    return causes.fact(f"{FACTS}:{number or stored.sequence}", tenant)


def is_of(sample: AnyProfile, at: Parsed) -> bool:
    """Whether a sample is of what its subject names: the broker grants rights by subject. Hosts are no tenant's."""
    if isinstance(sample, HostProfile):
        return (at.host, at.tenant) == (sample.host, "")
    if isinstance(sample, OperatorProfile):
        return (at.user, at.tenant) == (sample.operator, "")
    return at.job == sample.job


def drop(body: bytes) -> None:
    """The asker wanted no answer."""
