"""A server is killed, bits flip in its slots before its successor opens them: the next source is taken, samples count once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from small_job import SmallJob, hosts_up

from rover_bus.cli.stack import RunningStack
from rover_bus.flash.digests import is_digested
from rover_bus.flash.places import host_root, parts_in
from rover_bus.flash.staged import Found, find_staged, open_staged
from rover_bus.node.local.layout import list_members

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.broker,
    pytest.mark.timeout(900),
]  # each waits for several rounds of checkpoints
FLIPS = 20  # in each slot
ONLY_MEMORY = 'every = "1s"\npersist = false'


def make_job(folder: Path, home: Path, checkpoint: str, servers: int = 1) -> SmallJob:
    return SmallJob(
        folder=folder,
        home=home,
        rows=6_000,
        epochs=2,
        workers=2,
        servers=servers,
        leases='heartbeat = "300ms"',
        checkpoint=checkpoint,
    )


@contextmanager
def no_server_starts(stack: RunningStack) -> Iterator[None]:
    """The daemon, which starts the successor, stands still meanwhile."""
    pid = stack.pids()["daemon"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def kill_server(stack: RunningStack, job: SmallJob, index: int = 0) -> None:
    """SIGKILL a server, and wait until nothing of it can write any more."""
    [server] = [
        each
        for each in list_members(stack.home.node, job.name)
        if (each.member.role, each.member.index, each.state) == ("ps", index, "running")
    ]
    os.kill(server.pid, signal.SIGKILL)
    while (
        Path(f"/proc/{server.pid}").exists() and "Z (" not in Path(f"/proc/{server.pid}/status").read_text()
    ):
        time.sleep(0.01)


def slots_of(stack: RunningStack, part: str) -> list[Found]:
    """The staged cuts of a part on a host, the newest first."""
    root = host_root(stack.home.node)
    if not root.is_dir():
        return []
    homes = [path for path in root.iterdir() if part in parts_in(path) and not path.name.endswith("-parity")]
    return [found for home in homes for found in find_staged(home, part)]


def flip_bits(found: Found, chance: random.Random) -> None:
    """Flip bits in the arrays of a staged cut, those that a server goes on with."""
    with open_staged(found.path) as staged:
        places = [
            staged.seal.data_offset_bytes + entry.offset_bytes + chance.randrange(entry.size_bytes)
            for entry in chance.choices([each for each in staged.layout.entries if each.size_bytes], k=FLIPS)
        ]
    with open(found.path, "r+b") as file:
        for place in places:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ (1 << chance.randrange(8))]))


def damage(stack: RunningStack, part: str, newest_only: bool) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    slots = slots_of(stack, part)
    for found in slots[:1] if newest_only else slots:
        flip_bits(found, chance)


def digested(stack: RunningStack, part: str) -> list[Found]:
    return [each for each in slots_of(stack, part) if is_digested(each.path, each.seal)]


def restored(job: SmallJob) -> dict[str, Any]:
    job.until(lambda: job.facts("server.restored"), "a server is restored")
    [told] = job.facts("server.restored")
    return told


def test_damage_of_the_newest_cut_alone_costs_the_samples_since_the_one_before_and_the_event_says_so(
    tmp_path: Path,
) -> None:
    with hosts_up(tmp_path, "a") as hosts:
        stack = hosts["a"]
        job = make_job(tmp_path, stack.home.root, ONLY_MEMORY)
        job.submit()
        job.until(lambda: len(digested(stack, "ps-0")) > 1, "two cuts with digests")
        with no_server_starts(stack):
            kill_server(stack, job)
            newest, before = slots_of(stack, "ps-0")[:2]
            damage(stack, "ps-0", newest_only=True)
        told = restored(job)
        assert (told["source"], told["cut"]) == ("memory", before.seal.cut), told
        assert told["samples_again"] > 0
        failed = [each for each in job.facts("checkpoint.failed") if each["cut"] == newest.seal.cut]
        assert any(str(newest.path) in each["reason"] and "bytes " in each["reason"] for each in failed), (
            failed
        )
        job.complete()


def test_damage_of_all_cuts_in_memory_is_named_and_storage_is_next(tmp_path: Path) -> None:
    with hosts_up(tmp_path, "a") as hosts:
        stack = hosts["a"]
        job = make_job(tmp_path, stack.home.root, 'every = "1s"\npath = "store"')
        job.submit()
        job.until(lambda: len(job.facts("checkpoint.ready")) > 1, "checkpoints on storage")
        with no_server_starts(stack):
            kill_server(stack, job)
            damage(stack, "ps-0", newest_only=False)
        told = restored(job)
        assert told["source"] == "storage", told
        assert any("are not what was written" in line and ".slot" in line for line in told["refused"]), told
        job.complete()
        assert job.rover("checkpoint", "verify", job.name, "--storage", "store").returncode == 0


def test_damage_of_own_memory_is_made_up_for_by_another_host_s_copy(tmp_path: Path) -> None:
    with hosts_up(tmp_path, "a", "b") as hosts:
        job = make_job(tmp_path, hosts["a"].home.root, 'every = "2s"\ncopies = 1\npersist = false', servers=2)
        job.submit()
        job.until(lambda: job.facts("checkpoint.redundant"), "a redundant cut")
        owner = next(
            stack for stack in hosts.values() if any(_is_own(each) for each in slots_of(stack, "ps-0"))
        )
        with no_server_starts(owner):
            kill_server(owner, job)
            damage(owner, "ps-0", newest_only=False)
        told = restored(job)
        # A host whose daemon stands still for too long is left: what is a peer's copy for the first host is memory on the other.
        where = [fact["host"] for fact in job.facts("member.admitted") if fact["member"] == told["member"]]
        stayed = hosts[where[0]] is owner
        assert told["source"] == ("peer" if stayed else "memory"), told
        job.complete()


def test_damage_of_own_memory_is_made_up_for_by_parity(tmp_path: Path) -> None:
    with hosts_up(tmp_path, "a", "b", "c") as hosts:
        job = make_job(tmp_path, hosts["a"].home.root, 'every = "2s"\nparity = 1\npersist = false', servers=3)
        job.submit()
        job.until(lambda: job.facts("checkpoint.redundant"), "a redundant cut")
        owner = next(
            stack for stack in hosts.values() if any(_is_own(each) for each in slots_of(stack, "ps-1"))
        )
        with no_server_starts(owner):
            kill_server(owner, job, 1)
            damage(owner, "ps-1", newest_only=False)
        told = restored(job)
        assert told["source"] == "parity", told
        assert told["member"]["index"] == 1
        job.complete()


def _is_own(found: Found) -> bool:
    return not found.path.parent.name.endswith("-copies")
