"""What the node daemon and its shims cost, and how soon a death is known.

    python -m bench.node [--json] [--idle-s 20] [--kills 20]

One broker, one daemon as a process of its own. Processor time is read from /proc of the measured process alone; memory is PSS. The
start of a shim stands beside the bare interpreter's, taken in turns, because machines differ. "Death to fact" runs from the
SIGKILL of a member to the arrival of its `host.exited` at another client of the broker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from rover_bus.events import facts, host_facts
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import Stored
from rover_bus.events.codec import decode, encode
from rover_bus.events.identity import DesiredMember, Member, Resources
from rover_bus.events.job import DataSpec, JobSpec
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.outbox import FactOut, write_headers
from rover_bus.events.streams import BUCKETS, FACTS, STREAMS
from rover_bus.events.subjects import host_fact, job_fact
from rover_bus.node.local import locks
from rover_bus.node.local.layout import StartRecord, StateDirectory, list_members
from rover_bus.node.local.spawning import BOOT

HOST = "bench"
UID = "0000000000be"
SERVE = """
import asyncio, signal, sys
from rover_bus.events.nats_bus import NatsBus
from rover_bus.node.service import run_daemon

async def main(url, secret, state_dir):
    bus, stop = await NatsBus.connect(url, secret=secret, name="daemon"), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await run_daemon(bus, "bench", state_dir, stop=stop)
    await bus.close()

asyncio.run(main(*sys.argv[1:]))
"""


def processor_s(pid: int) -> float:
    """Return the processor time of a process, from the scheduler's own nanoseconds where the kernel keeps them."""
    try:
        spent = Path(f"/proc/{pid}/schedstat").read_text().split()
        return int(spent[0]) / 1e9
    except OSError:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def run_once(command: list[str], fds: tuple[int, ...] = ()) -> float:
    """Run a command to its end and return its processor milliseconds, its children included."""
    before = os.times()
    subprocess.run(command, check=True, pass_fds=fds, start_new_session=True)
    after = os.times()
    return 1e3 * (after.children_user + after.children_system - before.children_user - before.children_system)


def run_shim(directory: Path, lock: Path) -> float:
    directory.mkdir(parents=True)
    (directory / "limits").write_text("0 " + " ".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0))))
    life = locks.hold(str(directory / "alive"))
    reading, writing = os.pipe()
    assert life is not None
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        BOOT,
        f"dir={directory}",
        f"alive={life}",
        f"report={writing}",
    ]
    command += [f"lock={lock}", "cwd=", "grace=1", "orphan=30", "oom=/proc/vmstat", "--", "true"]
    try:
        return run_once(command, (life, writing))
    finally:
        for fd in (life, reading, writing):
            os.close(fd)


def measure_starts(directory: Path, rounds: int = 15) -> dict[str, float]:
    """Time a shim around `true` and the bare interpreter, in turns. `os.times` counts in ticks: many runs make the mean."""
    lock = directory / "daemon.lock"
    directory.mkdir()
    lock.touch()
    shims, bare = list[float](), list[float]()
    for number in range(rounds):
        shims.append(run_shim(directory / str(number), lock))
        bare.append(run_once([sys.executable, "-I", "-S", "-c", "pass"]))
    shim_ms, bare_ms = statistics.mean(shims), statistics.mean(bare)
    return {
        "shim_start_to_end_cpu_ms": shim_ms,
        "bare_python_cpu_ms": bare_ms,
        "shim_over_bare": shim_ms / bare_ms,
    }


class Bench:
    """A broker, a daemon, a client that desires and listens."""

    def __init__(self, directory: Path) -> None:
        self.state_dir = directory / "state"
        self.broker = EmbeddedBroker(directory / "broker")
        self.exits: dict[str, float] = {}
        self.exited = asyncio.Event()
        self.said = 0

    async def open(self) -> None:
        self.broker.start()
        self.bus = await NatsBus.connect(self.broker.url, secret=self.broker.secret)
        await self.bus.ensure(STREAMS, BUCKETS)
        await self.bus.follow(FACTS, [host_fact(HOST, "exited")], self.observe)
        self.daemon = self.start_daemon()

    def start_daemon(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", SERVE, self.broker.url, self.broker.secret, str(self.state_dir)]
        return subprocess.Popen(command, cwd=Path(__file__).resolve().parents[1])

    async def close(self) -> None:
        self.daemon.terminate()
        self.daemon.wait()
        await self.bus.close()
        self.broker.stop()

    def observe(self, stored: Stored) -> None:
        name = str(decode(stored.body, host_facts.HostExited).member)
        self.exits[name] = time.perf_counter()
        self.exited.set()

    async def say(self, fact: facts.JobFact) -> None:
        """Publish a fact as a master does."""
        self.said += 1
        fact = fact.replace(position=(self.said, 0))
        body = encode(fact)
        headers = write_headers(FactOut(fact, (self.said, 0), 1), body, fact.job, 0, "bench")
        await self.bus.append(FACTS, job_fact(fact.job, fact.kind()), body, headers=headers)

    async def desire(self, incarnation: int, memory_bytes: int = 0) -> None:
        line = DesiredMember(
            member=Member("worker", 0, incarnation),
            host=HOST,
            command=["sleep", "600"],
            resources=Resources(memory_bytes=memory_bytes),
        )
        await self.say(facts.MembersDesired(job="bench", uid=UID, term=1, plan=incarnation, members=[line]))

    async def pid_of(self, incarnation: int) -> int:
        name = str(Member("worker", 0, incarnation))
        while True:
            for each in list_members(self.state_dir):
                if str(each.member) == name and each.pid:
                    return each.pid
            await asyncio.sleep(0.01)

    def shim_of(self, incarnation: int) -> int:
        life = StateDirectory(self.state_dir).incarnation("bench", UID, Member("worker", 0, incarnation))
        started = life.read("started", StartRecord)
        assert started is not None
        return started.shim


async def idle(pid: int, seconds: float) -> float:
    """Return the percent of a core that a process uses over `seconds`."""
    before, began = processor_s(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    return 100 * (processor_s(pid) - before) / (time.perf_counter() - began)


async def measure_deaths(bench: Bench, first: int, kills: int) -> dict[str, float]:
    delays = []
    for incarnation in range(first, first + kills):
        await bench.desire(incarnation)
        pid = await bench.pid_of(incarnation)
        await asyncio.sleep(0.1)
        killed = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        name = str(Member("worker", 0, incarnation))
        while name not in bench.exits:
            await bench.exited.wait()
            bench.exited.clear()
        delays.append(1e3 * (bench.exits[name] - killed))
    return {"death_to_fact_ms_median": statistics.median(delays), "death_to_fact_ms_max": max(delays)}


async def measure(directory: Path, idle_s: float, kills: int) -> dict[str, float]:
    bench = Bench(directory)
    await bench.open()
    try:
        await asyncio.sleep(3.0)
        figures = {"daemon_idle_percent": await idle(bench.daemon.pid, idle_s)}
        figures["daemon_pss_mb"] = pss_bytes(bench.daemon.pid) / 1e6
        spec = JobSpec(name="bench", program=["true"], data=DataSpec(train="x"))
        await bench.say(facts.JobSubmitted(job="bench", uid=UID, spec=spec))
        for name, incarnation, limit in (("shim", 1, 0), ("shim_watching_memory", 2, 1 << 40)):
            await bench.desire(incarnation, limit)
            await bench.pid_of(incarnation)
            await asyncio.sleep(1.0)
            shim = bench.shim_of(incarnation)
            figures[f"{name}_idle_percent"] = await idle(shim, idle_s / 2)
            figures[f"{name}_pss_mb"] = pss_bytes(shim) / 1e6
        figures["daemon_with_one_member_percent"] = await idle(bench.daemon.pid, idle_s / 2)
        figures |= await measure_deaths(bench, 3, kills)
    finally:
        await bench.close()
    return figures


def within(directory: str, work: Callable[[Path], Awaitable[dict[str, float]]]) -> dict[str, float]:
    async def main() -> dict[str, float]:
        return await work(Path(directory))

    return asyncio.run(main())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--idle-s", type=float, default=20.0, help="how long to watch an idle process")
    parser.add_argument("--kills", type=int, default=20, help="members to kill")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        figures = measure_starts(Path(directory) / "starts")
        figures |= within(directory, lambda path: measure(path, options.idle_s, options.kills))
    for name, value in figures.items():
        print(f"{name:34s} {value:10.3f}")
    if options.json:
        print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
