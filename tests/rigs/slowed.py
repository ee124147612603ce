"""Processes that run only a share of the time: SIGSTOP and SIGCONT in turn, as a slow host or a throttled core would have it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

CYCLE_S = 0.5


class Slowed(threading.Thread):
    """Slows what `pids` names, until the `with` ends; those that come meanwhile too. What is gone is passed over."""

    def __init__(self, pids: Callable[[], Iterable[int]], share: float) -> None:
        super().__init__(daemon=True)
        self._pids, self._share, self._over = pids, share, threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            self._send(signal.SIGSTOP)
            self._over.wait((1 - self._share) * CYCLE_S)
            self._send(signal.SIGCONT)
            self._over.wait(self._share * CYCLE_S)

    def _send(self, number: signal.Signals) -> None:
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self.join()
        self._send(signal.SIGCONT)
