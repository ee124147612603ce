"""A hundred tenants of one job each on one broker: what the broker takes when idle, and how soon a Brain is there.

    python -m bench.tenants [--tenants 100] [--facts 200] [--idle 30]

A stack's own broker, accounts and streams; each tenant has one job, whose submission and facts are written by a submitter's and a
master's rights; no member runs. Then a Brain is started as a stack starts it, twice: the second one over what the first decided.
Prints one line a figure. Idle is measured with the Brain and no daemon connected. `--tenants 0`: what it is without any.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from rover_bus.auth.vault import RunOfJob, Vault
from rover_bus.cli.submission import submit
from rover_bus.cli.tenants import make_whole, of_registrar
from rover_bus.events import subjects
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.job import DataSpec, JobSpec
from rover_bus.events.leadership import read_leader
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import BUCKETS, FACTS, LEADERS, STREAMS

JOB, BODY = "train", b"x" * 400
LOOK_S = 0.01


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tenants", type=int, default=100)
    parser.add_argument("--facts", type=int, default=200, help="of each job, beside its submission")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rover-bench-") as directory:
        asyncio.run(measure(Path(directory), options.tenants, options.facts, options.idle))


async def measure(directory: Path, tenants: int, facts: int, idle_s: float) -> None:
    """Measure one broker."""
    vault = Vault(directory / "auth")
    vault.write_credentials("h1")
    names = [f"team-{number:03}" for number in range(tenants)]
    vault.note_tenants(names)
    vault.admit(RunOfJob(subjects.qualified(name, JOB), "0123456789ab") for name in names)
    began_s = time.perf_counter()
    broker = EmbeddedBroker(directory / "broker", rights=vault.server_configuration).start(60.0)
    say("broker answers", time.perf_counter() - began_s, "s")
    try:
        async with of_registrar(broker.url, vault.owner_credentials()) as owner:
            began_s = time.perf_counter()
            await owner.ensure(STREAMS, BUCKETS)
            await make_whole(owner, vault, names)
            say("streams of all tenants made", time.perf_counter() - began_s, "s")
            began_s = time.perf_counter()
            await write_jobs(broker.url, vault, names, facts)
            wanted = tenants * (facts + 1)
            await until_copied(owner, wanted)
            say(f"{wanted} facts stored and copied", time.perf_counter() - began_s, "s")
            for which in ("first", "second"):
                await measure_brain(directory, broker, vault, owner, which, idle_s)
        broker.restart()
        began_s = time.perf_counter()
        async with of_registrar(broker.url, vault.owner_credentials()) as owner:
            for name in names[:1]:
                held = await copied(owner)
                await owner.of(name).append(FACTS, subjects.job_fact(JOB, "job.paused"), BODY)
                await until_copied(owner, held + 1)
        say("a fact is copied again after a restart of the broker", time.perf_counter() - began_s, "s")
    finally:
        broker.stop()


async def write_jobs(url: str, vault: Vault, names: list[str], facts: int) -> None:
    """Store each tenant's job: its submission, and facts as a master's rights allow them."""
    spec = JobSpec(name=JOB, program=["train"], data=DataSpec(train="clicks.csv"))
    for name in names:
        submitter = await NatsBus.connect(url, secret=vault.person_credentials("submitter", name))
        await submit(submitter, spec)
        await submitter.close()
        job = subjects.qualified(name, JOB)
        secret = vault.member_credentials("master", job, "0123456789ab", "master-0.1", "h1")
        master = await NatsBus.connect(url, secret=secret)
        await asyncio.gather(
            *(master.append(FACTS, subjects.job_fact(JOB, "job.reported"), BODY) for _ in range(facts))
        )
        await master.close()


async def copied(owner: NatsBus) -> int:
    """Return how many facts of tenants the control account has."""
    return await owner.count(FACTS, subjects.of_tenant("*", "rover.>"))


async def until_copied(owner: NatsBus, wanted: int) -> None:
    """Wait until the control account has so many."""
    while (await copied(owner)) < wanted:  # noqa: ASYNC110 - it is the broker that is waited for
        await asyncio.sleep(LOOK_S)


async def measure_brain(
    directory: Path, broker: EmbeddedBroker, vault: Vault, owner: NatsBus, which: str, idle_s: float
) -> None:
    """Start a Brain as a stack does, wait until it leads, leave it idle, end it."""
    command = [sys.executable, "-m", "rover_bus.cli.serve", "brain", "--url", broker.url, "--host", "h1"]
    command += ["--secret-file", str(vault.credentials_file("brain"))]
    began_s = time.perf_counter()
    with (directory / "brain.log").open("ab") as log:
        brain = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: ASYNC220 - it waits for nothing
    try:
        while True:
            leader = read_leader(await owner.get(LEADERS, "brain.leader"))
            if leader is not None and leader.term:
                break
            if brain.poll() is not None:
                raise SystemExit((directory / "brain.log").read_text()[-2000:])
            await asyncio.sleep(LOOK_S)
        say(f"the {which} Brain leads after", time.perf_counter() - began_s, "s")
        await asyncio.sleep(5.0)  # it decides on what it has found
        assert broker.pid is not None
        of_broker, of_brain = psutil.Process(broker.pid), psutil.Process(brain.pid)
        before = [cpu_s(each) for each in (of_broker, of_brain)]
        await asyncio.sleep(idle_s)
        used = [cpu_s(each) - was for each, was in zip((of_broker, of_brain), before, strict=True)]
        say("broker, idle", 100 * used[0] / idle_s, "% of a core")
        say("broker", of_broker.memory_info().rss / 2**20, "MB")
        say("Brain, idle", 100 * used[1] / idle_s, "% of a core")
        say("Brain", of_brain.memory_info().rss / 2**20, "MB")
    finally:
        brain.terminate()
        brain.wait()
    await asyncio.sleep(3.0)  # its lead expires


def cpu_s(process: psutil.Process) -> float:
    """Return the seconds that a process has computed."""
    times = process.cpu_times()
    return float(times.user + times.system)


def say(what: str, figure: float, unit: str) -> None:
    print(f"{what}: {figure:.2f} {unit}", flush=True)


if __name__ == "__main__":
    main()
