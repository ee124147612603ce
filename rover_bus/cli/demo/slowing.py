"""A straggler on demand: a process that is stopped for most of the time, as if another program had its cores.

Used by the demo's acts and by bench.living; apart from chaos.py, which kills. SIGSTOP and SIGCONT in a duty cycle; it always
runs on in the end.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

CYCLE_S = 0.3


@asynccontextmanager
async def slowed(pid: int, share: float, cycle_s: float = CYCLE_S) -> AsyncIterator[None]:
    """Let a process run only `share` of the time, in (0, 1], while the body runs. One that ends meanwhile is not missed."""
    task = asyncio.ensure_future(_stop_and_go(pid, share, cycle_s))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _stop_and_go(pid: int, share: float, cycle_s: float) -> None:
    try:
        while True:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep((1 - share) * cycle_s)
            os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(share * cycle_s)
    except ProcessLookupError:
        return
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
