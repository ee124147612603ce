"""Where the facts of a job do not say what led to them (every chain of causes ends where a story may begin), and where its log
breaks an invariant of the master's state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rover_bus.cli.connection import NoStack, of_stopped, visit
from rover_bus.cli.home import Home
from rover_bus.cli.stack import RunningStack
from rover_bus.cli.views.history import Happened, read_facts
from rover_bus.cli.views.stories import Links, cause_written
from rover_bus.events import facts
from rover_bus.events.causes import named
from rover_bus.events.checkpoint_facts import CheckpointOpened, CheckpointRequested, PartStaged
from rover_bus.events.facts import JobFact, JobSubmitted, MasterElected, MemberAdmitted
from rover_bus.events.host_facts import ClusterFact, HostFact
from rover_bus.events.journal import Journal
from rover_bus.events.log import LogBatch
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import LOG
from rover_bus.events.subjects import job_log
from rover_bus.master.checks import broken
from rover_bus.master.evolution import evolve
from rover_bus.master.state import AnyState, Unopened, load

COMMANDS = (
    facts.JobRestored,  # `rover restore`
    facts.JobStopRequested,
    facts.JobPauseRequested,
    facts.JobResumeRequested,
    facts.PlanApproved,
    facts.PlanRejected,
    facts.PlanModeSet,
    facts.PlanProposed,
    facts.PlanRequested,  # `rover plan try`
    facts.SlotsMoveRequested,
    CheckpointRequested,  # `rover checkpoint`, `rover down`
)


def offenders(happened: Iterable[Happened]) -> list[str]:
    """Return a line for each fact whose story does not reach a submission, a command, or a host's or process's own fact."""
    known = [each for each in happened if each.fact is not None]
    links = Links(known)
    return [f"{each.id} {_name(each)}: {why}" for each in known if (why := _wrong(links, each))]


def _wrong(links: Links, each: Happened) -> str:
    fact, written = each.fact, cause_written(each)
    first = links.chain_of(each)[0]
    if isinstance(fact, JobFact) and not isinstance(first.fact, JobSubmitted | ClusterFact | HostFact):
        return f"its story begins at {first.id} {_name(first)}"
    if written and links.named_by(each) is None and not _is_own(each, written):
        return f"its cause is {written!r}, which is no fact that is stored"
    if isinstance(fact, PartStaged) and not _opens(links.named_by(each), fact):
        return f"its cause is {written!r}, which is not the opening of cut {fact.cut}"
    return "" if written or _bears_none(each) else "it names no cause"


def _opens(cause: Happened | None, part: PartStaged) -> bool:
    opened = cause.fact if cause is not None else None
    return isinstance(opened, CheckpointOpened) and opened.cut == part.cut


def _is_own(each: Happened, written: str) -> bool:
    """A process that no daemon started says this of itself."""
    match each.fact:
        case MemberAdmitted(member=member):
            return named(written) == str(member)
        case MasterElected(holder=holder):
            return named(written) == named(holder)
    return False


def _bears_none(each: Happened) -> bool:
    fact = each.fact
    if isinstance(fact, COMMANDS):
        return fact.by != "brain"
    return isinstance(fact, HostFact | ClusterFact | JobSubmitted)


def _name(each: Happened) -> str:
    return each.fact.kind() if each.fact is not None else each.stored.subject


@contextmanager
def every_stack_walked() -> Iterator[list[str]]:
    """Walk what each stack of this process leaves, as soon as it has stopped; yield where the offenders are gathered."""
    found: list[str] = []
    stop = RunningStack.stop

    def stop_and_walk(stack: RunningStack, *, at_once: bool = False) -> None:
        ran = stack.broker is not None and stack.broker.running
        stop(stack, at_once=at_once)
        if ran:
            found.extend(of_stopped_stack(stack.home))

    RunningStack.stop = stop_and_walk  # type: ignore[method-assign]
    try:
        yield found
    finally:
        RunningStack.stop = stop  # type: ignore[method-assign]


def of_stopped_stack(home: Home) -> list[str]:
    """Return the offenders among all facts that a stopped stack left, [] where it left none."""
    try:
        with of_stopped(home) as address:
            return visit(address, _offenders_there)
    except NoStack:
        return []


async def _offenders_there(bus: NatsBus) -> list[str]:
    happened = [each async for each in read_facts(bus)]
    jobs = {each.fact.job for each in happened if isinstance(each.fact, JobSubmitted)}
    return offenders(happened) + [line for job in sorted(jobs) for line in await broken_in_log(bus, job)]


async def broken_in_log(bus: NatsBus, job: str) -> list[str]:
    """Replay what is kept of a job's log; return a line for each invariant that a record breaks."""
    reader = Journal(bus, job_log(job), job, "walker", LogBatch, lambda: 0)
    state: AnyState = Unopened()
    lines: list[str] = []
    async for stored in bus.read(LOG, job_log(job), first=await reader.beginning()):
        snapshot, records = reader.take(stored)
        state = load(snapshot) if snapshot is not None else state
        for record in records:
            state = evolve(state, record)
            lines += [f"{job}:{stored.sequence} {type(record).__name__}: {why}" for why in broken(state)]
    return lines
