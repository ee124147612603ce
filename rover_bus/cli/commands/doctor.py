"""`rover doctor`: what this machine has, what a running stack lacks, and what to do about it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rover_bus.cli.completion import complete_jobs
from rover_bus.cli.connection import Address, find_stack, split_name, stack_options, visit
from rover_bus.cli.findings import (
    Finding,
    Verdict,
    look_at_certificates,
    look_at_clocks,
    look_at_cores,
    look_at_releases,
    look_at_rights,
)
from rover_bus.cli.home import Home, NoStack
from rover_bus.cli.views.tables import output_option, show
from rover_bus.flash.errors import NoCheckpoint

if TYPE_CHECKING:
    from rover_bus.cli.views.hindrances import Present
    from rover_bus.cli.views.history import Happened
    from rover_bus.events.job import JobSpec
    from rover_bus.events.nats_bus import NatsBus
    from rover_bus.events.nats_jetstream import StoreUsage
    from rover_bus.flash.location import Location

MARKS: dict[Verdict, tuple[str, str]] = {
    "ok": ("ok  ", "green"),
    "note": ("note", "yellow"),
    "bad": ("bad ", "red"),
}
SHARED_MEMORY_WANTED_BYTES = 256 << 20
DISK_WANTED_BYTES = 1 << 30
UNHEALTHY = 1
STORE_NEARLY_FULL = 0.8
GROWTH_S = 3600.0
ENDINGS_S = 86_400.0


@click.command()
@stack_options
@click.option("--settings", is_flag=True, help="Print everything that can be set, and what it is set to.")
@click.option(
    "--job", default="", help="With --settings: as they hold for this job.", shell_complete=complete_jobs
)
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    help="Check also what an operator may do in this namespace of a Kubernetes cluster; may be repeated, that of its Lease first.",
)
@click.option(
    "--kubeconfig", default="", help="The cluster; left out: the one that this process is a pod of."
)
@click.option(
    "--plan-answers",
    default="",
    metavar="POLICY",
    help="With --namespace: the operator takes answers to plans under this policy (RELEASE-NAMESPACE-answers), and reads it.",
)
@output_option
@click.pass_context
def doctor(  # noqa: PLR0913 - a command's options are its parameters
    context: click.Context,
    directory: str,
    url: str,
    secret_file: str,
    whose: str,
    settings: bool,
    job: str,
    namespaces: tuple[str, ...],
    kubeconfig: str,
    plan_answers: str,
    output: str,
) -> None:
    """Check this machine, and the stack that runs here (or at --url); with --tenant what there is of one tenant. Exit code 1 when
    something is bad.

    --settings prints what an operator may set, and checks nothing.
    """
    if settings or job:
        named = {"job": job}
        tenant = split_name(named, whose)
        print_settings(lambda: find_stack(directory, url, secret_file, tenant), named["job"], output)
        return
    if output == "json":
        raise click.UsageError("only --settings has a form for programs")
    stack = look_at_stack(lambda: find_stack(directory, url, secret_file, whose))
    findings = [*look_at_machine(Home.find(directory)), *stack]
    if namespaces:
        findings += look_at_rights(namespaces, kubeconfig, plan_answers)
    for verdict, what in findings:
        mark, colour = MARKS[verdict]
        click.echo(f"{click.style(mark, fg=colour)}  {what}")
    context.exit(UNHEALTHY if any(each.verdict == "bad" for each in findings) else 0)


def print_settings(find: Callable[[], Address], job: str, output: str) -> None:
    """Print every setting as it holds in the stack that runs; without one, as this environment sets it. Raises InputError."""
    from rover_bus.cli.views import settings as view
    from rover_bus.events.written_settings import choose

    async def read(bus: NatsBus) -> list[view.SettingRow]:
        spec = await view.read_spec(bus, job) if job else None
        return view.rows_of(await view.read_chosen(bus), await view.read_hosts(bus), spec)

    try:
        stack = find()
    except NoStack:
        if job:
            raise
        rows = view.rows_of(choose((), os.environ), {})
    else:
        rows = visit(stack, read)
    show([row.as_json() if output == "json" else row.as_table() for row in rows], view.COLUMNS, output)


def look_at_machine(home: Home) -> Iterator[Finding]:
    """Yield what this machine has that a stack needs."""
    from rover_bus.events.broker import BrokerMissing, find_server

    yield Finding("ok", f"Python {platform.python_version()} on {platform.system()} {platform.release()}")
    if sys.platform != "linux":
        yield Finding(
            "bad", "members run on Linux only (process groups, /proc): use it as a client, with --url"
        )
    yield Finding("ok", f"{len(os.sched_getaffinity(0))} cores for this process")
    try:
        yield Finding("ok", f"nats-server: {find_server()}")
    except BrokerMissing as error:
        yield Finding("bad", str(error))
    try:
        import uvloop  # noqa: F401
    except ImportError:
        yield Finding(
            "note", "uvloop is not installed: requests take a third longer (pip install 'rover-bus[speed]')"
        )
    yield from _look_at_space(home)
    yield from _look_at_tenants(home)
    yield from look_at_certificates(home.auth, datetime.now(UTC))
    yield from look_at_checkpoints(home.checkpoints)


def _look_at_tenants(home: Home) -> Iterator[Finding]:
    from rover_bus.auth.store_limits import StoreLimits
    from rover_bus.auth.vault import Vault

    vault = Vault(home.auth)
    limits = StoreLimits(vault.root).all
    if unlimited := [each for each in vault.tenants if not limits.get(each)]:
        yield Finding(
            "note",
            f"tenants may fill the whole store, which stops every job: {', '.join(unlimited)} (`rover auth add TENANT --store`)",
        )


def look_at_checkpoints(storage: Location, named: str = "") -> Iterator[Finding]:
    """Yield the checkpoints below a storage that are damaged, a line a run of a job."""
    from rover_bus.events.errors import RoverError
    from rover_bus.flash.persist import list_manifests
    from rover_bus.flash.retention import list_damaged
    from rover_bus.flash.storage import list_runs

    try:
        for run in list_runs(storage):
            aside, refused = list_damaged(run.files), list_manifests(run.files)[1]
            if aside or refused:
                reasons = [*refused, *(each.reason for each in aside)]
                yield Finding(
                    "bad",
                    f"{len(reasons)} damaged {'checkpoint' if len(reasons) == 1 else 'checkpoints'} of {run.job} in {run.path}: "
                    f"{reasons[0]}; `rover checkpoint prune {run.job} --damaged{named}` frees them",
                )
    except NoCheckpoint:
        return
    except RoverError as error:
        yield Finding("bad", f"checkpoints in {storage} cannot be looked at: {error}")


TRIED_AGAIN = (
    " (another release tries it again; `rover events -k rule.switched_off -o json` has what to report)"
)


def _look_at_space(home: Home) -> Iterator[Finding]:
    shared = Path("/dev/shm")
    free = shutil.disk_usage(shared).free if shared.is_dir() else 0
    enough = free >= SHARED_MEMORY_WANTED_BYTES
    advice = "" if enough else ": enlarge it (docker run --shm-size), checkpoints are staged there"
    yield Finding(
        "ok" if enough else "note", f"shared memory: {free / 2**20:,.0f} MiB free in {shared}{advice}"
    )
    place = next(path for path in (home.root, *home.root.parents) if path.exists())
    free = shutil.disk_usage(place).free
    enough = free >= DISK_WANTED_BYTES
    advice = "" if enough else ": a full disk stalls commits (nothing is lost); make room"
    yield Finding("ok" if enough else "bad", f"disk: {free / 2**30:,.1f} GiB free below {place}{advice}")
    if not os.access(place, os.W_OK):
        yield Finding("bad", f"{place} cannot be written: choose another --dir")


def look_at_stack(find: Callable[[], Address]) -> Iterator[Finding]:
    """Yield what is wrong with a stack, or with what one tenant has of it; or that there is none."""
    from rover_bus.events.errors import RoverError

    try:
        stack = find()
    except NoStack as error:
        yield Finding("note", str(error))
        return
    try:
        yield from visit(stack, lambda bus: _look_at_bus(bus, stack))
    except RoverError as error:
        yield Finding("bad", str(error))


async def _look_at_bus(bus: NatsBus, stack: Address) -> list[Finding]:
    from rover_bus.cli.views.hindrances import read_present
    from rover_bus.events.streams import BUCKETS, OF_TENANT, STREAMS
    from rover_bus.events.subjects import DEFAULT_TENANT

    found = [Finding("ok", f"broker at {stack.url}")]
    buckets = BUCKETS if bus.tenant == DEFAULT_TENANT else OF_TENANT
    found += [Finding("bad", difference) for difference in await bus.differences(STREAMS, buckets)]
    if len(found) == 1:
        found.append(
            Finding("ok", f"{len(STREAMS)} streams and {len(buckets)} buckets are as this release wants them")
        )
    present = await read_present(bus)
    if present.hosts:
        found.append(Finding("ok", f"hosts: {', '.join(sorted(present.hosts))}"))
    else:
        found.append(
            Finding(
                "bad",
                "no host is there: no node daemon has said so (services/daemon.log says why; `rover up`, `rover join`)",
            )
        )
    found += await look_at_cores(bus, present.hosts)
    if bus.tenant == DEFAULT_TENANT:
        found += await look_at_clocks(bus, present.hosts)
        found.append(await look_at_releases(bus))
    if not present.brain:
        found.append(
            Finding("note", "no Brain leads: no job gets a plan (services/brain.log says why; `rover up`)")
        )
    found += await look_at_endings(bus)
    found += await look_at_store(bus, _store_limit(stack) if bus.tenant == DEFAULT_TENANT else 0)
    return [*found, *await _look_at_logs(bus, present)]


async def look_at_endings(bus: NatsBus) -> list[Finding]:
    """Find services that ended by themselves within a day, however well they run again."""
    from rover_bus.cli.views.history import read_facts
    from rover_bus.events.host_facts import HostServiceEnded
    from rover_bus.events.subjects import host_facts

    since_ms = (time.time() - ENDINGS_S) * 1000
    ended: dict[tuple[str, str], list[HostServiceEnded]] = {}
    async for happened in read_facts(bus, [host_facts(fact=HostServiceEnded.kind())]):
        fact = happened.fact
        if isinstance(fact, HostServiceEnded) and happened.stored.time_ms >= since_ms:
            ended.setdefault((fact.service, fact.host), []).append(fact)
    return [
        Finding(
            "note",
            f"the {service} of host {host} ended {'once' if len(each) == 1 else f'{len(each)} times'} within a day, last by "
            f"{each[-1].exit.describe() or each[-1].exit.reason} (`rover events -k host.service_ended -o json` has its last lines)",
        )
        for (service, host), each in sorted(ended.items())
    ]


def _store_limit(stack: Address) -> int:
    try:
        return stack.home.read_record().store_limit_bytes
    except NoStack:
        return 0


async def look_at_store(bus: NatsBus, broker_limit_bytes: int) -> list[Finding]:
    """Find how full the broker's store is, and when it will be full if it grows as in the last hour.

    `broker_limit_bytes`: for all accounts together; 0 where it is not known: then the account's own is looked at.
    """
    from rover_bus.cli.views.stores import read_growth, read_stores
    from rover_bus.events.nats_jetstream import StoreUsage
    from rover_bus.events.subjects import DEFAULT_TENANT

    own = await bus.usage()
    stores = await read_stores(bus) if bus.tenant == DEFAULT_TENANT else {bus.tenant: own}
    whole = StoreUsage(sum(each.stored_bytes for each in stores.values()), broker_limit_bytes)
    looked_at, tenants = (whole, list(stores)) if broker_limit_bytes else (own, [bus.tenant])
    rate = await read_growth(bus, tenants, GROWTH_S)
    of_all = f" of {len(tenants)} accounts" if len(tenants) > 1 else ""
    found = [await _fullness(bus, f"store{of_all}", looked_at, rate)]
    for tenant, used in stores.items():
        if tenant != bus.tenant and used.limit_bytes and used.share >= STORE_NEARLY_FULL:
            found.append(await _fullness(bus, f"store of tenant {tenant}", used, 0.0))
    return found


async def _fullness(bus: NatsBus, what: str, used: StoreUsage, rate: float) -> Finding:
    """Return how full a store is. `rate`: bytes a second that it grows by."""
    from rover_bus.events.errors import MAKE_ROOM

    held = f"{what}: {used.stored_bytes / 2**20:,.1f} MiB"
    if not used.limit_bytes:
        return Finding("ok", f"{held} stored; its limit is not known here")
    left_s = (used.limit_bytes - used.stored_bytes) / rate if rate > 0 else 0.0
    when = f", full in about {_span(left_s)} as it grew in the last hour" if left_s > 0 else ""
    said = f"{held} of {used.limit_bytes / 2**20:,.0f} MiB ({used.share:.0%}){when}"
    if used.share < STORE_NEARLY_FULL:
        return Finding("ok", said)
    return Finding("bad", f"{said}. {MAKE_ROOM}{await _ended_first(bus)}")


async def _ended_first(bus: NatsBus) -> str:
    from rover_bus.brain.ended_jobs import JobRuns, ended_first
    from rover_bus.cli.views.history import read_facts
    from rover_bus.events.subjects import everywhere, job_facts

    jobs = JobRuns()
    kinds = [job_facts(kind=kind) for kind in ("job.submitted", "job.ended")]
    async for happened in read_facts(bus, everywhere(*kinds)):
        jobs.take(happened.stored)
    ended = ended_first(jobs.known)
    return f"; ended first: {', '.join(name for name, _ in ended[:3])}" if ended else "; no job has ended"


def _span(seconds: float) -> str:
    for unit_s, unit in ((86400 * 365, "years"), (86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:,.0f} {unit}"
    return f"{seconds:.0f} s"


async def _look_at_brain(bus: NatsBus) -> list[Finding]:
    """Find what the Brain's log says: damage, rules that are switched off, hosts that are slow, windows that are longer."""
    from rover_bus.cli.views.brain_state import read_brain
    from rover_bus.cli.views.explaining import slow_hosts_text, stretched_text
    from rover_bus.events.journal import LogDamaged

    try:
        brain = await read_brain(bus)
    except LogDamaged as error:
        return [Finding("bad", str(error))]
    rules = [
        Finding(
            "bad",
            f"the Brain's rule {rule!r} is switched off under {off.release}: it failed three times: {off.why}{TRIED_AGAIN}",
        )
        for rule, off in brain.state.rules_off.items()
    ]
    notes = [*slow_hosts_text(brain.state), *stretched_text(brain.state)]
    return [*rules, *(Finding("note", said) for said in notes)]


async def _look_at_logs(bus: NatsBus, present: Present) -> list[Finding]:
    """Find logs that no master can lead from, and jobs that wait for what is not there."""
    from rover_bus.cli.views.hindrances import hindrance, read_present, rules_off
    from rover_bus.cli.views.history import read_facts, read_jobs
    from rover_bus.cli.views.progress import JobProgress
    from rover_bus.events.host_facts import HostTurnFailed
    from rover_bus.events.journal import LogDamaged
    from rover_bus.events.subjects import host_facts, split_job

    found = await _look_at_brain(bus)
    failed = [each.fact async for each in read_facts(bus, [host_facts(fact=HostTurnFailed.kind())])]
    foreign: list[Happened] = []
    views = await read_jobs(bus, passed_over=foreign.append)
    spares = await _read_spares(bus, present)
    if foreign:
        found.append(Finding("note", _passed_over(foreign)))
    for view in views.values():
        if view.ended_ms:
            continue
        whys = {
            fact.host: fact.why
            for fact in failed
            if isinstance(fact, HostTurnFailed) and fact.job == view.job
        }
        found += [
            Finding("bad", f"job {view.job}: host {host} could not decide on it: {why} (services/daemon.log)")
            for host, why in whys.items()
        ]
        found += [Finding("note", f"job {view.job}: {each}") for each in spares.get((view.job, view.uid), [])]
        tenant, job = split_job(view.job)
        inside = bus.of(tenant)
        progress = JobProgress(inside, job)
        try:
            await progress.read()
        except LogDamaged as error:
            found.append(Finding("bad", f"job {view.job}: {error}"))
        else:
            found += (
                [Finding("bad", f"job {view.job}: {off}{TRIED_AGAIN}")] if (off := rules_off(view)) else []
            )
            there = present if inside is bus else await read_present(inside)
            waits_for = hindrance(view, progress.state, there, progress.waiting)
            found += [Finding("note", f"job {view.job}: {waits_for}")] if waits_for else []
            spec = progress.state.job.spec if progress.state is not None else None
            found += _look_at_own_storage(spec)
    return found


async def _read_spares(bus: NatsBus, present: Present) -> dict[tuple[str, str], list[str]]:
    """Return what is wrong with the spares of jobs, by job and uid."""
    from rover_bus.cli.views import spares
    from rover_bus.cli.views.hindrances import read_registered
    from rover_bus.cli.views.history import read_facts

    facts = [each.fact async for each in read_facts(bus, spares.filters()) if each.fact is not None]
    hosts = {name: fact.daemon for name, fact in (await read_registered(bus, present.hosts)).items()}
    return spares.failing(facts, hosts)


def _passed_over(foreign: list[Happened]) -> str:
    first = foreign[0]
    what = "1 stored fact is" if len(foreign) == 1 else f"{len(foreign)} stored facts are"
    return (
        f"{what} not what their subjects say, and passed over by every reader; the first is {first.id}: {first.problem} "
        f"(`nats stream rmm ROVER_FACTS {first.stored.sequence}` removes it)"
    )


def _look_at_own_storage(spec: JobSpec | None) -> list[Finding]:
    """Look at the place that a job file names for its checkpoints."""
    from rover_bus.flash.location import parse_location

    path = spec.checkpoint.path if spec is not None and spec.checkpoint is not None else ""
    return list(look_at_checkpoints(parse_location(path), f" --storage {path}")) if path else []
