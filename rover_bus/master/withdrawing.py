"""A start of which less than its least could run is withdrawn: all members are released, and the job waits for another plan.

Asked by `proposals` for the plan that says so (the Brain's, docs/design/0065), and by `lifecycle` and `first_servers` whether a
start has the least that its job names. Both halves belong together: a job that trains only with its least can be withdrawn below
it without the loss of a sample. Incarnations are counted on, so that the next plan, carried out like a first one, uses none again.
"""

from __future__ import annotations

from collections.abc import Collection, Generator

import msgspec

from rover_bus.events.facts import MemberLeft, PlanProposed
from rover_bus.events.log import Record, Rewound
from rover_bus.master import cutting
from rover_bus.master.ledger import Ledger, first_token
from rover_bus.master.phases import Starting, Training, name_of
from rover_bus.master.state import Admitted, State

Steps = Generator[Record, None, None]
REASON = "its start is withdrawn"


def has_its_least(state: State, servers: Collection[int]) -> bool:
    """Whether a job may begin to train with these servers and the workers that are there: the least of each role that it names, or
    all that are wanted where a person asked for fewer. Once it has begun, losses do not stop it.
    """
    if state.slots.owners or (state.ledger is not None and state.ledger.samples_done() != (0, 0)):
        return True
    if state.paused:
        return False  # its workers are still to come
    spec, wanted = state.job.spec, state.seats.wanted.values()
    workers = sum(desired.member.role == "worker" for desired in wanted)
    return len(state.seats.workers()) >= min(spec.workers.min_count, workers) and len(servers) >= min(
        spec.servers.min_count, len(wanted) - workers
    )


def is_asked(proposal: PlanProposed) -> bool:
    """Whether a plan leaves nothing of the one that it takes back."""
    return proposal.rolls_back > 0 and not proposal.workers and not proposal.servers


def obstacle(state: State) -> str:
    """Return why a start cannot be withdrawn: anything was trained, or may have been; "" where nothing was."""
    if not isinstance(state.phase, Starting | Training):
        return f"the job is {name_of(state.phase)}"
    ledger, slots = state.ledger, state.slots
    leased = ledger is not None and ledger.next_token != first_token(state.generation)
    done = ledger is not None and ledger.samples_done() != (0, 0)
    if leased or done or state.cuts.back.servers or state.cuts.last_ready:
        return "the job has begun to train"
    if slots.rollout is not None or slots.interrupted is not None:
        return "slots move between its servers"
    return ""


def unroute(state: State, empty: Ledger | None, cause: str) -> Steps:
    """Take back the routing of servers that no worker came to: they hold no row. `empty`: the ledger of the next generation."""
    if state.slots.routing is not None:
        yield from cutting.end_all(state, cause, REASON)
        yield Rewound(
            generation=state.generation + 1,
            ledger=msgspec.Raw(msgspec.msgpack.encode(empty)),
            reason=f"{REASON} before anything was trained: its servers leave",
            cause=cause,
        )


def release(servers: Collection[Admitted], cause: str) -> Steps:
    """Servers of a start that is withdrawn leave at once: that they end is no loss."""
    for each in servers:
        yield MemberLeft(member=each.member, reason=f"released: {REASON}", cause=cause)
