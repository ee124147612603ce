"""Work of a server that can wait a few milliseconds: rows on their way to another server, while workers train.

Fed and driven by `server`, with its time. A worker's request that arrives while a chunk of rows is being copied waits for it, and
all servers of the step with it. So a chunk is taken up soon after a worker was given values, when the worker is the one to be busy
(after a push its next pull is on its way already), and only as long as such work is usually done before the next request comes. Or
at once, while no worker asks for anything. Apart, because it is a decision, and `server` is a shell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

MOST_S = 0.01  # that work waits for a worker's request to be answered
QUIET_S = 0.1  # without a request: no worker is training
LEARNING = 0.1  # how much one gap, or piece of work, changes what is expected of the next


class QueuedWork(NamedTuple):
    """Something to do; `drop` instead, when the server ends before."""

    do: Callable[[], None]
    drop: Callable[[], object]
    until_s: float


class Patience:
    """What waits, in order."""

    def __init__(self) -> None:
        self._waiting: deque[QueuedWork] = deque()
        self._answered_s = float("-inf")
        self._gave_s = float("-inf")  # values, and no request has come since
        self._gap_s = 0.0  # that usually passes between values and the next request
        self._work_s = 0.0  # that a piece of work usually takes
        self._opportune = False

    def put(self, do: Callable[[], None], drop: Callable[[], object], now_s: float) -> None:
        """Let something wait."""
        self._waiting.append(QueuedWork(do, drop, now_s + MOST_S))

    def note_request(self, now_s: float) -> None:
        """A worker has asked for something: its answer comes first."""
        gap_s = now_s - self._gave_s
        if gap_s < QUIET_S:
            self._gap_s += LEARNING * (min(gap_s, MOST_S) - self._gap_s)
        self._gave_s, self._opportune = float("-inf"), False

    def note_answer(self, now_s: float, gave_values: bool) -> None:
        """A worker was answered. With values it has something to do: the next moments are the best."""
        self._answered_s, self._opportune = now_s, gave_values
        self._gave_s = now_s if gave_values else float("-inf")

    def note_work(self, seconds: float) -> None:
        """A piece of work is done."""
        self._work_s += LEARNING * (min(seconds, MOST_S) - self._work_s)

    def _fits(self, now_s: float) -> bool:
        """Whether what begins now is done in time, as far as one knows."""
        return now_s + self._work_s <= self._gave_s + self._gap_s

    def take(self, now_s: float) -> QueuedWork | None:
        """Return one piece of work if this is the time for it: right after values were given, even if they do not suffice."""
        opportune, self._opportune = self._opportune or self._fits(now_s), False
        if not self._waiting:
            return None
        quiet = now_s - self._answered_s > QUIET_S
        if opportune or quiet or now_s >= self._waiting[0].until_s:
            return self._waiting.popleft()
        return None

    def pause_s(self, now_s: float, longest_s: float) -> float:
        """Return how long the server may wait for requests."""
        if not self._waiting:
            return longest_s
        if now_s - self._answered_s > QUIET_S or self._fits(now_s):
            return 0.0
        return max(0.0, self._waiting[0].until_s - now_s)

    def drop(self) -> None:
        """The server ends."""
        while self._waiting:
            self._waiting.popleft().drop()
