"""The entry of the node daemon: puts its parts together for one bus, one host and one state directory.

Called by the composition root (`rover serve daemon`), by `rover up` and by tests. Here stand the things that a decider may not
make itself: the identity of this incarnation of the daemon, and the platform that it drives: the local one.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rover_bus.events import credentials
from rover_bus.events.bus import Bus
from rover_bus.events.cgroup import out_of_memory_counter
from rover_bus.events.errors import BusError, InputError, Refused
from rover_bus.events.logs import get_logger
from rover_bus.events.settings import DEFAULTS, Settings
from rover_bus.events.subjects import name
from rover_bus.flash.places import host_root
from rover_bus.node.daemon import Daemon
from rover_bus.node.host import Host, no_credential
from rover_bus.node.local import layout, locks
from rover_bus.node.local.capacity import read_machine
from rover_bus.node.local.platform import LocalPlatform
from rover_bus.node.local.reading_logs import read_log_pieces
from rover_bus.node.local.spawning import MemberSettings
from rover_bus.node.port import NO_MASTERS, Incarnation, RoleCommands
from rover_bus.node.presence import Presence
from rover_bus.node.spans import traced
from rover_bus.node.storage.persister import Places
from rover_bus.node.users import MemberUsers, check_can_be_given, read_range
from rover_bus.ps.shared_secret import Secret

Connect = Callable[[], Awaitable[Bus]]
CONNECT_AGAIN_S = 0.2
LOOK_S = 0.05
log = get_logger("rover.node")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a daemon may be given beside its name and its directory."""

    commands: RoleCommands = NO_MASTERS
    url: str = ""  # passed on to members as ROVER_URL
    secret_file: str = (
        ""  # passed on to members as ROVER_SECRET_FILE: where they get no credentials of their own
    )
    credential_of: Callable[[Incarnation], str] = (
        no_credential  # of a member that is started, as ROVER_CREDENTIAL
    )
    learn_tenant: Callable[[bytes], None] = lambda _: (
        None
    )  # told the public keys of each tenant's accounts, as JSON
    parts_secret: Secret = b""  # what daemons demand of one another; empty: what is in `secret_file`
    settings: Settings = DEFAULTS
    storage: str = (
        ""  # for checkpoints of jobs that name no path; empty: `checkpoints` in the state directory
    )
    domain: str = ""  # what fails together with this host (a rack, a machine)
    bind: str = "127.0.0.1"  # where staged parts are served to other daemons
    former_s: float = (
        60.0  # how long a former daemon may take to leave: one whose `rover up` was killed drains its members
    )


async def run_daemon(
    bus: Bus | Connect,
    host: str,
    state_dir: str | os.PathLike[str],
    options: Options = Options(),
    *,
    stop: asyncio.Event | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Run the daemon of `host` until `stop` is set (or the task is cancelled), then leave nothing behind.

    bus: a connection, or how to make one: then it is tried until it succeeds and closed at the end; the members of a former
    daemon know meanwhile that they have a daemon again.
    Raises Refused when another daemon holds the state directory or the host name, AccessDenied when the broker refuses us.
    """
    home = layout.create(state_dir)
    lock = await _hold(home, options.former_s)
    try:
        me = _identify(host, home, options)
        stop = stop or asyncio.Event()
        connection = await _connect(bus, stop)
        if connection is None:
            return  # stopped before there was a broker; shims end the members of a former daemon in their time
        try:
            await _put_together(connection, me, home, options).run(stop, ready, then="drain")
        finally:
            if connection is not bus:
                await connection.close()
    finally:
        os.close(lock)


def _identify(host: str, home: layout.StateDirectory, options: Options) -> Host:
    """Return this incarnation of the daemon. Raises InputError for a name that no subject can hold."""
    return Host(
        name=name(host, "host"),
        daemon=uuid.uuid4().hex[:12],
        settings=options.settings,
        credential_of=options.credential_of,
        read_log=partial(read_log_pieces, home.root),
        learn_tenant=options.learn_tenant,
    )


def _put_together(bus: Bus, me: Host, home: layout.StateDirectory, options: Options) -> Daemon:
    """Give a daemon its name on the bus, its platform and its places."""
    machine = read_machine()
    shm = host_root(home.root)
    storage = Path(options.storage) if options.storage else home.root / "checkpoints"
    users = _users(options, home.root, shm, storage)
    settings = MemberSettings(
        environment=_shared(me.name, home.root, options)
        | ({} if users is None else {"ROVER_STAGING": str(shm)}),
        allowed=machine.cpus,
        commands=options.commands,
        orphan_s=options.settings.hosts.orphan_after_s,
        oom_path=str(out_of_memory_counter(machine.cgroup) or "/proc/vmstat"),
        users=users,
    )
    if "master" not in options.commands.roles:
        log.info("no masters run on this host: the daemon was given no command for them", host=me.name)
    places = Places(
        shm=shm,
        storage=storage,
        secret=options.parts_secret or credentials.of_process({}, options.secret_file).encode(),
        bind=options.bind,
        domain=options.domain,
        patient=options.settings.storage,
        users=users,
    )
    presence = Presence(
        bus, me.name, me.daemon, f"{layout.boot_id()}:{home.root}", me.settings.hosts.presence_s
    )
    me, platform = traced(me, partial(LocalPlatform, home, machine, settings))
    return Daemon(bus, me, presence, platform, places)


def _users(options: Options, state: Path, shm: Path, storage: Path) -> MemberUsers | None:
    """Return the users of runs, None where members run as this process does. Raises InputError where they cannot be had."""
    uids = read_range(options.settings.hosts)
    if not uids:
        return None
    check_can_be_given(options.settings.hosts, state)
    if options.secret_file:
        raise InputError(
            "hosts.first_member_uid is set, and members of this broker all show one secret, which no user can be kept from: "
            "use a broker of the stack's own, or set it to 0"
        )
    os.setgroups([])  # what root's groups may read is nothing that a job's link shall lead to
    return MemberUsers(uids, state, shm, storage)


async def _hold(home: layout.StateDirectory, patience_s: float) -> int:
    """Take the daemon's lock once a former daemon has left, and a shim on its way to exec that shares what its dead parent held."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + patience_s
    while (lock := locks.hold(str(home.daemon_lock))) is None:
        if loop.time() >= deadline_s:
            pid = locks.holder_of(str(home.daemon_lock))
            other = f"another daemon (process {pid})" if pid else "another daemon"
            raise Refused(
                f"{other} runs on {home.root} and does not end: end it, or give this one its own directory",
                "exists",
            )
        await asyncio.sleep(LOOK_S)
    return lock


async def _connect(bus: Bus | Connect, stop: asyncio.Event) -> Bus | None:
    """Return the connection; one that is ours to make is tried until there is a broker, or until `stop`."""
    if not callable(bus):
        return bus
    while not stop.is_set():
        try:
            return await bus()
        except BusError as error:
            log.warning("daemon waits for the broker", why=str(error))
        with suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_AGAIN_S):
                await stop.wait()
    return None


def _shared(host: str, state_dir: Path, options: Options) -> dict[str, str]:
    """Return what the environments of all members have in common."""
    shared = {"PYTHONUNBUFFERED": "1"}  # a killed member's last lines shall be in its log
    shared |= os.environ
    shared |= {"ROVER_HOST": host, "ROVER_STATE_DIR": str(state_dir), "ROVER_BIND": options.bind}
    reached = {"ROVER_URL": options.url, "ROVER_SECRET_FILE": options.secret_file}
    return shared | {key: value for key, value in reached.items() if value}
