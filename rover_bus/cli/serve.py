"""The composition root: one service as a process of its own, put together here and nowhere else.

    python -m rover_bus.cli.serve brain  --url U --secret-file F
    python -m rover_bus.cli.serve daemon --url U --secret-file F --host H --dir D
    python -m rover_bus.cli.serve master --job J --index I            (started by the daemon)
    python -m rover_bus.cli.serve ps                                  (started by the daemon, for a job's servers)

Fed by supervisor.py (Brain, daemon) and by the platform (masters, servers), which name a member by ROVER_* variables.
A service ends on SIGTERM and SIGINT, and with `--with-parent` also when its standard input ends: then the one that started
it is gone, however it died. Deciders know no clock and no dice: both come in from here.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rover_bus.cli.open_files import check_open_files
from rover_bus.cli.options import parse_keep_log, write_keep_log
from rover_bus.cli.supervisor import StartRefusal, service_command
from rover_bus.events.broker import read_secret
from rover_bus.events.errors import BusError, InputError, RoverError
from rover_bus.events.leadership import Deposed
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.shell import Shell
from rover_bus.events.streams import BUCKETS, KEEP_LOG, STREAMS

REACH_BROKER_S = 60.0
SPOKEN = {"brain": "a Brain", "daemon": "a daemon", "master": "a master", "ps": "a parameter server"}
log = logging.getLogger("rover.serve")


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
    orphan_s: float
    notice_s: float
    sample_s: float
    with_parent: bool
    plan_mode: str
    quotas: list[str]
    keep_log: str
    keep_jobs_s: float
    keep_bytes: int
    ready_file: str


def main(arguments: list[str] | None = None) -> int:
    """Run one service until it is told to end; return an exit code as docs/cli.md lists them."""
    settings = read_settings(arguments)
    _configure_logs(settings)
    faulthandler.enable()  # a crash inside (SIGBUS, SIGSEGV) leaves its lines on stderr, and these go into the event
    try:
        check_open_files(SPOKEN[settings.role])
        _run(_serve(settings))
    except RoverError as error:
        log.error("%s", error)
        if settings.ready_file:
            StartRefusal(str(error), error.exit_code).write(Path(settings.ready_file))
        return error.exit_code
    return 0


def read_settings(arguments: list[str] | None = None) -> ServiceOptions:
    """Read the command line; what it leaves out is taken from the ROVER_* variables that the platform sets."""
    environment = os.environ
    parser = argparse.ArgumentParser(prog="rover_bus.cli.serve", description=__doc__, allow_abbrev=False)
    parser.add_argument("role", choices=sorted(_ROLES))
    parser.add_argument("--url", default=environment.get("ROVER_URL", ""))
    parser.add_argument("--secret-file", default=environment.get("ROVER_SECRET_FILE", ""))
    parser.add_argument("--host", default=environment.get("ROVER_HOST", "local"))
    parser.add_argument("--dir", dest="directory", default=environment.get("ROVER_STATE_DIR", ""))
    parser.add_argument("--storage", default="")
    parser.add_argument("--domain", default=environment.get("ROVER_DOMAIN", ""))
    parser.add_argument("--bind", default=environment.get("ROVER_BIND", "127.0.0.1"))
    parser.add_argument("--job", default=environment.get("ROVER_JOB", ""))
    parser.add_argument("--index", type=int, default=int(environment.get("ROVER_INDEX", "0")))
    parser.add_argument("--orphan-s", type=float, default=30.0)
    parser.add_argument("--notice-s", type=float, default=10.0)
    parser.add_argument("--sample-s", type=float, default=5.0)
    parser.add_argument("--plan-mode", choices=["observe", "approve", "auto"], default="auto")
    parser.add_argument(
        "--quota", dest="quotas", action="append", default=[], metavar="TENANT=CORES[:MEMORY]"
    )
    parser.add_argument("--keep-log", default=write_keep_log(KEEP_LOG), metavar="AGE[:SIZE]")
    parser.add_argument("--keep-jobs-s", type=float, default=0.0)
    parser.add_argument("--keep-bytes", type=int, default=0)
    parser.add_argument("--with-parent", action="store_true")
    parser.add_argument("--ready-file", default="")
    return ServiceOptions(**vars(parser.parse_args(arguments)))


def _configure_logs(settings: ServiceOptions) -> None:
    logging.basicConfig(
        level=os.environ.get("ROVER_LOG_LEVEL", "INFO").upper(),
        format=f"%(asctime)s {settings.role} %(levelname)s %(name)s %(message)s",
    )


def _run(service: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(service)
    else:
        uvloop.run(service)


async def _serve(settings: ServiceOptions) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if settings.with_parent:
        loop.add_reader(sys.stdin.fileno(), partial(_end_with_parent, loop, stop))
    async with connect(settings) as bus:
        await _ROLES[settings.role](bus, settings, stop)


def _end_with_parent(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        stop.set()


@contextlib.asynccontextmanager
async def connect(settings: ServiceOptions) -> AsyncIterator[NatsBus]:
    """Connect to the bus, with its streams and buckets in place. A broker that is just starting again is waited for."""
    if not settings.url:
        raise InputError("no broker is named: --url, or ROVER_URL")
    secret = read_secret(Path(settings.secret_file)) if settings.secret_file else ""
    deadline = time.monotonic() + REACH_BROKER_S
    while True:
        try:
            bus = await NatsBus.connect(
                settings.url,
                secret=secret,
                secret_source=settings.secret_file or "--secret-file",
                name=name(settings),
            )
            break
        except BusError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)
    try:
        await _insist(partial(bus.ensure, STREAMS, BUCKETS), deadline)
        yield bus
    finally:
        await bus.close()


async def _insist(call: Callable[[], Awaitable[object]], deadline: float) -> None:
    while True:
        try:
            await call()
            return
        except BusError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


def name(settings: ServiceOptions) -> str:
    """Return what this process calls itself: `master-0.2` for a member, else role and host."""
    incarnation = os.environ.get("ROVER_INCARNATION", "")
    if settings.role == "master":
        return f"master-{settings.index}.{incarnation or os.getpid()}"
    return f"{settings.role}-{settings.host}"


def wall_ms() -> int:
    """Return Unix milliseconds: for people to read, nothing is decided by it."""
    return time.time_ns() // 1_000_000


# -- the roles ---------------------------------------------------------------------------------------------------------


async def _serve_brain(bus: NatsBus, settings: ServiceOptions, stop: asyncio.Event) -> None:
    from rover_bus.brain.ended_jobs import KeepJobs
    from rover_bus.brain.keeping import keep_within
    from rover_bus.brain.service import build_brain
    from rover_bus.cli.options import parse_quotas

    holder = f"{name(settings)}.{os.getpid()}"
    quotas, keep_log = parse_quotas(settings.quotas), parse_keep_log(settings.keep_log)

    def build() -> Shell:
        shell, _ = build_brain(
            bus,
            holder=holder,
            timeline=secrets.randbits(48),
            clock=time.monotonic,
            wall_ms=wall_ms,
            mode=settings.plan_mode,  # type: ignore[arg-type]
            quotas=quotas,
            keep_log=keep_log,
        )
        return shell

    leading: list[Shell] = []

    def build_and_note() -> Shell:
        leading[:] = [build()]
        return leading[0]

    retention = KeepJobs(settings.keep_jobs_s, settings.keep_bytes)
    keeping = asyncio.create_task(
        keep_within(bus, retention, lambda: any(shell.leading for shell in leading), wall_ms)
    )
    _announce_ready(settings)
    try:
        await _lead_again_and_again(build_and_note, stop)
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def _serve_master(bus: NatsBus, settings: ServiceOptions, stop: asyncio.Event) -> None:
    from rover_bus.master.service import build_master

    keep_log = parse_keep_log(settings.keep_log)

    def build() -> Shell:
        shell, _ = build_master(
            bus,
            settings.job,
            holder=name(settings),
            clock=time.monotonic,
            wall_ms=wall_ms,
            keep_log=keep_log,
        )
        return shell

    await _lead_again_and_again(build, stop)


async def _serve_daemon(bus: NatsBus, settings: ServiceOptions, stop: asyncio.Event) -> None:
    from rover_bus.node.port import RoleCommands
    from rover_bus.node.service import Options, run_daemon

    def master(job: str, index: int) -> list[str]:
        return service_command("master", "--job", job, "--index", str(index), "--keep-log", settings.keep_log)

    options = Options(
        commands=RoleCommands(master, tuple(service_command("ps"))),
        url=settings.url,
        secret_file=settings.secret_file,
        orphan_s=settings.orphan_s,
        sample_s=settings.sample_s,
        storage=settings.storage,
        domain=settings.domain,
        bind=settings.bind,
        notice_s=settings.notice_s,
    )
    ready = partial(_announce_ready, settings)
    await run_daemon(bus, settings.host, settings.directory, options, stop=stop, ready=ready)


async def _serve_ps(bus: NatsBus, settings: ServiceOptions, stop: asyncio.Event) -> None:
    from rover_bus.events.identity import Member
    from rover_bus.flash.places import host_root
    from rover_bus.node.local.layout import parts_directory
    from rover_bus.ps.service import serve_job

    incarnation = int(os.environ.get("ROVER_INCARNATION", "0"))
    serving = asyncio.ensure_future(
        serve_job(
            bus,
            settings.job,
            Member("ps", settings.index, incarnation),
            secret=read_secret(Path(settings.secret_file)).encode(),
            directory=parts_directory(settings.directory, settings.job),
            shared_memory=host_root(settings.directory),
            nonce=secrets.token_hex(8),
            host=settings.host,
            pid=os.getpid(),
            bind=settings.bind,
        )
    )
    await _until(stop, serving)


_ROLES: dict[str, Callable[[NatsBus, ServiceOptions, asyncio.Event], Awaitable[None]]] = {
    "brain": _serve_brain,
    "daemon": _serve_daemon,
    "master": _serve_master,
    "ps": _serve_ps,
}


async def _lead_again_and_again(build: Callable[[], Shell], stop: asyncio.Event) -> None:
    """Run a shell until `stop`. One that lost its lead is built anew, from nothing, and stands by (P15)."""
    while not stop.is_set():
        try:
            await _until(stop, asyncio.ensure_future(build().run()))
        except* Deposed as group:
            log.info("stands by again: %s", group.exceptions[0])


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


def _announce_ready(settings: ServiceOptions) -> None:
    if settings.ready_file:
        Path(settings.ready_file).write_text(f"{os.getpid()}\n")


if __name__ == "__main__":
    sys.exit(main())
