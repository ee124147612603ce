"""Facts that no decider can decide on: each life that ended by one is counted in the log, and after three it is passed over.

Used by shell.py and journal.py. A decider that raises ends, and its successor hears the same fact again: without a count that
outlives the process the service would fail for ever. The count rides on the log's own batches, so that a standby elsewhere knows it
too. Only inputs are passed over, never records: a log that cannot be replayed is damaged, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rover_bus.events.bus import Stored
from rover_bus.events.streams import FACTS

LIVES = 3  # that a fact may end; the next one goes on without it


class FailedFact(msgspec.Struct, frozen=True, kw_only=True):
    """A stored fact by its number and time (numbers come again after a power cut), and the lives that it has ended."""

    sequence: int
    subject: str
    time_ms: int
    lives: int
    why: str = ""


def charge(failed: Sequence[FailedFact], stored: Stored, error: BaseException | None) -> list[FailedFact]:
    """Return what is known of failures, with one more life that this fact has ended."""
    known = find(failed, stored)
    charged = FailedFact(
        sequence=stored.sequence,
        subject=stored.subject,
        time_ms=stored.time_ms,
        lives=1 if known is None else known.lives + 1,
        why=repr(error)[:500],
    )
    return [*(each for each in failed if each.sequence != stored.sequence), charged]


def find(failed: Sequence[FailedFact], stored: Stored) -> FailedFact | None:
    """Return what is known of a fact that has ended lives, None of one that has not."""
    same = (each for each in failed if (each.sequence, each.time_ms) == (stored.sequence, stored.time_ms))
    return next(same, None)


def not_yet_consumed(failed: Sequence[FailedFact], inputs: Mapping[str, int]) -> list[FailedFact]:
    """Return the failures that a replay would meet again; the others are history."""
    return [each for each in failed if each.sequence > inputs.get(FACTS, 0)]
