"""The workers of a synchronous job that take each step together: how many batches each was granted, and what broke their step.

Part of the ledger of such a job (`[workers] training = "synchronous"`), None in any other. Changed by the evolution of leases and
members, asked by `stepping`. A *group* is the workers between two changes of their number; the program has its barrier between
just these (docs/design/0043). Each of them is granted as many batches as the others, so that none waits at the barrier for a step
that another will never take.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rover_bus.events.facts import WorkerFailed
from rover_bus.events.identity import Member
from rover_bus.events.log import REPEATED, Granted

STEP_BROKEN = "step_broken"  # why a member is ended that waits at a barrier for one that is gone


class Lockstep(msgspec.Struct, omit_defaults=True):
    """One group after another, by number. `members` is empty between two groups.

    `broken`: why the present group takes no step any more, "" while it does. `outside`: a member was lost through no fault of the
    program. `rewound`: the leases of the step are void, and members may wait at its barrier. `failures`: what members met, not
    charged yet (`stepping.follow`).
    """

    number: int = 0
    members: list[Member] = []  # by index
    steps: dict[int, int] = {}  # batches granted in this group, by worker index
    total: int = 0  # batches that each member was granted, or is still to be
    granted: int = 0  # by all together
    last: int = -1  # the batch that was granted last: what a step without one of its own repeats
    repeats: list[int] = []  # tokens of leases that repeat a batch of another worker
    broken: str = ""
    outside: bool = False
    rewound: bool = False
    failures: list[WorkerFailed] = []

    @property
    def mark(self) -> object:
        """What a worker waits for that is granted nothing: it changes when there may be something."""
        return self.number, self.total, self.owed == 0, self.broken

    @property
    def owed(self) -> int:
        """Batches that members are still to be granted in steps that others were granted already."""
        return self.total * len(self.steps) - self.granted

    def owes(self, worker: int) -> int:
        """Return the batches that one worker is still to be granted; 0 when it is none of the group."""
        return self.total - self.steps[worker] if worker in self.steps else 0

    def has(self, member: Member) -> bool:
        """Whether this very incarnation takes the steps of the present group."""
        return member in self.members

    def failed(self, member: Member) -> bool:
        """Whether a member has failed and was not judged yet."""
        return any(each.member == member for each in self.failures)

    # -- evolving ------------------------------------------------------------------------------------------------------

    def form(self, number: int, members: list[Member]) -> None:
        """Begin a group: its first step is still to be granted."""
        self.number, self.members = number, members
        self.steps = {member.index: 0 for member in members}
        self._forgive()

    def end(self) -> None:
        """What broke the group was judged: there is none until the next is formed."""
        self.members, self.steps = [], {}
        self._forgive()

    def grant(self, record: Granted, next_token: int) -> None:
        """Note what a worker was granted."""
        batches = sum(record.counts)
        self.steps[record.worker] = steps = self.steps.get(record.worker, 0) + batches
        self.total, self.granted = max(self.total, steps), self.granted + batches
        if record.peer == REPEATED:
            self.repeats += range(record.first_token, next_token)
        else:
            self.last = record.firsts[-1] + record.counts[-1] - 1

    def take_back(self, worker: int, batches: int) -> None:
        """A worker never got these batches (P7): they are owed to it again."""
        if worker in self.steps:
            self.steps[worker] -= batches
            self.granted -= batches

    def forget(self, tokens: Iterable[int]) -> None:
        """These leases are over."""
        if self.repeats:
            over = set(tokens)
            self.repeats = [token for token in self.repeats if token not in over]

    def fail(self, failure: WorkerFailed) -> None:
        """A member failed; what that is charged to is seen when the others have ended."""
        self.failures.append(failure)
        self.broken = self.broken or f"{failure.member} failed"

    def lose(self, member: Member, *, holds: bool, outside: bool, how: str) -> None:
        """A member is gone. One that had taken all its steps breaks none of the others'."""
        if not self.has(member):
            return
        if holds or self.owes(member.index):
            self.broken = self.broken or f"{member} {how}"
            self.outside |= outside

    def rewind(self) -> None:
        """The job went back: whatever step the members are in, its batches are no longer leased."""
        self.repeats = []
        if self.members:
            self.broken = self.broken or "the job went back to a checkpoint"
            self.outside = self.rewound = True

    def _forgive(self) -> None:
        self.total = self.granted = 0
        self.broken, self.outside, self.rewound, self.failures = "", False, False, []
