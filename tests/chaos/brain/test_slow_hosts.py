"""A host whose members are stopped most of the time: named, left, avoided by the next job; used again when the other one slows.

Two daemons of this machine are two hosts. Nothing is asserted about time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from outside import rover
from slowed import Slowed
from small_job import SmallJob, hosts_up

from rover_bus.cli.stack import RunningStack
from rover_bus.node.local.layout import list_members

pytestmark = [pytest.mark.chaos, pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1500)]
SHARE = 0.3
MEMORY = "hosts.slow_memory=1m"  # what was seen of a host that was left fades within half a minute


def slowed(stack: RunningStack, *jobs: str) -> Slowed:
    """Lets the workers and servers of a host run only a share of the time."""

    def pids() -> Iterator[int]:
        for job in jobs:
            for status in list_members(stack.home.node, job):
                if status.pid and status.member.role != "master":
                    yield status.pid

    return Slowed(pids, SHARE)


def job(directory: Path, home: Path, name: str, workers: int) -> SmallJob:
    folder = directory / name
    folder.mkdir()
    return SmallJob(
        folder=folder,
        home=home,
        name=name,
        rows=20_000,
        epochs=20,
        workers=workers,
        servers=1,
        pace_s=0.3,
        checkpoint='path = "store"\nevery = "1h"',
    )


def said(home: Path, kind: str) -> list[dict[str, Any]]:
    """Return what was said of hosts."""
    done = rover("events", "-k", kind, "--json", home=home)
    return [json.loads(line)["body"] for line in done.stdout.splitlines()]


def hosts_of(hosts: dict[str, RunningStack], job: str, *roles: str) -> set[str]:
    """Return the hosts where members of a job have a process: of these roles, or all but masters."""
    wanted = roles or ("worker", "ps")
    return {
        host
        for host, stack in hosts.items()
        if any(each.pid and each.member.role in wanted for each in list_members(stack.home.node, job))
    }


def test_a_slow_host_is_left_and_avoided_and_used_again_when_another_one_slows(tmp_path: Path) -> None:
    with hosts_up(tmp_path, "h1", "h2", settings=[MEMORY]) as hosts:
        home = hosts["h1"].home.root
        one, two = job(tmp_path, home, "one", 4), job(tmp_path, home, "two", 2)
        one.submit()
        one.until(lambda: one.facts("plan.settled"), "all are there")
        assert hosts_of(hosts, "one") == {"h1", "h2"}

        with slowed(hosts["h2"], "one"):
            one.until(lambda: any(each["host"] == "h2" for each in said(home, "host.slow")), "h2 is slow")
            assert "host h2 is slow" in rover("doctor", home=home).stdout
            # By a plan of its own, or by one that replaces a worker that stayed slow: both name the host.
            one.until(
                lambda: any(plan["slow_hosts"] == ["h2"] for plan in one.facts("plan.proposed")),
                "a plan names h2",
            )
            one.until(lambda: hosts_of(hosts, "one", "worker") == {"h1"}, "its workers leave h2")
            two.submit()
            two.until(lambda: two.facts("plan.settled"), "the second job runs")
            assert hosts_of(hosts, "two") == {"h1"}

        one.until(
            lambda: any(each["host"] == "h2" for each in said(home, "host.recovered")), "h2 is used again"
        )
        with slowed(hosts["h1"], "one", "two"):
            one.until(lambda: any(each["host"] == "h1" for each in said(home, "host.slow")), "h1 is slow")
            one.until(
                lambda: "h2" in hosts_of(hosts, "one", "worker") | hosts_of(hosts, "two", "worker"),
                "workers go to h2",
            )

        for each in (one, two):
            assert each.rover("cancel", each.name).returncode == 0
