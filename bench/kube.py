"""What an operator costs with 100 jobs of 2,000 pods, how soon it acts, and that it rests when nothing happens.

    ROVER_KUBE=FOLDER python -m bench.kube [--jobs 100] [--members 20] [--plans 10] [--seconds 60] [--idle 120] [--json]

A real control plane with fake nodes, a broker with the rights of a stack, and `rover operator` as a process of its own. The bench
hands in RoverJobs and plays their masters: each plan adds two members and removes two. They are parameter servers: a worker's
program would be tried first, on nodes that run nothing. "Event to request" is the operator's own measure, which its metrics have:
from the receipt of a plan to the sending of the first request for each member of it; a quantile is the bound that it is at most.
"Outer" runs from before a plan is sent to the broker until the API server has received that request (audit log): what both of them
take is in it. "Consistent" is an operator that has registered all nodes, and has asked for what was planned while there was
none. "Idle" begins when the trial of the jobs' program has given up: no node runs its pod. Processor time is the operator's alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from bench.kube_rig import USER, ControlPlane, control_plane, node_name
from bench.node import processor_s, pss_bytes
from rover_bus.auth.vault import Vault
from rover_bus.cli.tenants import of_registrar
from rover_bus.events import host_facts
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import Stored
from rover_bus.events.codec import decode, encode
from rover_bus.events.facts import MembersDesired
from rover_bus.events.identity import DesiredMember, Member
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.outbox import FactOut, write_headers
from rover_bus.events.profiles import REACTION_BOUNDS_S, OperatorProfile
from rover_bus.events.reading import read_fact
from rover_bus.events.streams import BUCKETS, FACTS, PROFILES, STREAMS
from rover_bus.events.subjects import host_facts as host_facts_of
from rover_bus.events.subjects import job_fact, operator_profile
from rover_bus.kube.crd import definitions
from rover_bus.kube.object import API_VERSION, KIND
from rover_bus.kube.pods import pod_name
from rover_bus.kube.trials import OF_TRIALS

HOST = "bench"
SPARES = "spares"  # as the chart starts an operator: each node's daemon answers what spares ask
NODES, CHANGED = 100, 2  # members that a plan adds, and removes
UNDER_WAY = 100
PATIENCE_S = 300.0
SETTLE_S = 20.0
LEASE_S = 15.0
MEBIBYTE = 1 << 20
TRIALS = ",".join(f"{key}={value}" for key, value in OF_TRIALS.items())
REQUEST_S, CORE, MEMORY_MB, CONSISTENT_S = 0.25, 0.5, 200.0, 3.0


@dataclass
class PlayedJob:
    """A job whose master is played here."""

    name: str
    uid: str
    first: int  # of the indexes that are desired
    end: int
    plan: int = 0


@dataclass
class Observed:
    """What the operator's daemons publish."""

    started: int = 0
    exited: int = 0
    registered: set[str] = field(default_factory=set)
    reactions: list[int] = field(default_factory=lambda: [0] * (len(REACTION_BOUNDS_S) + 1))
    said_ms: int = 0

    def take_own(self, stored: Stored) -> None:
        self.reactions, self.said_ms = decode(stored.body, OperatorProfile).reactions, stored.time_ms

    def take(self, stored: Stored) -> None:
        match read_fact(stored):
            case host_facts.HostStarted(adopted=False):
                self.started += 1
            case host_facts.HostExited():
                self.exited += 1
            case host_facts.HostRegistered(host=host):
                self.registered.add(host)
            case _:
                pass


class KubeBench:
    """A broker, a control plane, an operator, and the masters of all jobs in one."""

    def __init__(self, folder: Path, cluster: ControlPlane, broker: EmbeddedBroker, bus: NatsBus) -> None:
        self._folder, self._cluster, self._broker, self._bus = folder, cluster, broker, bus
        self.seen = Observed()
        self.jobs: list[PlayedJob] = []
        self.due: dict[
            tuple[str, bool], float
        ] = {}  # when a plan was sent: by pod, and whether it is to be made

    async def follow(self) -> None:
        subjects = [host_facts_of("*", kind) for kind in ("started", "exited", "registered")]
        await self._bus.follow(FACTS, subjects, self.seen.take)
        await self._bus.follow(PROFILES, [operator_profile("*")], self.seen.take_own)

    # -- the operator --------------------------------------------------------------------------------------------------

    def start_operator(self) -> None:
        secret = Vault(self._folder / "auth").credentials_file("daemon", HOST)
        words = ["--url", self._broker.url, "--secret-file", str(secret), "--host", HOST]
        words += ["--namespace", "default", "--image", "example.com/any", "--spare-priority", SPARES]
        words += ["--kubeconfig", str(self._cluster.config(USER))]
        command = [sys.executable, "-m", "rover_bus.cli.serve", "operator", *words]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        self._log = (self._folder / "operator.log").open("a")
        self.operator = subprocess.Popen(command, env=environment, stdout=self._log, stderr=self._log)

    def stop_operator(self) -> None:
        self.operator.send_signal(signal.SIGTERM)
        self.operator.wait()
        self._log.close()

    # -- jobs ----------------------------------------------------------------------------------------------------------

    async def hand_in(self, jobs: int, members: int) -> None:
        """Apply RoverJobs, and plan their first members; return when all run."""
        self._cluster.apply([_object(number) for number in range(jobs)])
        for each in self._cluster.get("rj"):
            uid = each["metadata"]["uid"].replace("-", "")[:16]
            self.jobs.append(PlayedJob(each["metadata"]["name"], uid, 0, members))
        for count, job in enumerate(self.jobs, 1):  # the control plane places some dozens a second
            await self._desire(job)
            await self._until_started(count * members - UNDER_WAY)
        await self._until_started(jobs * members)

    async def _until_started(self, least: int) -> None:
        await until(lambda: self.seen.started >= least, lambda: f"{self.seen.started} members run")

    async def change(self, job: PlayedJob) -> None:
        """Plan two members more, and two less."""
        gone = range(job.first, job.first + CHANGED)
        more = range(job.end, job.end + CHANGED)
        job.first, job.end = gone.stop, more.stop
        at_s = time.time()
        for index in (*gone, *more):
            self.due[pod_name(job.name, job.uid, _member(index)), index in more] = at_s
        await self._desire(job)

    async def _desire(self, job: PlayedJob) -> None:
        job.plan += 1
        members = [
            DesiredMember(
                member=_member(index),
                host=node_name((hash(job.uid) + index) % NODES),
                grace_s=1.0,
                start_patience_s=PATIENCE_S,
            )
            for index in range(job.first, job.end)
        ]
        position = (job.plan, 0)
        fact = MembersDesired(
            job=job.name, uid=job.uid, term=1, plan=job.plan, members=members, position=position
        )
        body = encode(fact)
        headers = write_headers(FactOut(fact, position, 1), body, job.name, 0, "bench")
        await self._bus.append(FACTS, job_fact(job.name, fact.kind()), body, headers=headers)

    # -- measured ------------------------------------------------------------------------------------------------------

    async def measure_load(self, plans_s: float, seconds: float) -> dict[str, Any]:
        """Plan at a rate; then judge by the audit log."""
        pid, self.due, exited, before = self.operator.pid, {}, self.seen.exited, self.seen.reactions
        began_s, spent_s, peak = time.time(), processor_s(pid), 0
        count = round(plans_s * seconds)
        for number in range(count):
            await asyncio.sleep(max(began_s + number / plans_s - time.time(), 0))
            await self.change(self.jobs[number % len(self.jobs)])
            if not number % 10:
                peak = max(peak, pss_bytes(pid))
        window_s = time.time() - began_s
        core = (processor_s(pid) - spent_s) / window_s
        with suppress(TimeoutError):
            await until(lambda: self.seen.exited - exited >= CHANGED * count, lambda: "ends", SETTLE_S)
        ended_ms = round(time.time() * 1000)
        await until(lambda: self.seen.said_ms > ended_ms, lambda: "the operator's own word")
        own = [now - then for now, then in zip(self.seen.reactions, before, strict=True)]
        delays = self._delays(began_s)
        every = list(self._cluster.requests(began_s))
        return {
            "plans": count,
            "changes": len(self.due),
            "reacted": sum(own),
            "p50_s": _bound(own, 0.5),
            "p99_s": _bound(own, 0.99),
            "requested": len(delays),
            "outer_p50_s": _quantile(delays, 0.5),
            "outer_p99_s": _quantile(delays, 0.99),
            "outer_most_s": _quantile(delays, 1.0),
            "core": core,
            "pss_mb": max(peak, pss_bytes(pid)) / MEBIBYTE,
            "requests": len(every),
            "refused": dict(Counter(str(each.code) for each in every if each.code >= 400)),
        }

    def _delays(self, since_s: float) -> list[float]:
        """Return from each plan to the first request for each pod of it."""
        first: dict[tuple[str, bool], float] = {}
        for each in self._cluster.requests(since_s):
            key = each.name, each.verb == "create"
            if each.resource == "pods" and each.at_s >= self.due.get(key, float("inf")):
                first[key] = min(first.get(key, each.at_s), each.at_s)
        return sorted(at_s - self.due[key] for key, at_s in first.items())

    async def measure_start(self) -> dict[str, float]:
        """Start an operator where none is, with a plan that waits."""
        self.stop_operator()
        self.due = {}
        self.seen.registered.clear()
        await self.change(self.jobs[0])
        began_s = time.time()
        self.start_operator()
        await until(lambda: len(self.seen.registered) == NODES, lambda: f"{len(self.seen.registered)} nodes")
        registered_s = time.time() - began_s
        await until(
            lambda: len(self._delays(began_s)) == len(self.due),
            lambda: "what was planned meanwhile",
            look_s=1.0,
        )  # each look reads the whole log
        asked_s = max(self._delays(began_s)) - (began_s - max(self.due.values()))
        return {"registered_s": registered_s, "asked_s": asked_s, "consistent_s": max(registered_s, asked_s)}

    async def measure_idle(self, seconds: float) -> dict[str, Any]:
        """Count what is asked while nothing happens."""
        await asyncio.sleep(SETTLE_S)
        await until(lambda: not self._cluster.get("pods", "-l", TRIALS), lambda: "a trial ends", look_s=1.0)
        began_s, spent_s = time.time(), processor_s(self.operator.pid)
        await asyncio.sleep(seconds)
        core = (processor_s(self.operator.pid) - spent_s) / seconds
        asked = Counter(f"{each.verb} {each.resource}" for each in self._cluster.requests(began_s))
        return {"core": core, "asked": dict(asked)}


def _member(index: int) -> Member:
    return Member("ps", index, 1)


def _object(number: int) -> dict[str, Any]:
    spec = {"program": ["dlrm"], "data": {"train": "t.csv", "batch_size": 64}}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": f"job-{number:03}"}, "spec": spec}


def _bound(counts: list[int], share: float) -> float:
    """Return what a share of these are at most, as far as the bounds of a histogram say it."""
    least = share * sum(counts)
    reached = zip(accumulate(counts), (*REACTION_BOUNDS_S, float("inf")), strict=True)
    return next(bound for count, bound in reached if count >= least)


def _quantile(values: list[float], share: float) -> float:
    return values[min(int(share * len(values)), len(values) - 1)] if values else float("inf")


async def until(
    claim: Callable[[], bool], what: Callable[[], str], patience_s: float = PATIENCE_S, look_s: float = 0.02
) -> None:
    try:
        async with asyncio.timeout(patience_s):
            while not claim():  # noqa: ASYNC110 - it is another process that is waited for
                await asyncio.sleep(look_s)
    except TimeoutError as error:
        raise TimeoutError(what()) from error


async def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    vault = Vault(folder / "auth")
    vault.write_credentials(HOST)
    with (
        EmbeddedBroker(folder / "broker", rights=vault.server_configuration) as broker,
        control_plane(folder, NODES) as cluster,
    ):
        cluster.apply(list(definitions()))
        async with of_registrar(broker.url, vault.owner_credentials()) as bus:
            await bus.ensure(STREAMS, BUCKETS)
            bench = KubeBench(folder, cluster, broker, bus)
            await bench.follow()
            bench.start_operator()
            try:
                await until(
                    lambda: len(bench.seen.registered) == NODES,
                    lambda: f"{len(bench.seen.registered)} nodes",
                )
                await bench.hand_in(options.jobs, options.members)
                await asyncio.sleep(SETTLE_S)
                load = [os.getloadavg()[0]]
                result: dict[str, Any] = {"load": await bench.measure_load(options.plans, options.seconds)}
                load.append(os.getloadavg()[0])
                await asyncio.sleep(SETTLE_S)
                result["start"] = await bench.measure_start()
                result["idle"] = await bench.measure_idle(options.idle)
            finally:
                bench.stop_operator()
            return result | {"load_average": load}


def judge(result: dict[str, Any]) -> dict[str, bool]:
    """Say which targets hold."""
    load = result["load"]
    rest = {"get leases", "patch leases"}
    return {
        "all requested": load["requested"] == load["reacted"] == load["changes"],
        "event to request": load["p99_s"] <= REQUEST_S,
        "core": load["core"] <= CORE,
        "memory": load["pss_mb"] <= MEMORY_MB,
        "consistent": result["start"]["consistent_s"] <= CONSISTENT_S,
        "idle": all(each in rest or each.startswith("watch ") for each in result["idle"]["asked"]),
    }


def main() -> None:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--members", type=int, default=20, help="of each job")
    parser.add_argument("--plans", type=float, default=10.0, help="a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--idle", type=float, default=120.0, help="seconds")
    parser.add_argument("--keep", default="", metavar="DIR", help="for the logs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # nothing stays behind
    with tempfile.TemporaryDirectory(prefix="rover-bench-") as folder:
        result = asyncio.run(measure(Path(options.keep or folder), options))
    met = judge(result)
    for part, figures in result.items():
        print(f"{part}: {figures}")
    print("met: " + ", ".join(f"{what}: {'yes' if held else 'NO'}" for what, held in met.items()))
    if options.json:
        print(json.dumps(result | {"met": met}))


if __name__ == "__main__":
    main()
