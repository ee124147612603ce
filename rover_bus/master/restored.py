"""Decisions of the first master that leads from a log of a backup: what members hold is of a past that is erased (P21). Pure.

Asked by the decider at a take-over, after `job.restored` gave the state another timeline; what a loss means is for `lifecycle`.
"""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from rover_bus.events.log import Record, Rewound
from rover_bus.master import cutting, lifecycle
from rover_bus.master.ledger import Ledger
from rover_bus.master.phases import Ended
from rover_bus.master.state import State

Consequences = Generator[Record, None, None]


def forget_erased(state: State, detail: str, cause: str) -> Consequences:
    """The log is older than what members hold: servers go back to the newest checkpoint on storage, which may be one that the log
    does not know, because retention goes on after a backup; without storage to a cut that it knows as ready.

    Without servers the model is the programs' own, and nothing can go back: what the log calls open is trained, perhaps again.
    """
    if isinstance(state.phase, Ended) or state.ledger is None:
        return
    yield from cutting.end_all(state, cause, detail)
    if state.job.spec.has_servers:
        yield from lifecycle.lose_state(state, "log_lost", detail, cause, search=True)
        return
    ledger = msgspec.msgpack.decode(msgspec.msgpack.encode(state.ledger), type=Ledger)
    for worker in list(ledger.holders):
        ledger.release(worker)
    yield Rewound(
        generation=state.generation + 1,
        ledger=msgspec.Raw(msgspec.msgpack.encode(ledger)),
        reason=f"{detail}: what was committed after it is trained again",
        cause=cause,
    )
