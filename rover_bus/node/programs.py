"""What a host knows of the program of a job: untried, being tried, starts, or refused until it is tried again. Pure.

Part of the platform's state, for each job that was submitted (members.py); the platform does what is decided here
(local/trials.py). A worker is started only after a trial that was begun for that: what is refused never costs the job a failure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from rover_bus.events import causes
from rover_bus.events.host_facts import HostProgramMended, HostProgramRefused
from rover_bus.events.programs import ProgramReply

AGAIN_FIRST_S, AGAIN_MAX_S = 1.0, 60.0
MOST_DOUBLINGS = 16  # of the wait: far above its maximum
FRESH_S = 2.0  # what was answered to a start that did not come is no answer for the next one


@dataclass(frozen=True, slots=True)
class Trial:
    """`used`: no worker may be started on the answer (any more). `anew`: what is remembered of former answers does not count.

    `published`: the refusal that was published last, "" after none or when it is mended; None: the broker may have forgotten which.
    """

    state: Literal["untried", "trying", "starts", "refused"] = "untried"
    used: bool = False
    anew: bool = False
    for_start: bool = False
    answered_s: float = 0.0
    path: str = ""
    problem: str = ""
    refusals: int = 0  # in a row
    not_before_s: float = 0.0
    published: str | None = ""
    ever_refused: bool = False

    def lets_start(self, now_s: float) -> bool:
        """Whether a worker may be started now."""
        return self.state == "starts" and not self.used and now_s <= self.answered_s + FRESH_S

    def is_due(self, wanted: bool, now_s: float) -> bool:
        """Whether the program is to be tried now. wanted: a worker waits for the answer."""
        if self.state == "refused":
            return now_s >= self.not_before_s
        again = self.state == "starts" and wanted and not self.lets_start(now_s)
        return self.state == "untried" or again

    def begin(self, for_start: bool) -> Trial:
        """Return the trial under way. for_start: a worker waits for it; else its answer is for people, and too old for a start."""
        return replace(self, state="trying", for_start=for_start)

    def use(self) -> Trial:
        """A worker was started."""
        return replace(self, used=True)

    def forget_published(self) -> Trial:
        """The broker may have forgotten what was published: all is tried, and published, once more."""
        return replace(self, state="untried", published=None) if self.ever_refused else self

    def doubt(self) -> Trial:
        """A worker ended early by a fault of its own: the next trial believes nothing that is remembered."""
        return replace(self, used=True, anew=True)

    def answer(self, reply: ProgramReply, now_s: float) -> Trial:
        """Return the trial after its answer. One that came to no end refuses nothing, and mends nothing."""
        if reply.state == "starts" or (reply.state == "unknown" and not self.refusals):
            return Trial("starts", used=not self.for_start, answered_s=now_s, ever_refused=self.ever_refused)
        path, problem = (reply.path, reply.problem) if reply.state == "refused" else (self.path, self.problem)
        wait_s = min(AGAIN_FIRST_S * 2.0 ** min(self.refusals, MOST_DOUBLINGS), AGAIN_MAX_S)
        return Trial(
            "refused",
            anew=True,
            path=path,
            problem=problem,
            refusals=self.refusals + 1,
            not_before_s=now_s + wait_s,
            published=f"{path}: {problem}",
            ever_refused=True,
        )


UNTRIED = Trial()


def program_fact(
    trial: Trial, host: str, daemon: str, job: str, uid: str
) -> HostProgramRefused | HostProgramMended:
    """Return the fact that a program does not start on this host, and why; or that it would start again."""
    if not trial.published:
        return HostProgramMended(host=host, job=job, uid=uid, cause=causes.timer("program", causes.job(uid)))
    return HostProgramRefused(
        host=host,
        job=job,
        uid=uid,
        daemon=daemon,
        path=trial.path,
        problem=trial.problem,
        cause=causes.job(uid),
    )
