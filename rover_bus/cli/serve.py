"""The composition root: one service as a process of its own, put together here and nowhere else.

    python -m rover_bus.cli.serve brain  --url U --secret-file F
    python -m rover_bus.cli.serve daemon --url U --secret-file F --host H --dir D
    python -m rover_bus.cli.serve master --job J --index I            (started by the daemon)
    python -m rover_bus.cli.serve ps                                  (started by the daemon, for a job's servers)
    python -m rover_bus.cli.serve node-agent --url U --secret-file F --host H --dir D   (checkpoints and samples of a node)
    python -m rover_bus.cli.serve web    --url U --secret-file F --tokens T   (HTTP: probes, metrics, API, page)
    python -m rover_bus.cli.serve operator --url U --image I --namespace N ...   (members as pods of a Kubernetes cluster)

Fed by supervisor.py (Brain, daemon) and by the platform (masters, servers), which name a member by ROVER_* variables.
A service ends on SIGTERM and SIGINT, and with `--with-parent` also when its standard input ends: then the one that started
it is gone, however it died. Deciders know no clock and no dice: both come in from here.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # until all is loaded: _serve

import argparse
import asyncio
import contextlib
import faulthandler
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rover_bus.cli.collecting import collect_seldom, end_uncollected, left_alone
from rover_bus.cli.http_options import HttpOptions, add_http_options
from rover_bus.cli.log_lines import configure_logs
from rover_bus.cli.open_files import check_open_files
from rover_bus.cli.probing import Health, has_replayed, probed
from rover_bus.cli.span_settings import spans_leaving
from rover_bus.cli.supervisor import StartRefusal
from rover_bus.events import credentials, subjects
from rover_bus.events.deciding import ServiceProcess
from rover_bus.events.errors import AccessDenied, BusError, InputError, RoverError
from rover_bus.events.formats import note_format, unless_newer, written_format
from rover_bus.events.job import PlanMode
from rover_bus.events.leadership import Deposed
from rover_bus.events.logs import bind, get_logger
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.nats_wire import Ways
from rover_bus.events.programs import OWN_PYTHON
from rover_bus.events.refusals import unless_turned_away
from rover_bus.events.settings import Settings
from rover_bus.events.shell import Shell
from rover_bus.events.streams import BUCKETS, OF_THE_CLUSTER, SETTINGS, STREAMS
from rover_bus.events.timelines import stack_timeline, unless_restored
from rover_bus.events.written_settings import Chosen, choose, dump, of_processes

if TYPE_CHECKING:
    from rover_bus.cli.agent_rights import AgentRights

REACH_BROKER_S = 60.0
AGAIN_S = 0.5
LOADED_S = 1.0  # a role has imported its modules by then
REGISTERED_S = 15.0  # a member whose run the broker is not told of yet
DECLARING = ("brain", "daemon", "operator")  # what creates streams and buckets that are missing
SPOKEN = {
    "brain": "a Brain",
    "daemon": "a daemon",
    "master": "a master",
    "ps": "a parameter server",
    "operator": "an operator",
    "node-agent": "a node's agent",
    "web": "the page's server",
}
log = get_logger("rover.serve")


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """What a service is started with: where the bus is, and its own name."""

    role: str
    url: str
    secret_file: str
    host: str
    directory: str
    job: str
    index: int
    storage: str
    domain: str
    bind: str
    with_parent: bool
    plan_mode: PlanMode
    quotas: list[str]
    sets: list[str]
    store_limit_bytes: int
    keys: str
    ready_file: str
    kubeconfig: str
    namespaces: list[str]
    image: str
    python: str
    pod_template: str
    node_memory: str
    agents: str
    sidecars: str
    spare_priority: str
    plan_answers: str
    tenants: list[str]
    uid: str
    pass_file: str
    pod_token: str
    http: HttpOptions = field(default_factory=HttpOptions)
    health: Health = field(default_factory=Health)

    @property
    def chosen(self) -> Chosen:
        """What was set for this process: its environment wins over its command line."""
        return choose(self.sets, os.environ)

    @property
    def settings(self) -> Settings:
        return of_processes(self.chosen)


def main(arguments: list[str] | None = None) -> int:
    """Run one service until it is told to end; return an exit code as docs/cli.md lists them."""
    gc.freeze()  # the modules above
    options = read_options(arguments)
    end_uncollected()
    faulthandler.enable()  # a crash inside (SIGBUS, SIGSEGV) leaves its lines on stderr, and these go into the event
    if options.ready_file:  # of a former process: a pod's volume outlives its container
        Path(options.ready_file).unlink(missing_ok=True)
    try:
        configure_logs(options.role, os.environ)
        if options.job:
            bind(job=options.job)
        check_open_files(SPOKEN[options.role])
        with spans_leaving(options.role, name(options), os.environ):
            _run(_serve(options))
    except RoverError as error:
        log.error(str(error))
        if options.ready_file:
            StartRefusal(str(error), error.exit_code).write(Path(options.ready_file))
        return error.exit_code
    return 0


def read_options(arguments: list[str] | None = None) -> ServiceOptions:
    """Read the command line; what it leaves out is taken from the ROVER_* variables that the platform sets."""
    environment = os.environ
    parser = argparse.ArgumentParser(prog="rover_bus.cli.serve", description=__doc__, allow_abbrev=False)
    parser.add_argument("role", choices=sorted([*_ROLES, "web"]))
    parser.add_argument("--url", default=environment.get("ROVER_URL", ""))
    parser.add_argument("--secret-file", default=environment.get("ROVER_SECRET_FILE", ""))
    parser.add_argument("--host", default=environment.get("ROVER_HOST", "local").replace(".", "_"))
    parser.add_argument("--dir", dest="directory", default=environment.get("ROVER_STATE_DIR", ""))
    parser.add_argument("--storage", default="")
    parser.add_argument("--domain", default=environment.get("ROVER_DOMAIN", ""))
    parser.add_argument("--bind", default=environment.get("ROVER_BIND", "127.0.0.1"))
    parser.add_argument("--job", default=environment.get("ROVER_JOB", ""))
    parser.add_argument("--index", type=int, default=int(environment.get("ROVER_INDEX", "0")))
    parser.add_argument("--plan-mode", choices=["observe", "approve", "auto"], default="auto")
    parser.add_argument(
        "--quota", dest="quotas", action="append", default=[], metavar="TENANT=CORES[:MEMORY]"
    )
    parser.add_argument("--store-limit", dest="store_limit_bytes", type=int, default=0, metavar="BYTES")
    parser.add_argument("--keys", default="", metavar="FOLDER")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--with-parent", action="store_true")
    parser.add_argument("--ready-file", default="")
    cluster = parser.add_argument_group("operator")
    cluster.add_argument("--kubeconfig", default=environment.get("KUBECONFIG", ""))
    cluster.add_argument("--namespace", dest="namespaces", action="append", default=[])
    cluster.add_argument("--image", default=environment.get("ROVER_IMAGE", ""))
    cluster.add_argument("--python", default=OWN_PYTHON)
    cluster.add_argument("--pod-template", default="", metavar="FILE")
    cluster.add_argument("--node-memory", default="", metavar="DIR")
    cluster.add_argument("--agents", default="", metavar="NAMESPACE/ACCOUNT")
    cluster.add_argument("--sidecars", default="", metavar="SIZE")
    cluster.add_argument("--spare-priority", default="", metavar="CLASS")
    cluster.add_argument("--plan-answers", default="", metavar="POLICY")
    cluster.add_argument("--tenant", dest="tenants", action="append", default=[])
    agent = parser.add_argument_group("node-agent")
    agent.add_argument("--uid", default=environment.get("ROVER_UID", ""))
    agent.add_argument("--pass-file", default="")
    agent.add_argument("--pod-token", default="")
    add_http_options(parser)
    given = vars(parser.parse_args(arguments))
    return ServiceOptions(http=HttpOptions.take(given), **given)


def _run(service: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(service)
    else:
        uvloop.run(service)


async def _serve(options: ServiceOptions) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    if options.role != "operator":  # which says itself when it has started
        loop.call_later(LOADED_S, gc.enable)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if options.with_parent:
        loop.add_reader(sys.stdin.fileno(), partial(_end_with_parent, loop, stop))
    if options.role == "web":
        from rover_bus.cli.page_service import serve_page

        announce = partial(_announce_ready, options)
        await serve_page(options.http, partial(connect, options), stop, announce, options.store_limit_bytes)
        return
    async with probed(options.http.probe, options.health):
        await _join_and_work(options, stop)


async def _join_and_work(options: ServiceOptions, stop: asyncio.Event) -> None:
    rights = await _ask_for_rights(options, stop) if options.pass_file else None
    if rights is not None:
        options = replace(options, host=rights.host, secret_file=str(rights.file))
    if not stop.is_set():
        async with connect(options) as bus:
            options.health.bus = bus
            work = _ROLES[options.role](bus, options, stop)
            if options.role in DECLARING:
                work = unless_newer(bus, unless_restored(bus, await stack_timeline(bus), work))
            await unless_turned_away(bus, work if rights is None else rights.renewed_while(work))


async def _ask_for_rights(options: ServiceOptions, stop: asyncio.Event) -> AgentRights | None:
    """Return what a pod that has the agents' pass is granted, as soon as an operator answers; None where it is to end."""
    from rover_bus.cli.agent_rights import PodAgent, get_rights

    agent = PodAgent(options.url, Path(options.pass_file), Path(options.pod_token))
    asking = asyncio.ensure_future(get_rights(agent, Path(options.directory)))
    await _until(stop, asking)
    return None if stop.is_set() else asking.result()


def _end_with_parent(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        stop.set()


@contextlib.asynccontextmanager
async def connect(options: ServiceOptions) -> AsyncIterator[NatsBus]:
    """Connect to the bus, with its streams and buckets in place. A broker that is just starting again is waited for."""
    if not options.url:
        raise InputError("no broker is named: --url, or ROVER_URL")
    began = time.monotonic()
    deadline = began + REACH_BROKER_S
    while True:
        try:
            bus = await NatsBus.connect(
                options.url,
                secret=partial(credentials.of_process, os.environ, options.secret_file),
                secret_source=options.secret_file or "--secret-file",
                name=name(options),
                ways=_ways(options),
            )
            break
        except BusError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)
        except AccessDenied:  # of a run that the broker has not been told of yet
            if credentials.VARIABLE not in os.environ or time.monotonic() > began + REGISTERED_S:
                raise
            await asyncio.sleep(0.2)
    try:
        if options.role in DECLARING:
            await _insist(partial(bus.ensure, STREAMS, BUCKETS), deadline)
            await _insist(partial(written_format, bus), deadline)
        yield bus
    finally:
        await bus.close()


def _ways(options: ServiceOptions) -> Ways:
    """Return how this process does what its role has no right to (auth/roles.py)."""
    keeper = subjects.keeper(options.job, "purge") if options.role == "master" else ""
    return Ways(direct=options.role == "ps", keeper=keeper, replicas=options.settings.stack.replicas)


async def _insist(call: Callable[[], Awaitable[object]], deadline: float) -> None:
    while True:
        try:
            await call()
            return
        except BusError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


def name(options: ServiceOptions) -> str:
    """Return what this process calls itself: `master-0.2` for a member, else role and host."""
    incarnation = os.environ.get("ROVER_INCARNATION", "")
    if options.role == "master":
        return f"master-{options.index}.{incarnation or os.getpid()}"
    return f"{options.role}-{options.host}"


def wall_ms() -> int:
    """Return Unix milliseconds: for people to read, nothing is decided by it."""
    return time.time_ns() // 1_000_000


# -- the roles ---------------------------------------------------------------------------------------------------------


async def _serve_brain(bus: NatsBus, options: ServiceOptions, stop: asyncio.Event) -> None:
    from rover_bus.brain.keeping import keep_within
    from rover_bus.brain.service import build_brain
    from rover_bus.cli.beside_brain import purge_for_masters, with_keys
    from rover_bus.cli.options import parse_quotas

    holder = f"{name(options)}.{os.getpid()}"
    quotas, settings = parse_quotas(options.quotas), options.settings
    await note_format(bus)
    await bus.put(SETTINGS, OF_THE_CLUSTER, dump(options.chosen))  # for `rover submit` and `rover doctor`

    def build() -> Shell:
        shell, _ = build_brain(
            bus,
            process=ServiceProcess(holder, time.monotonic, wall_ms),
            timeline=secrets.randbits(48),
            mode=options.plan_mode,
            quotas=quotas,
            settings=settings,
        )
        return shell

    leading: list[Shell] = []
    options.health.replayed = lambda: has_replayed(bus, leading[0] if leading else None, subjects.BRAIN_LOG)

    def build_and_note() -> Shell:
        leading[:] = [build()]
        return leading[0]

    retention = settings.retention
    if not retention.store_size_bytes:
        retention = retention.replace(store_size_bytes=options.store_limit_bytes // 2)
    keeping = asyncio.create_task(
        keep_within(bus, retention, lambda: any(shell.leading for shell in leading), wall_ms)
    )
    collecting = asyncio.create_task(collect_seldom())
    works = (purge_for_masters(bus), *with_keys(bus, options.url, options.secret_file, options.keys))
    beside = [keeping, collecting, *map(asyncio.create_task, works)]
    _announce_ready(options)
    try:
        await _lead_again_and_again(build_and_note, stop)
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


async def _serve_master(bus: NatsBus, options: ServiceOptions, stop: asyncio.Event) -> None:
    from rover_bus.master.service import build_master

    settings = options.settings

    def build() -> Shell:
        shell, _ = build_master(
            bus,
            options.job,
            process=ServiceProcess(name(options), time.monotonic, wall_ms),
            settings=settings,
        )
        return shell

    await _lead_again_and_again(build, stop)


async def _serve_daemon(bus: NatsBus, options: ServiceOptions, stop: asyncio.Event) -> None:
    from rover_bus.auth.agents import parts_secret
    from rover_bus.cli.of_members import commands_of, credential_of, learn_tenant, vault_beside
    from rover_bus.cli.renewing import renew_members
    from rover_bus.node.local.layout import create
    from rover_bus.node.service import Options, run_daemon
    from rover_bus.ps.shared_secret import SharedSecret

    vault = vault_beside(options.secret_file)
    given = Options(
        commands=commands_of(options.sets, sys.executable),
        url=options.url,
        secret_file="" if vault else options.secret_file,
        parts_secret=SharedSecret(partial(parts_secret, vault)) if vault else b"",
        credential_of=lambda run: credential_of(vault, run, options.host),
        learn_tenant=partial(learn_tenant, vault),
        settings=options.settings,
        storage=options.storage,
        domain=options.domain,
        bind=options.bind,
    )
    ready = partial(_announce_ready, options)
    renewing = None
    if vault is not None:
        home = create(options.directory)
        renewing = asyncio.create_task(renew_members(bus, vault, options.secret_file, options.host, home))
    try:
        await run_daemon(bus, options.host, options.directory, given, stop=stop, ready=ready)
    finally:
        if renewing is not None:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)


async def _serve_operator(_bus: NatsBus, options: ServiceOptions, stop: asyncio.Event) -> None:
    from rover_bus.kube.lean_imports import leave_unloaded

    leave_unloaded("rover_bus.client")  # it reads job files alone: the rest loads numpy, 0.1 s and 15 MB
    with left_alone():
        from rover_bus.cli.operating import operate
    await operate(options, stop, partial(_announce_ready, options))


async def _serve_node_agent(bus: NatsBus, options: ServiceOptions, stop: asyncio.Event) -> None:
    from rover_bus.cli.agent_of_node import keep_checkpoints

    await keep_checkpoints(bus, options, stop, partial(_announce_ready, options))


async def _serve_ps(bus: NatsBus, options: ServiceOptions, stop: asyncio.Event) -> None:
    from rover_bus.events.identity import Member
    from rover_bus.events.own_cores import cores_held
    from rover_bus.flash.places import host_root
    from rover_bus.node.local.layout import parts_directory
    from rover_bus.ps.service import ServerPlace, serve_job
    from rover_bus.ps.shared_secret import SharedSecret

    me = Member("ps", options.index, int(os.environ.get("ROVER_INCARNATION", "0")))
    job = subjects.qualified(os.environ.get("ROVER_TENANT", ""), options.job)
    place = ServerPlace(
        directory=parts_directory(options.directory, job),
        shared_memory=host_root(options.directory),
        host=options.host,
        pid=os.getpid(),
        bind=options.bind,
        stages_at=os.environ.get("ROVER_STAGES_AT", ""),
        cores_held=cores_held(os.environ.get("ROVER_CORES", "")),
    )
    secret = SharedSecret(partial(credentials.of_sockets, os.environ, options.secret_file))
    serving = serve_job(bus, options.job, me, secret=secret, nonce=secrets.token_hex(8), place=place)
    await _until(stop, asyncio.ensure_future(serving))


_ROLES: dict[str, Callable[[NatsBus, ServiceOptions, asyncio.Event], Awaitable[None]]] = {
    "brain": _serve_brain,
    "daemon": _serve_daemon,
    "master": _serve_master,
    "ps": _serve_ps,
    "operator": _serve_operator,
    "node-agent": _serve_node_agent,
}


async def _lead_again_and_again(build: Callable[[], Shell], stop: asyncio.Event) -> None:
    """Run a shell until `stop`. One that lost its lead is built again, from nothing, and stands by (P15)."""
    while not stop.is_set():
        try:
            await _until(stop, asyncio.ensure_future(build().run()))
        except* Deposed as group:
            log.info("stands by again", why=str(group.exceptions[0]))


async def _until(stop: asyncio.Event, running: asyncio.Future[Any]) -> None:
    """Wait for the end of `running`; end it when `stop` is set. Raises what it raised."""
    stopped: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


def _announce_ready(options: ServiceOptions) -> None:
    options.health.serving = True
    if options.ready_file:
        Path(options.ready_file).write_text(f"{os.getpid()}\n")


if __name__ == "__main__":
    sys.exit(main())
