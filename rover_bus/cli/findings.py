"""What `rover doctor` finds: one line each, with its remedy. Here are those about cores, clocks, releases, certificates
and Kubernetes.

Fed by registrations and last samples of hosts, the files of a stack's keys and reviews of access; printed by commands/doctor.py,
which has those about streams, hosts and jobs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from rover_bus.events.errors import RoverError

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from rover_bus.events.bus import Bus
    from rover_bus.events.identity import HostCapacity

Verdict = Literal["ok", "note", "bad"]
MOST_NAMED = 4
SKEW_S = 5.0  # a sample of a busy host is on its way for a second
SERVED_NOTE_DAYS = 25  # a stack that runs renews at thirty
AUTHORITY_NOTE_DAYS = 365


class Finding(NamedTuple):
    """One thing that was looked at."""

    verdict: Verdict
    what: str


# -- cores -------------------------------------------------------------------------------------------------------------

NOT_BOUND = {  # by what saw that
    "host": (
        "cores do not bind on {hosts}: `cores` and `max_cores` of jobs set affinity there, no limit, and the Brain "
        "chooses no cores (give the daemon a control group of its own: systemd `Delegate=yes`, a writable /sys/fs/cgroup)"
    ),
    "members": (
        "cores do not bind on {hosts}: members there find no limit in their own control groups, and the Brain chooses no cores "
        "(the kubelet sets none with `--cpu-cfs-quota=false`, `cpuCFSQuota: false` of its configuration)"
    ),
    "none": (
        "whether cores bind on {hosts} is not known: no member there has said yet that its control group holds it to its cores, "
        "as members with `cores` do when they join; before the first does, the Brain chooses no cores"
    ),
}


async def look_at_cores(bus: Bus, hosts: set[str]) -> list[Finding]:
    """Name the hosts that do not hold members to their cores, and those of which that is not known."""
    from rover_bus.cli.views.hindrances import read_registered

    registered = await read_registered(bus, hosts)
    return say_of_cores({name: fact.capacity for name, fact in registered.items()}) if hosts else []


def say_of_cores(hosts: Mapping[str, HostCapacity]) -> list[Finding]:
    """Say whether cores bind on these hosts, and what helps where they do not."""
    loose: dict[str, list[str]] = {}
    for name, each in sorted(hosts.items()):
        if not each.cores_bind:
            loose.setdefault(each.cores_seen, []).append(name)
    shown = any(each.cores_bind and each.cores_seen == "members" for each in hosts.values())
    if not loose:
        return [Finding("ok", "cores bind: members are held to theirs")]
    if shown and loose.keys() == {"none"}:
        alike = f"on {', '.join(loose['none'])} none has said so yet: taken to be like the others"
        return [Finding("ok", f"cores bind: members are held to theirs ({alike})")]
    return [
        Finding("note", NOT_BOUND[seen].format(hosts=", ".join(loose[seen])))
        for seen in NOT_BOUND
        if seen in loose
    ]


# -- clocks ------------------------------------------------------------------------------------------------------------


async def look_at_clocks(bus: Bus, hosts: set[str]) -> list[Finding]:
    """Name the hosts whose clocks differ from the broker's, by their last samples."""
    from rover_bus.cli.views.spares import last_sample

    ahead_s = {}
    for host in sorted(hosts):
        found = await last_sample(bus, host)
        if found is not None and found[0].wall_ms:
            sample, stored = found
            ahead_s[host] = (sample.wall_ms - stored.time_ms) / 1000
    return judge_clocks(ahead_s)


def judge_clocks(ahead_s: Mapping[str, float]) -> list[Finding]:
    """Say which clocks differ. `ahead_s`: by how much a host's is ahead of the broker's, in seconds."""
    off = {host: by for host, by in ahead_s.items() if abs(by) > SKEW_S}
    if not off:
        return [Finding("ok", f"clocks agree within {SKEW_S:g} s")] if ahead_s else []
    each = ", ".join(f"{host} by {by:+.0f} s" for host, by in off.items())
    whose = "all hosts differ from the broker's: its own is wrong" if len(off) == len(ahead_s) > 1 else each
    return [
        Finding(
            "note",
            f"clocks differ from the broker's: {whose} (training does not mind; times of log lines, windows of `rover freeze` and "
            "credentials with an end do: run chrony or systemd-timesyncd there)",
        )
    ]


# -- releases ----------------------------------------------------------------------------------------------------------


async def look_at_releases(bus: Bus) -> Finding:
    """Say which releases the stack's processes run, and whether all read what this release writes."""
    from rover_bus.cli.upgrading import read_stack

    try:
        stack = await read_stack(bus)
    except RoverError as error:
        return Finding("bad", f"releases of processes cannot be read: {error}")
    counted = Counter(part.release for part in stack.parts)
    runs = ", ".join(f"{release} in {count}" for release, count in sorted(counted.items()))
    formats = f"the stack writes format {stack.writes}"
    if stack.older:
        names = ", ".join(map(str, stack.older[:MOST_NAMED]))
        return Finding(
            "note",
            f"releases: {runs}; {formats}, and {names} {'do' if len(stack.older) > 1 else 'does'} not read format {stack.reads}: "
            "replace them (`rover upgrade --check` lists all; docs/operations/upgrade.md)",
        )
    if stack.writes < stack.reads:
        return Finding(
            "note", f"releases: {runs}; {formats}, all read {stack.reads}: `rover upgrade` raises it"
        )
    if len(counted) > 1:
        return Finding(
            "note",
            f"releases: {runs}; {formats}: an upgrade is under way, `rover upgrade --check` names each",
        )
    return Finding("ok", f"releases: {runs or 'no process says its own'}; {formats}")


# -- certificates ------------------------------------------------------------------------------------------------------


def look_at_certificates(root: Path, now: datetime) -> Iterator[Finding]:
    """Yield when what a stack's broker and page show ends, and its authority's certificate. `root`: the directory of its keys."""
    from rover_bus.auth.certificates import days_left

    for path, what, note_days, way in (
        (root / "certificates" / "broker.pem", "the broker's", SERVED_NOTE_DAYS, RENEWS),
        (root / "certificates" / "page.pem", "the page's", SERVED_NOTE_DAYS, RENEWS),
        (root / "authority.pem", "the stack's authority's", AUTHORITY_NOTE_DAYS, REPLACES),
    ):
        if not path.exists():
            continue
        left = days_left(path, now)
        if left is None:
            yield Finding("bad", f"{path} is no certificate: {way}")
        elif left <= 0:
            yield Finding("bad", f"{what} certificate has ended {_days(-left)} ago ({path}): {way}")
        elif left < note_days:
            yield Finding("note", f"{what} certificate ends in {_days(left)} ({path}): {way}")
        else:
            yield Finding("ok", f"{what} certificate ends in {_days(left)}")


RENEWS = (
    "`rover up` renews it when it starts, and looks each hour while it runs: is it stopped, or its disk full?"
)
REPLACES = "begin a new stack before then, which makes its own, and let the hosts join it"


def _days(days: float) -> str:
    whole = math.ceil(days)
    return "a day" if whole == 1 else f"{whole} days"


# -- Kubernetes --------------------------------------------------------------------------------------------------------


def look_at_rights(namespaces: Sequence[str], kubeconfig: str, policy: str = "") -> Iterator[Finding]:
    """Yield what an operator must do in these namespaces and this process may not, by the API server's own word."""
    import asyncio

    from rover_bus.events.errors import RoverError
    from rover_bus.kube.api import Api
    from rover_bus.kube.rights import missing

    async def ask() -> list[str]:
        api = await Api.connect(kubeconfig)
        try:
            return await missing(api, namespaces, policy)
        finally:
            await api.close()

    where = ", ".join(namespaces)
    try:
        lacks = asyncio.run(ask())
    except RoverError as error:
        yield Finding("bad", f"the API server cannot be asked for rights: {error}")
        return
    for each in lacks:
        yield Finding(
            "bad",
            f"it may not {each}: an operator needs that (the chart's rbac.yaml grants it; `helm upgrade`)",
        )
    if not lacks:
        yield Finding("ok", f"it may do all that an operator does in {where}")
