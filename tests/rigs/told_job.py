"""A job that is told, not run: its facts, its log, the Brain's log and samples are written as their writers write them.

For the page: everything that it shows is there, and nothing of it changes but by samples that a test sends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from all_rights import connect
from asked_page import AskedPage, page_of
from patience import until
from told import told

from rover_bus.brain.log import BrainBatch
from rover_bus.brain.state import BrainState, KnownJob, TriedSize
from rover_bus.cli.own_broker import LOOPBACK
from rover_bus.cli.stack import Here, RunningStack
from rover_bus.events import checkpoint_facts, data_facts, facts, log, plan_facts, subjects
from rover_bus.events.bus import Bus
from rover_bus.events.checkpoints import PartPlace
from rover_bus.events.codec import encode
from rover_bus.events.envelope import Envelope
from rover_bus.events.fact import JobFact
from rover_bus.events.facts import LosingPlan, Size
from rover_bus.events.host_facts import HostExited, HostStarted
from rover_bus.events.identity import DesiredMember, Exit, HostCapacity, Member, Process
from rover_bus.events.job import Dataset, DataSpec, JobSpec, RoleSpec, WorkersSpec
from rover_bus.events.journal import Journal, snapshot_chunks
from rover_bus.events.log import LogBatch
from rover_bus.events.profiles import HostProfile, ProcessSample, ServerProfile, WorkerProfile
from rover_bus.events.reading import digest, event_id
from rover_bus.events.routing import ServerAddress
from rover_bus.events.streams import FACTS, LOG

JOB, UID, HOST, HALF = "told", "0000000000a1", "h0", 2048
GIB = 1 << 30
WORKERS = [Member("worker", 0, 1), Member("worker", 1, 2), Member("worker", 2, 1)]
SERVERS = [Member("ps", 0, 1), Member("ps", 1, 1)]
TEAM = [*WORKERS, *SERVERS]
HELD = Size(workers=3, servers=2, worker_memory_bytes=2 * GIB, server_memory_bytes=GIB)
SPEC = JobSpec(
    name=JOB,
    program=["python"],
    data=DataSpec(train="t.csv", batch_size=100),
    workers=WorkersSpec(max_count=6),
    servers=RoleSpec(count=2, max_count=2),
)
RECORDS = 1_000_000
PLAN = plan_facts.PlanProposed(
    job=JOB,
    plan=2,
    workers=4,
    servers=2,
    worker_memory_bytes=2 * GIB,
    server_memory_bytes=GIB,
    step="scale",
    mode="approve",
    constant="more_throughput",
    reason="3 -> 4 workers",
    held=HELD,
    measured=3012.5,
    predicted=4010.25,
    predicted_low_90=3805.5,
    predicted_high_90=4203.75,
    losers=[
        LosingPlan(size=HELD, reason="less_gain", throughput=3012.5),
        LosingPlan(size=HELD.replace(workers=6), reason="too_dear", throughput=4500.0),
    ],
    by="brain",
    brain_term=1,
    brain_position=(7, 0),
)

FORECAST = plan_facts.JobForecast(
    job=JOB,
    constant="on_its_way",
    eta_s=4200.0,
    low_90_s=3700.0,
    high_90_s=7300.0,
    value=0.61,
    target=0.52,
    brain_term=1,
    brain_position=(8, 0),
)


@contextmanager
def told_job(folder: Path) -> Iterator[tuple[AskedPage, Path]]:
    """Have a stack with it while the body runs: its page, and the directory of its state."""
    home = folder / "state"
    with RunningStack(home, brain=None, here=Here(page=LOOPBACK)) as stack:
        page = page_of(stack)
        last = asyncio.run(_write(home))
        until(lambda: page.ready and page.ask("/api/v1/cluster").json["sequence"] >= last, "all facts")
        yield page, home


async def _write(home: Path) -> int:
    bus = await connect(home)
    try:
        last = await _tell(bus, _happenings())
        await _write_log(bus)
        await _write_brain(bus)
        return last
    finally:
        await bus.close()


async def _tell(bus: Bus, happenings: Iterable[JobFact | HostStarted | HostExited], first: int = 1) -> int:
    last = 0
    for number, fact in enumerate(happenings, first):
        if isinstance(fact, JobFact):
            body, headers = _of_brain(fact) if getattr(fact, "brain_term", 0) else told(fact, number)
            last = await bus.append(FACTS, subjects.job_fact(JOB, fact.kind()), body, headers=headers)
        else:
            last = await bus.append(FACTS, subjects.host_fact(HOST, fact.kind()), encode(fact))
    return last


def _of_brain(fact: JobFact) -> tuple[bytes, dict[str, str]]:
    place = fact.brain_position
    body, id_ = encode(fact), event_id("brain", 1, 1, place)
    envelope = Envelope(id=id_, type=fact.tag(), source="brain", job=JOB, term=1, digest=digest(body))
    return body, envelope.headers()


def _happenings() -> Iterator[JobFact | HostStarted]:
    """Yield its life as facts: it trains, loses a worker, is checkpointed, and a plan waits for a person."""
    first = Member("worker", 1, 1)
    begun = [WORKERS[0], first, WORKERS[2], *SERVERS]
    yield facts.JobSubmitted(job=JOB, spec=SPEC, uid=UID)
    yield facts.MasterElected(job=JOB, term=1, holder="master-0.1")
    start: dict[str, Any] = {"workers": 3, "servers": 2}
    memory: dict[str, Any] = {"worker_memory_bytes": 2 * GIB, "server_memory_bytes": GIB}
    yield plan_facts.PlanProposed(
        job=JOB,
        plan=1,
        predicted=3100.5,
        predicted_low_90=2900.25,
        predicted_high_90=3300.75,
        **start,
        **memory,
    )
    yield facts.MembersDesired(job=JOB, plan=1, proposal=1, members=_desired(begun))
    for pid, each in enumerate(begun, 100):
        yield HostStarted(host=HOST, job=JOB, process=Process(member=each, pid=pid, host=HOST))
        yield facts.MemberAdmitted(job=JOB, member=each, host=HOST, pid=pid)
    yield plan_facts.PlanApplied(job=JOB, plan=1, size=HELD, **start)
    for number in range(12):
        yield _report(1000 * number, 2900.125 + 13.5 * number)
    yield facts.MemberLost(job=JOB, member=first, reason="exited", last=1)
    yield facts.MembersDesired(job=JOB, plan=2, proposal=1, members=_desired(TEAM))
    yield HostStarted(host=HOST, job=JOB, process=Process(member=WORKERS[1], pid=200, host=HOST))
    yield facts.MemberAdmitted(job=JOB, member=WORKERS[1], host=HOST, pid=200)
    cut: dict[str, Any] = {"job": JOB, "cut": 1, "generation": 1}
    yield checkpoint_facts.CheckpointOpened(**cut)
    for server in SERVERS:
        place = PartPlace(part=f"p{server.index}", index=server.index, incarnation=1, host=HOST, slots=[])
        yield checkpoint_facts.PartStaged(place=place, blocked_s=0.02, **cut)
    yield PLAN
    yield plan_facts.PlanChecked(job=JOB, plan=2, outcome="waits", mode="approve")
    yield FORECAST
    yield _report(14_321, 3012.5)


def _report(committed: int, speed: float) -> facts.JobReported:
    return facts.JobReported(
        job=JOB, epoch=0, committed=committed, dead_lettered=100, total=RECORDS, samples_per_second=speed
    )


def _desired(members: list[Member]) -> list[DesiredMember]:
    return [DesiredMember(member=each, host=HOST, command=["x"]) for each in members]


def _journal(bus: Bus, subject: str, holder: str, batch: type[Any]) -> Journal:
    journal = Journal(bus, subject, JOB, holder, batch, lambda: time.time_ns() // 10**6)
    journal.term = 1
    return journal


async def _write_log(bus: Bus) -> None:
    """Write the log of its master: leases that are committed, held, returned; a batch that is given up; two servers."""
    journal = _journal(bus, subjects.job_log(JOB), "master-0.1", LogBatch)
    addresses = [ServerAddress(index, 1, []) for index in range(2)]
    owners = [(0, 0, HALF), (1, HALF, 2 * HALF)]
    begins = [
        facts.MasterElected(job=JOB, term=1, holder="master-0.1"),
        facts.JobOpened(job=JOB, spec=SPEC, uid=UID, timeline=1),
        facts.MembersDesired(job=JOB, plan=1, proposal=1, members=_desired(TEAM)),
        *(facts.MemberAdmitted(job=JOB, member=each, host=HOST) for each in TEAM),
        facts.RoutingChanged(job=JOB, generation=0, epoch=1, owners=owners, servers=addresses),
        data_facts.DatasetRegistered(job=JOB, dataset=Dataset(records=RECORDS, batch_size=100, epochs=1)),
        data_facts.EpochOpened(job=JOB, epoch=0),
        checkpoint_facts.CheckpointOpened(job=JOB, cut=1, generation=0),
    ]
    await journal.append(begins, {})
    for token in range(1, 40):
        worker = WORKERS[token % 3]
        own: dict[str, Any] = {"worker": worker.index, "incarnation": worker.incarnation}
        first = 4 * (token - 1)
        records: list[log.Record] = [
            log.Granted(request=token, first_token=token, firsts=[first], counts=[4], **own),
            log.Committed(request=token, tokens=[token], uptos=[first + 2 + token % 3], **own),
        ]
        if token % 9 == 0:
            records.append(log.Returned(tokens=[token], **own))
        await journal.append(records, {})
    given_up: dict[str, Any] = {"first_position": 3800, "samples": 100, "reason": "it failed three times"}
    await journal.append([data_facts.BatchDeadLettered(job=JOB, epoch=0, batch=38, **given_up)], {})


async def _write_brain(bus: Bus) -> None:
    """Write the log of the Brain: a snapshot with what it measured of the job, and the plan that follows."""
    tried = [
        TriedSize(HELD.replace(workers=workers), weight=3.0, mean=1004.1 * workers, input_share=0.9)
        for workers in (1, 2, 3)
    ]
    memory = {each.name: [(1000.0 * n, (200 + 4 * n) << 20) for n in range(20)] for each in SERVERS}
    known = KnownJob(
        UID, SPEC, plan=1, held=HELD, tried=tried, recent=[3012.5] * 3, total=RECORDS, memory=memory
    )
    known.members, known.samples, known.committed = TEAM, 20_000.0, 14_321
    state = BrainState(hosts={HOST: HostCapacity(cores=8.0, memory_bytes=1 << 36)}, jobs={JOB: known})
    journal = _journal(bus, subjects.BRAIN_LOG, "brain", BrainBatch)
    for chunk in snapshot_chunks(1, msgspec.msgpack.encode(state)):
        await journal.append([chunk], {})
    await journal.append([PLAN], {})


async def tell_a_record(bus: Bus, *records: log.Record, of_brain: bool = False) -> int:
    """Append records to the log of its master or of the Brain as one batch; return the batch's sequence."""
    subject = subjects.BRAIN_LOG if of_brain else subjects.job_log(JOB)
    journal = _journal(
        bus, subject, "brain" if of_brain else "master-0.1", BrainBatch if of_brain else LogBatch
    )
    async for stored in bus.read(LOG, subject):
        journal.take(stored)
    journal.number = journal.sequence  # beyond all that were written: an append is known by it
    await journal.append(list(records), {})
    return journal.sequence


async def tell_more(bus: Bus) -> None:
    """Tell what changes every chart: a plan is carried out, another waits, a worker and a server are lost."""
    later = PLAN.replace(plan=3, workers=6, predicted=5010.5, reason="4 -> 6 workers", brain_position=(9, 0))
    told_later: list[JobFact | HostExited] = [
        plan_facts.PlanApplied(job=JOB, plan=2, workers=4, servers=2),
        facts.MemberLost(job=JOB, member=WORKERS[2], reason="exited", last=1),
        HostExited(host=HOST, job=JOB, member=SERVERS[1], exit=Exit(reason="crashed", status=1)),
        _report(20_000, 3555.5),
        later,
        plan_facts.PlanChecked(job=JOB, plan=3, outcome="waits", mode="approve"),
        FORECAST.replace(eta_s=100.0, low_90_s=90.0, high_90_s=120.0, brain_position=(10, 0)),
    ]
    await _tell(bus, told_later, 1000)
    await tell_a_record(bus, later, of_brain=True)
    await tell_a_record(bus, facts.MemberLost(job=JOB, member=WORKERS[2], reason="exited", last=1))


async def send_samples(bus: Bus, number: int) -> None:
    """Send one sample of each member and of its host."""
    for each in WORKERS:
        sample = WorkerProfile(
            job=JOB,
            member=each,
            samples=1004 + each.index,
            batches=10,
            window_s=1.0,
            compute_s=0.611,
            pull_s=0.15,
            push_s=0.05,
            wait_s=0.18,
            loss=0.7 - number / 200,
            metrics={"auc": 0.5 + number / 200},
        )
        await bus.publish(subjects.member_profile(JOB, each.role, each.index), encode(sample))
    for each in SERVERS:
        first = HALF * each.index
        server = ServerProfile(
            job=JOB,
            member=each,
            window_s=1.0,
            pulls=90,
            pushes=90,
            ignored=0,
            busy_s=0.37,
            slots=HALF,
            table_bytes=(7 + each.index) << 20,
            rows=12_345 + each.index,
            keys_per_s=4321.5 + 100 * each.index + number,
            hottest=[(first + 5, 812.25), (first + 99, 77.5)],
        )
        await bus.publish(subjects.member_profile(JOB, each.role, each.index), encode(server))
    processes = [
        ProcessSample(job=JOB, member=each, pid=1, cores_used=0.57, memory_bytes=(250 + number) << 20)
        for each in TEAM
    ]
    host = HostProfile(
        window_s=1.0, host=HOST, cores=8, cores_used=4, memory_bytes=1 << 36, memory_used_bytes=1 << 34
    )
    await bus.publish(subjects.host_profile(HOST), encode(host.replace(processes=processes)))
