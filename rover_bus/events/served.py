"""Requests that are repeated: while no service has their subject, and where their answer was lost.

Used for what the broker itself serves, JetStream's API and streams, and what one account serves another. While a broker takes in
the claims of an account, as it does whenever a run of a job begins or ends, the account has none of its imports, JetStream's API
among them, and the answers that are on their way through them are lost: for 0.2 to 6 ms here, and for as long as a busy machine
keeps the broker waiting elsewhere. In a cluster a server hears a moment later what another one serves.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rover_bus.events.errors import NoResponders

SERVED_S = 2.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.1
AGAIN_S = 0.8  # until a request is sent again whose answer has not come, and twice as long each time: a broker may be slow

T = TypeVar("T")


async def served(
    ask: Callable[[], Awaitable[T]],
    within_s: float = SERVED_S,
    not_now: Callable[[T], bool] = lambda _: False,
) -> T:
    """Return the answer to a request; what no service had took no effect, so it is sent again.

    `not_now`: whether an answer says that it cannot be done at this moment; the last such answer is returned. Raises NoResponders
    where no service had it all this time, and what `ask` raises.
    """
    loop = asyncio.get_running_loop()
    deadline_s, pause_s = math.inf, FIRST_PAUSE_S
    while True:
        try:
            answer = await ask()
            if not not_now(answer) or loop.time() > deadline_s:
                return answer
        except NoResponders:
            if loop.time() > deadline_s:
                raise
        # From the first that was refused: one whose answer was lost may have waited for longer than all this.
        deadline_s = min(deadline_s, loop.time() + within_s)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
