"""Where a step through the parameter servers spends its time: a stopwatch around the stages of worker and server.

Used by `bench.ps --profile`, in the worker's process and in each server's. The product holds no trace of it: functions are wrapped
from outside. A stage's time is its own, without the stages that it calls; a wrapped call costs about half a microsecond.
"""

from __future__ import annotations

import select
import selectors
import time
from collections.abc import Callable
from typing import Any

from rover_bus.ps import core, exchange, messages, outgoing, stream
from rover_bus.ps.plan import Sums

WORKER = (
    (exchange, "group_ids", "group"),
    (outgoing.SparsePart, "by", "divide"),
    (exchange, "pushed_parts", "gather"),
    (Sums, "of", "sum"),
    (outgoing.PullItem, "prepare", "prepare"),
    (outgoing.PullItem, "_frame", "encode"),
    (outgoing.PushItem, "_frame", "encode"),
    (stream.FrameSender, "put", "send"),
    (stream.FrameSender, "send", "send"),
    (stream.FrameReceiver, "receive", "recv"),
    (exchange.Exchange, "_absorb", "decode"),
    (outgoing.PullItem, "values", "lay out"),
)
SERVER = (
    (selectors.DefaultSelector, "select", "wait"),
    (stream.FrameReceiver, "receive", "recv"),
    (messages, "decode_request", "decode"),
    (messages, "read_keys", "decode"),
    (core.ServerCore, "_handle", "compute"),
    (messages, "encode", "encode"),
    (stream.FrameSender, "put", "send"),
    (stream.FrameSender, "send", "send"),
)


class Stopwatch:
    """Own time by stage, and the process's CPU time, since `reset`."""

    def __init__(self, stages: tuple[tuple[Any, str, str], ...], waits_in_receive: bool) -> None:
        self._stack: list[float] = []  # of each open stage: the time of stages inside it
        self._names = list(dict.fromkeys(name for _, _, name in stages))
        for owner, function, name in stages:
            setattr(owner, function, self._timed(getattr(owner, function), name))
        if waits_in_receive:
            self._names.append("wait")
            self._split_receive()
        self.reset()

    def reset(self) -> None:
        """Begin a window."""
        self.seconds = dict.fromkeys(self._names, 0.0)
        self._start, self._cpu_start = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """Return seconds by stage; `other`: in none of them; `cpu`: of the whole process; `wall`: of the window."""
        wall, cpu = time.perf_counter() - self._start, time.process_time() - self._cpu_start
        return {**self.seconds, "other": wall - sum(self.seconds.values()), "cpu": cpu, "wall": wall}

    def _timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            self._stack.append(0.0)
            start = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                took = time.perf_counter() - start
                self.seconds[name] += took - self._stack.pop()
                if self._stack:
                    self._stack[-1] += took

        return timed

    def _split_receive(self) -> None:
        """A blocking receive is a wait and a copy: wait for readability first, as a stage of its own."""
        receive = stream.FrameReceiver.receive
        wait = self._timed(lambda sock: select.select([sock], [], []), "wait")

        def split(receiver: Any) -> bool:
            wait(receiver._socket)
            return receive(receiver)

        setattr(stream.FrameReceiver, "receive", split)  # noqa: B010 - its first argument has another name
