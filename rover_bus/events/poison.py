"""What no decider can decide on: each incarnation that ended by it is counted in the log, and after three it is left out, by name.

Used by shell.py, journal.py and the deciders. A decider that raises ends, and its successor meets the same again: without a count
that outlives the process the service would fail for ever. The count rides on the log's own batches, so that a standby elsewhere
knows it too.

    fact     passed over, and nothing else with it
    request  refused by a typed error that names it
    sample   not heard
    rule     of a tick or of a take-over: switched off by a record (`rule.switched`), until the release changes

What another release failed on counts nothing. Records are never passed over: a log that cannot be replayed is damaged, and says so.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec

from rover_bus.events.bus import Stored
from rover_bus.events.streams import FACTS

INCARNATIONS = 3  # that one cause may end; the next one goes on without it
MOST_KEPT = 64  # causes other than facts that a log remembers, newest last
Y = TypeVar("Y")
R = TypeVar("R")
What = Literal["fact", "request", "sample", "rule"]


class Cause(msgspec.Struct, frozen=True):
    """What a decider was deciding on. A fact is known by its number and time: numbers come again after a power cut."""

    what: What
    name: str  # of a fact or sample its subject, of a request its method and member, of a rule its own
    sequence: int = 0
    time_ms: int = 0

    def __str__(self) -> str:
        return f"{self.what} {self.name}" + (f" ({FACTS}:{self.sequence})" if self.sequence else "")


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The incarnations that a cause has ended, under one release, and the last error."""

    cause: Cause
    incarnations: int
    why: str = ""
    release: str = ""


class RuleFailed(Exception):
    """One rule of a decider raised: `rule` names it, `__cause__` is what it raised."""

    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule


def apart(rule: str, steps: Generator[Y, None, R]) -> Generator[Y, None, R]:
    """Run a rule's steps as they are; what they raise is charged to the rule, not to the input that it ran after."""
    try:
        return (yield from steps)
    except RuleFailed:
        raise
    except Exception as error:
        raise RuleFailed(rule) from error


def of_fact(stored: Stored) -> Cause:
    """Return what a stored fact is counted as."""
    return Cause("fact", stored.subject, stored.sequence, stored.time_ms)


def charge(failed: Sequence[Failure], cause: Cause, error: BaseException, release: str) -> list[Failure]:
    """Return what is known of failures, with one more incarnation that this cause has ended. A failed rule is the cause itself."""
    if isinstance(error, RuleFailed):
        cause, error = Cause("rule", error.rule), error.__cause__ or error
    known = find(failed, cause, release)
    charged = Failure(
        cause=cause,
        incarnations=1 if known is None else known.incarnations + 1,
        why=repr(error)[:500],
        release=release,
    )
    return [*without(failed, cause), charged]


def find(failed: Sequence[Failure], cause: Cause, release: str) -> Failure | None:
    """Return what is known of a cause under this release, None of one that has ended no service."""
    same = (each for each in failed if each.cause == cause and each.release == release)
    return next(same, None)


def is_left_out(failed: Sequence[Failure], cause: Cause, release: str) -> Failure | None:
    """Return the failure for which a cause is not decided on any more, None of one that is."""
    known = find(failed, cause, release)
    return known if known is not None and known.incarnations >= INCARNATIONS else None


def without(failed: Sequence[Failure], cause: Cause) -> list[Failure]:
    """Return the failures of all other causes; a fact's number names it alone."""
    return [
        each
        for each in failed
        if each.cause != cause and not (cause.sequence and each.cause.sequence == cause.sequence)
    ]


def failing_rules(failed: Sequence[Failure], release: str) -> dict[str, str]:
    """Return the rules that are to be switched off, and why."""
    return {
        each.cause.name: each.why
        for each in failed
        if each.cause.what == "rule" and each.incarnations >= INCARNATIONS and each.release == release
    }


def to_keep(failed: Sequence[Failure], inputs: Mapping[str, int]) -> list[Failure]:
    """Return the failures that a successor can meet again: facts that are not consumed, and the newest of the others."""
    facts = [
        each for each in failed if each.cause.what == "fact" and each.cause.sequence > inputs.get(FACTS, 0)
    ]
    others = [each for each in failed if each.cause.what != "fact"]
    return [*facts, *others[-MOST_KEPT:]]
