"""The page in a headless Chromium: first useful paint, the longest task, how soon an event is seen, the oldest kept moment.

    PYTHONPATH=tests/rigs python -m bench.page [--jobs 100] [--facts 100000] [--members 200] [--loads 5]

A stack without a Brain, whose facts, samples and one log are written as masters and members write them; no member runs. Each load
is a new tab with an empty cache. *Useful* is the list of jobs (or the lanes of the job) drawn, two frames later; a *task* is what
the browser calls a long task; the processor time of the longest is by the browser's tracing, the same on a busy machine. The job
of many members stands beside one of none, a load of each in turn. Prints one line a figure, medians over the loads.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from all_rights import connect
from asked_page import AskedPage, page_of
from browser import Tab, browser, tab
from patience import until
from told import told

from rover_bus.cli.own_broker import LOOPBACK
from rover_bus.cli.stack import Here, RunningStack
from rover_bus.events import data_facts, facts, log, subjects
from rover_bus.events.bus import Bus
from rover_bus.events.codec import encode
from rover_bus.events.fact import JobFact
from rover_bus.events.host_facts import HostStarted
from rover_bus.events.identity import DesiredMember, Member, Process
from rover_bus.events.job import Dataset, DataSpec, JobSpec
from rover_bus.events.journal import Journal
from rover_bus.events.log import LogBatch
from rover_bus.events.profiles import HostProfile, ProcessSample, ServerProfile, WorkerProfile
from rover_bus.events.routing import ServerAddress
from rover_bus.events.streams import FACTS

WIDE, BARE = "wide", "bare"  # the job of many members, and that of none
AT_ONCE = 200
SERVERS = 8
SCRAPES = 20
WATCHED_S = 12.0  # of a load: more than two drawings
SAMPLED = 60  # samples of each member
BATCHES = 400  # of its log
WATCH = """
window.longest = 0; window.tasks = [];
new PerformanceObserver((list) => list.getEntries().forEach((each) => {
  tasks.push(Math.round(each.duration));
  longest = Math.max(longest, each.duration); })).observe({type: 'longtask', buffered: true});
window.seen = {};
new MutationObserver(() => {
  const there = document.querySelector('#jobs tbody tr') || document.querySelector('#lanes[data-lanes]');
  const painted = () => { useful = performance.now(); };
  if (there && !window.useful) { window.useful = -1; requestAnimationFrame(() => requestAnimationFrame(painted)); }
  for (const line of document.querySelectorAll('.events li')) seen[line.dataset.sequence] ??= Date.now();
}).observe(document, {childList: true, subtree: true, attributes: true, attributeFilter: ['data-lanes']});
"""


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--facts", type=int, default=100_000, help="in all")
    parser.add_argument("--members", type=int, default=200, help="of one job")
    parser.add_argument("--loads", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rover-bench-") as made:
        folder = Path(made)
        with RunningStack(folder / "state", brain=None, here=Here(page=LOOPBACK)) as stack:
            page = page_of(stack)
            began_s = time.perf_counter()
            written = asyncio.run(write(folder / "state", options.jobs, options.facts, options.members))
            say("facts written", time.perf_counter() - began_s, "s", f"{written} facts")
            until(lambda: page.ready and page.ask("/api/v1/cluster").json["sequence"] >= written, "all facts")
            restart(stack, page, written)
            with browser(folder) as port:
                asyncio.run(measure(page, port, folder / "state", options.loads))


def restart(stack: RunningStack, page: AskedPage, written: int) -> None:
    """Measure how soon the process that serves the page has read all facts again."""
    service = stack.services["web"]
    former = service.pid
    assert former
    os.kill(former, signal.SIGKILL)
    began_s = time.perf_counter()
    until(lambda: service.pid not in (None, former) and page.ready, "another process")
    assert page.ask("/api/v1/cluster").json["sequence"] >= written
    say("all facts read again at a start", time.perf_counter() - began_s, "s")


# what is there


async def write(home: Path, jobs: int, most: int, members: int) -> int:
    """Write jobs, facts, samples and one log; return the sequence of the last fact."""
    bus = await connect(home)
    try:
        pending: list[tuple[str, bytes, dict[str, str]]] = []
        for fact in happenings(jobs, most, members):
            if isinstance(fact, JobFact):
                body, headers = told(fact, len(pending) + 1)
                pending.append((subjects.job_fact(fact.job, fact.kind()), body, headers))
            else:
                pending.append((subjects.host_fact(fact.host, fact.kind()), encode(fact), {}))
        last = 0
        for at in range(0, len(pending), AT_ONCE):
            stored = [
                bus.append(FACTS, where, body, headers=headers)
                for where, body, headers in pending[at : at + AT_ONCE]
            ]
            last = max(await asyncio.gather(*stored))
        await write_samples(bus, members)
        await write_log(bus, members)
        await open_log(bus, BARE)
        return last
    finally:
        await bus.close()


def team(members: int) -> list[Member]:
    """Return the members of the job that has many."""
    servers = min(SERVERS, members)
    return [Member("worker", index, 1) for index in range(members - servers)] + [
        Member("ps", index, 1) for index in range(servers)
    ]


def happenings(jobs: int, most: int, members: int) -> Iterator[JobFact | HostStarted]:
    """Yield facts: what begins each job, then reports of all in turn until there are enough."""
    names = [WIDE, BARE, *(f"job-{number:03}" for number in range(2, jobs))]
    said = 0
    for name in names:
        few = team({WIDE: members, BARE: 0}.get(name, 20))
        for fact in beginning(name, few):
            said += 1
            yield fact
    committed = 0
    while said < most:
        committed += 100
        for name in names[: most - said]:
            said += 1
            yield facts.JobReported(
                job=name,
                epoch=0,
                committed=committed,
                dead_lettered=0,
                total=10**9,
                samples_per_second=500.0 + committed % 70,
            )


def beginning(name: str, members: list[Member]) -> Iterator[JobFact | HostStarted]:
    """Yield what happens until a job trains."""
    spec = JobSpec(name=name, program=["python"], data=DataSpec(train="t.csv"))
    desired = [DesiredMember(member=each, host="h0", command=["x"]) for each in members]
    workers = sum(each.role == "worker" for each in members)
    size: dict[str, Any] = {"workers": workers, "servers": len(members) - workers}
    yield facts.JobSubmitted(job=name, spec=spec, uid="0000000000a1")
    yield facts.MasterElected(job=name, term=1, holder="master-0.1")
    yield facts.PlanProposed(
        job=name, plan=1, predicted=520.0, predicted_low_90=480.0, predicted_high_90=560.0, **size
    )
    yield facts.MembersDesired(job=name, plan=1, members=desired)
    yield facts.PlanApplied(job=name, plan=1, **size)
    for pid, each in enumerate(members, 100):
        yield HostStarted(host="h0", job=name, process=Process(member=each, pid=pid, host="h0"))


async def write_samples(bus: Bus, members: int) -> None:
    """Publish samples of each member and of its host, as they would be over some minutes."""
    there = team(members)
    for number in range(SAMPLED):
        for each in there:
            if each.role != "worker":
                continue
            sample = WorkerProfile(
                job=WIDE,
                member=each,
                samples=100,
                batches=10,
                window_s=1.0,
                compute_s=0.6,
                pull_s=0.2,
                wait_s=0.2,
                loss=0.7 - number / 200,
                metrics={"auc": 0.5 + number / 200},
            )
            where = subjects.member_profile(WIDE, each.role, each.index)
            await bus.publish(where, encode(sample))
        for each in there:
            if each.role == "ps":
                served = ServerProfile(
                    job=WIDE, member=each, window_s=1.0, pulls=90, pushes=90, ignored=0, busy_s=0.4, slots=512
                )
                await bus.publish(subjects.member_profile(WIDE, each.role, each.index), encode(served))
        processes = [
            ProcessSample(job=WIDE, member=each, pid=1, cores_used=0.5, memory_bytes=(50 + number) << 20)
            for each in there
        ]
        host = HostProfile(
            window_s=1.0, host="h0", cores=64, cores_used=32, memory_bytes=1 << 38, memory_used_bytes=1 << 36
        )
        await bus.publish(subjects.host_profile("h0"), encode(host.replace(processes=processes)))
        await asyncio.sleep(0.2)


async def open_log(bus: Bus, name: str) -> Journal:
    """Begin a job's log."""
    journal = Journal(
        bus, subjects.job_log(name), name, "master-0.1", LogBatch, lambda: time.time_ns() // 10**6
    )
    journal.term = 1
    spec = JobSpec(name=name, program=["python"], data=DataSpec(train="t.csv"))
    elected = facts.MasterElected(job=name, term=1, holder="master-0.1")
    await journal.append([elected, facts.JobOpened(job=name, spec=spec, uid="0000000000a1", timeline=1)], {})
    return journal


async def write_log(bus: Bus, members: int) -> None:
    """Write the log of the job that has many members: it trains, each worker has leases."""
    journal, there = await open_log(bus, WIDE), team(members)
    workers = [each.index for each in there if each.role == "worker"]
    owners = [(index, 512 * index, 512 * index + 512) for index in range(SERVERS)]
    desired = [DesiredMember(member=each, host="h0", command=["x"]) for each in there]
    begins = [
        facts.MembersDesired(job=WIDE, plan=1, proposal=1, members=desired),
        *(facts.MemberAdmitted(job=WIDE, member=each, host="h0") for each in there),
        facts.RoutingChanged(
            job=WIDE,
            generation=0,
            epoch=1,
            owners=owners,
            servers=[ServerAddress(index, 1, []) for index in range(SERVERS)],
        ),
        data_facts.DatasetRegistered(job=WIDE, dataset=Dataset(records=10**9, batch_size=100, epochs=1)),
        data_facts.EpochOpened(job=WIDE, epoch=0),
    ]
    await journal.append(begins, {})
    token = frontier = 1
    frontier = 0
    for request in range(1, BATCHES + 1):
        records: list[log.Record] = []
        for worker in workers:
            records.append(
                log.Granted(
                    worker=worker,
                    incarnation=1,
                    request=request,
                    first_token=token,
                    firsts=[frontier],
                    counts=[4],
                )
            )
            done = 4 if worker % 7 else 2
            records.append(
                log.Committed(
                    worker=worker, incarnation=1, request=request, tokens=[token], uptos=[frontier + done]
                )
            )
            token, frontier = token + 1, frontier + 4
        await journal.append(records, {})


# measurements


async def measure(page: AskedPage, port: int, home: Path, loads: int) -> None:
    """Print what browsers see."""
    jobs = Painted("all jobs", "/")
    wide = Painted(f"job {WIDE}", f"/#/job/{WIDE}", WATCHED_S)
    bare = Painted(f"job {BARE}", f"/#/job/{BARE}", WATCHED_S)
    for _ in range(loads):
        for each in (jobs, wide, bare):
            await each.load(page, port)
    for each in (jobs, wide, bare):
        each.say()
    await events_seen(page, port, home, loads)
    state = page.ask(f"/api/v1/jobs/{WIDE}/state").json
    for name in ("first", "newest"):
        took = []
        for _ in range(loads):
            began_s = time.perf_counter()
            said = page.ask(f"/api/v1/jobs/{WIDE}/state?at={state[name]['sequence']}")
            took.append(time.perf_counter() - began_s)
            assert said.status == 200
        say(f"state at the {name} kept moment", statistics.median(took), "s", f"{len(said.body)} bytes")
    took = []
    for _ in range(SCRAPES):
        began_s = time.perf_counter()
        said = page.ask("/metrics")
        took.append(time.perf_counter() - began_s)
    series = sum(not line.startswith(b"#") for line in said.body.splitlines())
    say("a scrape of all metrics", statistics.median(took), "s", f"{series} series")


@dataclass
class Painted:
    """One view: times to a useful paint, and, watched for a while, the longest task of each load."""

    what: str
    path: str
    watch_s: float = 0.0
    useful_s: list[float] = field(default_factory=list)
    longest_ms: list[float] = field(default_factory=list)
    longest_cpu_ms: list[float] = field(default_factory=list)
    tasks_ms: list[float] = field(default_factory=list)  # of each load all long ones together
    asked: int = 0
    errors: list[str] = field(default_factory=list)

    async def load(self, page: AskedPage, port: int) -> None:
        async with watched(port, "about:blank") as shown:
            await shown.trace()
            await shown.call("Page.navigate", url=page.url + self.path)
            await shown.until("window.useful > 0")
            self.useful_s.append(await shown.value("window.useful") / 1000)
            await asyncio.sleep(self.watch_s)
            self.longest_ms.append(await shown.value("window.longest"))
            self.tasks_ms.append(sum(await shown.value("window.tasks")))
            self.longest_cpu_ms.append(max(await shown.tasks_ms()))
            self.asked += sum(not url.startswith((page.url, "about:")) for url in shown.asked)
            self.errors += shown.errors

    def say(self) -> None:
        loads = " ".join(f"{each:.2f}" for each in self.useful_s)
        say(f"first useful paint, {self.what}", statistics.median(self.useful_s), "s", loads)
        say("  longest task", statistics.median(self.longest_ms), "ms", f"{self.longest_ms}")
        spent = " ".join(f"{each:.0f}" for each in self.longest_cpu_ms)
        say("  longest task, processor time", statistics.median(self.longest_cpu_ms), "ms", spent)
        say("  long tasks together", statistics.median(self.tasks_ms), "ms", f"{self.tasks_ms}")
        say("  requests to other origins", self.asked, "", f"errors of the console: {self.errors[:3]}")


def watched(port: int, url: str):  # type: ignore[no-untyped-def]
    """Open a tab that notes what `WATCH` says, from its first moment on."""
    return tab(port, url, WATCH)


async def events_seen(page: AskedPage, port: int, home: Path, times: int) -> None:
    """Print how long after its commit an event is in the page."""
    bus, late = await connect(home), []
    try:
        async with watched(port, f"{page.url}/") as shown:
            await shown.until("document.querySelectorAll('.events li').length > 10")
            for number in range(times):
                await asyncio.sleep(1.3)
                late.append(await seen_after(bus, shown, number))
    finally:
        await bus.close()
    say(
        "an event is seen after its commit",
        max(late),
        "s",
        "the slowest of " + " ".join(f"{each:.2f}" for each in late),
    )


async def seen_after(bus: Bus, shown: Tab, number: int) -> float:
    """Store one fact; return the seconds until its line was in the page."""
    fact = facts.PlanWithheld(job=WIDE, constant="measuring", reason=f"number {number}")
    body, headers = told(fact, 10**7 + number)
    sequence = await bus.append(FACTS, subjects.job_fact(WIDE, fact.kind()), body, headers=headers)
    stored_ms = time.time() * 1000
    return float(await shown.until(f"window.seen[{sequence}]") - stored_ms) / 1000


def say(what: str, value: float, unit: str, more: str = "") -> None:
    """Print one figure."""
    print(f"{what:42} {value:10.3f} {unit:4} {more}", flush=True)


if __name__ == "__main__":
    main()
