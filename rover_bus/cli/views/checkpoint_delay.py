"""Since when a job that trains gets no checkpoint that would survive what its user wants to survive, and why.

Fed by a job's facts in their order, with the broker's time of each (history.py); read by hindrances.py for `rover jobs` and `rover
doctor`. A full disk or a server that cannot stage stops no job (P9): without this line a user learns of it when the cut is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rover_bus.events.checkpoint_facts import (
    CheckpointFailed,
    CheckpointOpened,
    CheckpointPersistOrdered,
    CheckpointReady,
    CheckpointRedundant,
    CheckpointStaged,
    HostStorageBlocked,
)
from rover_bus.events.data_facts import LedgerRewound
from rover_bus.events.facts import JobFact, JobSubmitted
from rover_bus.events.job import CheckpointSpec

LEAST_S = 60.0  # so long a daemon tries again before it says that a part cannot be stored
INTERVALS = 5.0  # without a good cut, though cuts are opened
LONGER = 3.0  # than the last good one took


@dataclass(slots=True)
class CheckpointDelay:
    """What is known since the newest good cut: `good` is `ready`, `redundant` or `staged`, whatever the job file asks for most."""

    good: type[JobFact] | None = None
    every_ms: float = 0.0
    good_cut: int = 0
    good_ms: int = 0
    took_ms: int = 0  # from its opening to the end, of the last good one
    opened: int = 0  # cuts since the last good one
    first_ms: int = 0  # when the first of them was opened, or failed, having been opened before,
    last_ms: int = 0  # and the last
    newest: int = 0  # cut that was opened
    storing: int = (
        0  # the cut that daemons store; 0: none. Until it is over the newest may have no room in memory
    )
    failure: str = ""  # why the last that failed did
    no_room: bool = False  # for the last that failed, in shared memory: no later try of a daemon can help it
    blocked: dict[str, str] = field(default_factory=dict)  # by host: why it cannot write to the storage now
    now_ms: int = 0

    def take(self, fact: JobFact | HostStorageBlocked, time_ms: int) -> None:
        """Take a fact in: of the job, or of a host that stores for it."""
        self.now_ms = time_ms
        match fact:
            case HostStorageBlocked(host=host, reason=reason):
                self.blocked.pop(host, None)
                if reason:
                    self.blocked[host] = reason
            case JobSubmitted(spec=spec) if spec.checkpoint is not None:
                self.good, self.every_ms = _wanted(spec.checkpoint), spec.checkpoint.every_s * 1000
            case LedgerRewound():
                self._begin_again()  # what was on its way is over, and no fault of its own
            case CheckpointOpened(cut=cut):
                self.first_ms = self.first_ms or time_ms
                self.opened, self.last_ms = self.opened + 1, time_ms
                self.newest = cut
            case CheckpointFailed(cut=cut, reason=reason, wanted_bytes=wanted_bytes):
                self.first_ms = self.first_ms or time_ms
                self.failure = f"cut {cut} failed: {reason}"
                self.no_room = wanted_bytes > 0
                self.storing = 0 if self.storing == cut else self.storing
            case CheckpointStaged() if self.no_room:
                self._begin_again()
            case CheckpointPersistOrdered(cut=cut):
                self.storing = cut
            case CheckpointReady():
                self.blocked.clear()
            case _:
                pass  # the others do not matter here
        if self.good is not None and isinstance(fact, self.good):
            self.took_ms = time_ms - self.first_ms if self.first_ms else self.took_ms
            self.good_cut, self.good_ms = getattr(fact, "cut", 0), time_ms
            self.storing = 0 if self.storing == self.good_cut else self.storing
            self._begin_again()

    def _begin_again(self) -> None:
        self.opened, self.first_ms, self.last_ms, self.failure = 0, 0, 0, ""
        self.no_room = False

    def __str__(self) -> str:
        """Say what is late and why, and at once that a storage takes nothing; "" while all is well."""
        for host, reason in self.blocked.items():
            return f"no checkpoint can be stored from host {host}: {reason}"
        if self.good is None or not self.first_ms:
            return ""
        if not self.no_room and self.now_ms - self.first_ms <= self._bound_ms():
            return ""
        since_ms = self.now_ms - (self.good_ms or self.first_ms)
        newest = f"the newest is cut {self.good_cut}" if self.good_ms else "there is none yet"
        return f"no checkpoint {_WORDS[self.good]} for {_spoken(since_ms / 1000)} ({newest}): {self._why()}"

    def _why(self) -> str:
        if self.failure or not self.storing:
            return self.failure or f"servers have not all staged cut {self.newest}"
        return f"cut {self.storing} is being stored"

    def _bound_ms(self) -> float:
        """How long after the opening of the first of them the line stays empty."""
        if self.failure:
            return LEAST_S * 1000
        between_ms = max(self.every_ms, (self.last_ms - self.first_ms) / max(self.opened - 1, 1))
        return max(LEAST_S * 1000, INTERVALS * between_ms, LONGER * self.took_ms)


_WORDS: dict[type[JobFact], str] = {
    CheckpointReady: "has become ready",
    CheckpointRedundant: "has come to a second host",
    CheckpointStaged: "has been staged",
}


def _wanted(spec: CheckpointSpec) -> type[JobFact]:
    if spec.persist:
        return CheckpointReady
    return CheckpointRedundant if spec.copies or spec.parity else CheckpointStaged


def _spoken(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
