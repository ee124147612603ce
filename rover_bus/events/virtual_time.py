"""An event loop whose clock jumps: a simulated minute costs microseconds, and the same program runs the same way every time.

Fed by simulations and tests (`run`); feeds nothing but time. When nothing is ready the clock moves to the next timer; when there
is no timer either, every task waits for another, which is an error that names the waiting tasks. There are no sockets, threads or
signals in it: whatever needs the outside does not belong into a simulation. It is apart from memory_bus.py because the core
of a test needs time long before it needs a bus.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

from rover_bus.events.errors import PermanentError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Deadlock(PermanentError):
    """Nothing is ready and no timer is set: the simulated program waits for something that cannot come."""

    code = "deadlock"


class OutsideRefused(PermanentError):
    """The simulated program reached for a thread or a socket, which no seed decides."""

    code = "outside_refused"


class _Jump:
    """Stands where a selector stands: it is asked to wait, and moves the clock instead."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock(_waiting(self._loop))
        if timeout > 0:
            self._loop.jump()
        return []


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """A loop of its own clock, which starts at 0.0 s. Timers fire in order of their time."""

    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        # BaseEventLoop asks exactly these two of a subclass that brings its own way to wait.
        self._selector = _Jump(self)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._now

    def jump(self) -> None:
        """Move the clock to the next timer, to the very float it was set to (adding a difference would drift)."""
        self._now = max(self._now, self._scheduled[0].when())

    def run_in_executor(
        self, _executor: Executor | None, func: Callable[[*Ts], T], *_args: *Ts
    ) -> asyncio.Future[T]:
        raise OutsideRefused(
            f"{func!r} wants a thread: in virtual time do it inline, or pass it in as an effect"
        )

    def _process_events(self, event_list: list[Any]) -> None:
        """No sockets, no events."""

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
