"""Spares as people see them: rows of `rover members`, and what `rover doctor` says of those that fail."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rover_bus.cli.commands.members import list_spares
from rover_bus.cli.connection import Address
from rover_bus.cli.home import Home
from rover_bus.cli.views.spares import as_table, failing
from rover_bus.events.facts import Fact
from rover_bus.events.host_facts import HostSpareFailed, HostSpareMended
from rover_bus.events.identity import DesiredMember, Member
from rover_bus.events.profiles import HostProfile, SpareSample
from rover_bus.node.local import locks
from rover_bus.node.local.layout import IncarnationDirectory, OrderRecord, StartRecord, StateDirectory


def sample(host: str, *numbers: int, job: str = "demo") -> HostProfile:
    spares = [
        SpareSample(job=job, number=each, pid=100 + each, state="ready", age_s=7.0, memory_bytes=30 << 20)
        for each in numbers
    ]
    return HostProfile(
        window_s=1.0, host=host, cores=4, cores_used=1, memory_bytes=1, memory_used_bytes=1, spares=spares
    )


@contextmanager
def stack_with_a_spare(root: Path) -> Iterator[Address]:
    """A host with a worker of the job, a spare that is ready, one that loads, and one that is dead."""
    home = StateDirectory(Home(root).node)
    member = Member("worker", 0, 1)
    worker = home.incarnation("demo", "u1", member)
    worker.path.mkdir(parents=True)
    desired = DesiredMember(member=member, host="here", command=["true"])
    worker.write("order", OrderRecord(job="demo", uid="u1", desired=desired))
    held = []
    for number in (1, 2, 3):
        spare = IncarnationDirectory(home.spare(f"demo.u1.spare-abc-{number}"))
        spare.path.mkdir(parents=True)
        (spare.path / "loaded").touch()
        if number != 3:
            held.append(locks.hold(str(spare.path / "alive")))
            spare.write("started", StartRecord(shim=1, pid=os.getpid(), pid_started=1))
    (home.spare("demo.u1.spare-abc-1") / "ready").touch()
    try:
        yield Address("", None, Home(root))
    finally:
        for lock in held:
            if lock is not None:
                os.close(lock)


def test_spares_of_this_host_are_read_from_its_records_and_those_of_others_from_their_samples(
    tmp_path: Path,
) -> None:
    samples = {
        "here": sample("here", 9),
        "there": sample("there", 4),
        "third": sample("third", 5, job="other"),
    }
    with stack_with_a_spare(tmp_path) as stack:
        rows = list_spares(stack, "demo", samples)
    told = [(row["role"], row["index"], row["host"], row["state"]) for row in rows]
    assert told == [
        ("spare", 1, "here", "ready"),
        ("spare", 2, "here", "loading"),
        ("spare", 4, "there", "ready"),
    ]
    assert rows[0]["pid"] == os.getpid()
    assert rows[0]["memory_bytes"] > 0
    assert (as_table(rows[2])["memory"], rows[2]["age_s"]) == ("30 MiB", 7.0)


def failed(host: str, failures: int, daemon: str = "d1", uid: str = "u1") -> HostSpareFailed:
    return HostSpareFailed(
        host=host,
        job="demo",
        uid=uid,
        daemon=daemon,
        number=failures,
        failures=failures,
        why="it ended by itself: SIGKILL",
        again_s=60.0,
    )


def test_spares_that_fail_again_and_again_are_named_with_cause_and_remedy() -> None:
    facts: list[Fact] = [failed("a", 1), failed("a", 2), failed("b", 1)]
    (said,) = failing(facts, {"a": "d1", "b": "d1"})["demo", "u1"]
    assert said.startswith("spares fail on host a, 2 in a row")
    assert "SIGKILL" in said
    assert "[workers] spares = 0" in said
    assert "after 60 s" in said


def test_spares_that_are_ready_again_and_those_of_a_daemon_that_is_gone_are_not_named() -> None:
    mended = HostSpareMended(host="a", job="demo", uid="u1", number=3)
    assert failing([failed("a", 2), mended], {"a": "d1"}) == {}
    assert failing([failed("a", 2)], {"a": "d2"}) == {}
    assert failing([failed("a", 2)], {}) == {}
    assert list(failing([failed("a", 2), mended, failed("a", 3)], {"a": "d1"})) == [("demo", "u1")]
