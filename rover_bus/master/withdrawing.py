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
from rover_bus.master.cut import Cut, rewound
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
    trained = done or state.cuts.back.servers or state.cuts.last_ready
    if leased or (trained and at_rest(state) is None):
        return "the job has begun to train"
    if slots.rollout is not None or slots.interrupted is not None:
        return "slots move between its servers"
    return ""


def at_rest(state: State) -> Cut | None:
    """Return the cut on storage that has all that a job trained before this start, which has leased nothing; None without one."""
    if state.ledger is None or not state.slots.owners:
        return None
    done, _ = state.ledger.samples_done()
    ready = (cut for cut in state.cuts.known.values() if cut.state == "ready" and not cut.over)
    return next((cut for cut in ready if cut.number == state.cuts.last_ready and cut.samples == done), None)


def unroute(state: State, empty: Ledger | None, cause: str) -> Steps:
    """Take back the routing of servers that no worker came to: they hold no row, or what a cut has. `empty`: the ledger of
    the next generation.
    """
    cut = at_rest(state)
    if cut is not None:
        why = f"{REASON}: all servers leave, and begin from cut {cut.number} when they come again"
        yield from go_back(state, cut, rewound(cut, state.ledger, state.generation + 1), why, cause)
    elif state.slots.routing is not None:
        yield from cutting.end_all(state, cause, REASON)
        yield Rewound(
            generation=state.generation + 1,
            ledger=msgspec.Raw(msgspec.msgpack.encode(empty)),
            reason=f"{REASON} before anything was trained: its servers leave",
            cause=cause,
        )


def go_back(state: State, cut: Cut | None, ledger: Ledger | None, why: str, cause: str) -> Steps:
    """All servers leave, and begin from a cut on storage when they come again; None: empty."""
    for number in sorted(state.cuts.known):
        newer = state.cuts.known[number]
        if number > (cut.number if cut is not None else 0):
            yield newer.failed("the servers of the job were released", cause)
    yield Rewound(
        generation=state.generation + 1,
        ledger=msgspec.Raw(msgspec.msgpack.encode(ledger)),
        reason=why,
        cut=cut.number if cut is not None else 0,
        servers=sorted({index for index, _, _ in state.slots.owners}) if cut is not None else [],
        cause=cause,
    )


def release(servers: Collection[Admitted], cause: str) -> Steps:
    """Servers of a start that is withdrawn leave at once: that they end is no loss."""
    for each in servers:
        yield MemberLeft(member=each.member, reason=f"released: {REASON}", cause=cause)
