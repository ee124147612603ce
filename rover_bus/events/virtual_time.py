"""An event loop whose clock jumps: a simulated minute costs microseconds, and the same program runs the same way every time.

Fed by simulations and tests (`run`); feeds nothing but time. When nothing is ready the clock moves to the next timer; when there
is no timer either, every task waits for another, which is an error that names the waiting tasks. There are no sockets, threads or
signals in it: whatever needs the outside does not belong into a simulation. It is apart from memory_bus.py because the core
of a test needs time long before it needs a bus.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar, TypeVarTuple

import msgspec

from rover_bus.events.errors import PermanentError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
RESOLUTION_S = 1e-9  # timers that are no further apart fire together
MANY_TIMERS = 100


class Deadlock(PermanentError):
    """Nothing is ready and no timer is set: the simulated program waits for something that cannot come."""

    code = "deadlock"


class OutsideRefused(PermanentError):
    """The simulated program reached for a thread or a socket, which no seed decides."""

    code = "outside_refused"


class _Call(msgspec.Struct, eq=False):
    """One call that is to be made, where asyncio has a Handle: without those a history takes a tenth less."""

    callback: Callable[..., object] | None
    args: tuple[Any, ...]
    context: Context

    def cancel(self) -> None:
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        return self.callback is None


class _Timer(_Call, eq=False):
    """A call with its time, in seconds of the loop."""

    at: float
    loop: VirtualTimeLoop
    waits: bool = True  # it is not ready yet

    def cancel(self) -> None:
        if self.callback is not None:
            self.loop.cancelled_timers += self.waits
            super().cancel()

    def when(self) -> float:
        return self.at

    def __lt__(self, other: _Timer) -> bool:
        return False  # of the same time: the heap has compared that


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """A loop of its own clock, which starts at 0.0 s. Timers fire in order of their time."""

    _closed: bool
    _stopping: bool
    _ready: deque[_Call]

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._timers = list[tuple[float, _Timer]]()
        self.cancelled_timers = 0  # of these

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]  # what asyncio wants of a Handle, it has
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> _Call:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        call = _Call(callback, args, copy_context() if context is None else context)
        self._ready.append(call)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there are no threads

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> _Timer:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> _Timer:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        timer = _Timer(callback, args, copy_context() if context is None else context, when, self)
        heappush(self._timers, (when, timer))
        return timer

    def _run_once(self) -> None:
        """Make the calls that are ready; where none is, move the clock to the next timer, to the very float that it was set to."""
        ready = self._ready
        if self.cancelled_timers:
            self._forget_cancelled()
        timers = self._timers
        if not ready and not self._stopping:
            if not timers:
                raise Deadlock(_waiting(self))
            self._now = max(self._now, timers[0][0])
        end_s = self._now + RESOLUTION_S
        while timers and timers[0][0] < end_s:
            timer = heappop(timers)[1]
            timer.waits = False
            ready.append(timer)
        for _ in range(len(ready)):
            call = ready.popleft()
            if (callback := call.callback) is None:
                continue
            try:
                call.context.run(callback, *call.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio does it: its handler is told
                self.call_exception_handler({"message": f"{callback} failed", "exception": error})

    def _forget_cancelled(self) -> None:
        """Forget timers that were cancelled: those next in turn, and all once they are more than half of many."""
        timers = self._timers
        if len(timers) > MANY_TIMERS and self.cancelled_timers > len(timers) / 2:
            self._timers = [each for each in timers if each[1].callback is not None]
            heapify(self._timers)
            self.cancelled_timers = 0
            return
        while timers and timers[0][1].callback is None:
            heappop(timers)[1].waits = False
            self.cancelled_timers -= 1

    def run_in_executor(
        self, _executor: Executor | None, func: Callable[[*Ts], T], *_args: *Ts
    ) -> asyncio.Future[T]:
        raise OutsideRefused(
            f"{func!r} wants a thread: in virtual time do it inline, or pass it in as an effect"
        )

    def _write_to_self(self) -> None:
        """Ctrl-C asks the loop to wake up; this one never sleeps."""


def run(program: Coroutine[Any, Any, T]) -> T:
    """Run `program` to its end in virtual time and return its result.

    An exception in any callback or forgotten task ends the run and is raised here: a simulation must not go on past a
    broken handler. Raises Deadlock when nothing can ever happen again. Tasks still running at the end are cancelled.
    """
    failures: list[BaseException] = []
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = runner.get_loop()

        async def main() -> T:
            task = asyncio.current_task()
            assert task is not None

            def fail(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
                failures.append(context.get("exception") or RuntimeError(context["message"]))
                task.cancel()

            loop.set_exception_handler(fail)
            return await program

        try:
            result = runner.run(main())
        except asyncio.CancelledError:
            if not failures:
                raise
            raise failures[0] from None
        finally:
            loop.set_exception_handler(None)
    if failures:
        raise failures[0]
    return result


def _waiting(loop: asyncio.AbstractEventLoop) -> str:
    waiting = sorted(f"{task.get_name()} in {_place(task)}" for task in asyncio.all_tasks(loop))
    return "nothing is ready and no timer is set; these tasks wait for each other: " + "; ".join(waiting)


def _place(task: asyncio.Task[Any]) -> str:
    stack = task.get_stack(limit=1)
    return f"{stack[0].f_code.co_qualname}:{stack[0].f_lineno}" if stack else "no frame"
