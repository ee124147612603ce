"""Failures and what they are charged to: poison batches, deterministic errors, budgets (protocol, "Poison and faults"; S2, S28).

Fed with `WorkerFailed` records; asked by the decider. A user exception or a crash is charged to the first uncommitted batch of the
lease it happened on; preemptions, evictions and kills from outside have a budget of their own and are no fault of the program.
"""

from __future__ import annotations

import msgspec

from rover_bus.events.facts import WorkerFailed
from rover_bus.events.identity import Member


class Charges(msgspec.Struct, omit_defaults=True):
    """Which worker failed on what. `since_commit` is what failed while nothing was committed."""

    by_batch: dict[tuple[int, int], list[Member]] = {}
    since_commit: list[tuple[str, int, Member]] = []
    charged: list[Member] = []  # already charged: an exit after a report is the same failure
    relaunches: int = 0
    preemptions: int = 0

    def add(self, record: WorkerFailed) -> None:
        self.note(record.member)
        if record.charged_batch >= 0:
            self.by_batch.setdefault((record.charged_epoch, record.charged_batch), []).append(record.member)
        self.since_commit.append((record.fingerprint, record.charged_batch, record.member))

    def note(self, member: Member) -> None:
        """What this member met is dealt with."""
        self.charged.append(member)
        del self.charged[:-1000]

    def commit(self) -> None:
        """Something was committed: failures before it were not deterministic."""
        self.since_commit.clear()

    def close_epoch(self, epoch: int) -> None:
        self.by_batch = {key: members for key, members in self.by_batch.items() if key[0] > epoch}

    def poisoned(self, epoch: int, batch: int, limit: int) -> list[Member]:
        """Return the distinct incarnations that failed on a batch when they reach the limit, else nothing."""
        members = list(dict.fromkeys(self.by_batch.get((epoch, batch), [])))
        return members if len(members) >= limit else []

    def deterministic(self, limit: int) -> str:
        """Return the fingerprint that failed on `limit` incarnations at different batches while nothing committed, else ""."""
        seen: dict[str, tuple[set[int], list[Member]]] = {}
        for fingerprint, batch, member in self.since_commit:
            if not fingerprint:
                continue
            batches, members = seen.setdefault(fingerprint, (set(), []))
            batches.add(batch)
            if member not in members:
                members.append(member)
            if len(members) >= limit and (len(batches) > 1 or batch < 0):
                return fingerprint
        return ""
