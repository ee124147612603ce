"""The entry of the node daemon: puts its parts together for one bus, one host and one state directory.

Called by the composition root (`rover serve daemon`), by `rover up` and by tests. Here stand the things that a decider may not
make itself: the identity of this life of the daemon, the machine's figures, the real processes.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from rover_bus.events.broker import read_secret
from rover_bus.events.bus import Bus
from rover_bus.events.errors import BusError, Refused
from rover_bus.events.identity import HostCapacity
from rover_bus.events.logs import get_logger
from rover_bus.events.subjects import name
from rover_bus.flash.places import host_root
from rover_bus.node import capacity as capacities
from rover_bus.node import cgroup, layout, locks
from rover_bus.node.daemon import Daemon, Host
from rover_bus.node.persister import Places
from rover_bus.node.platform import MasterCommand
from rover_bus.node.presence import TTL_S, Presence
from rover_bus.node.processes import Processes, Settings

Connect = Callable[[], Awaitable[Bus]]
CONNECT_AGAIN_S = 0.2
LOCK_PATIENCE_S = 1.0
log = get_logger("rover.node")


def no_masters(job: str, index: int) -> list[str]:
    """Run no masters: for a host that no plan should name as one."""
    log.warning("this daemon has no command for masters", job=job, index=index)
    return []


async def run_daemon(
    bus: Bus | Connect,
    host: str,
    state_dir: str | os.PathLike[str],
    *,
    master_command: MasterCommand = no_masters,
    url: str = "",
    secret_file: str = "",
    environment: Mapping[str, str] | None = None,
    capacity: HostCapacity | None = None,
    orphan_s: float = 30.0,
    sample_s: float = 5.0,
    presence_ttl_s: float = TTL_S,
    leave_members: bool = False,
    storage: str | os.PathLike[str] = "",
    domain: str = "",
    bind: str = "127.0.0.1",
    notice_s: float = 10.0,
    stop: asyncio.Event | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Run the daemon of `host` until `stop` is set (or the task is cancelled), then leave nothing behind.

    bus: a connection, or how to make one: then it is tried until it succeeds and closed at the end; the members of a former
    daemon know meanwhile that they have a daemon again. master_command: (job, index) -> command line of a master.
    url, secret_file: passed on to members as ROVER_URL and ROVER_SECRET_FILE. environment: base of the members' environment (ours).
    capacity: what to offer instead of what is measured. orphan_s: after this long without a daemon the shims drain their groups
    (P23; demo 5, 0: never). leave_members: at the end leave the members to their shims, for a daemon that is about to come back.
    storage: where checkpoints of jobs go that name no path; empty: `checkpoints` in the state directory.
    notice_s: when it is told to stop, how long a last cut of its servers may take to become ready or redundant (S29).
    domain: what fails together with this host (a rack, a machine). bind: where staged parts are lent to other daemons.
    Raises Refused when another daemon holds the state directory or the host name, AccessDenied when the broker refuses us.
    """
    home = layout.create(state_dir)
    lock = await _hold(home)
    try:
        group = cgroup.find()
        limits = cgroup.read_limits(group)
        allowed = tuple(sorted(os.sched_getaffinity(0)))
        me = Host(
            name=name(host, "host"),
            daemon=uuid.uuid4().hex[:12],
            capacity=capacity or capacities.read_capacity(limits),
            limits=limits,
            cgroup=group,
            allowed=allowed,
            sample_s=sample_s,
            domain=domain,
            notice_s=notice_s,
        )
        settings = Settings(
            environment=_shared(environment, host, home.root, url, secret_file),
            allowed=allowed,
            orphan_s=orphan_s,
            oom_path=str(cgroup.out_of_memory_counter(group) or "/proc/vmstat"),
        )
        stop = stop or asyncio.Event()
        connection = await _connect(bus, stop)
        if connection is None:
            return  # told to stop before there was a broker; shims end the members of a former daemon in their time
        try:
            identity = f"{layout.boot_id()}:{home.root}"
            presence = Presence(connection, host, me.daemon, identity, presence_ttl_s)
            processes = partial(Processes, home, settings)
            places = Places(
                shm=host_root(home.root),
                storage=Path(storage) if storage else home.root / "checkpoints",
                secret=read_secret(Path(secret_file)).encode() if secret_file else b"",
                bind=bind,
            )
            daemon = Daemon(connection, me, presence, processes, master_command, places)
            await daemon.run(stop, ready, leave_members=leave_members)
        finally:
            if connection is not bus:
                await connection.close()
    finally:
        os.close(lock)


async def _hold(home: layout.Layout) -> int:
    """Take the daemon's lock. It is asked for again for a moment: a shim on its way to exec shares what its dead parent held."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + LOCK_PATIENCE_S
    while (lock := locks.hold(str(home.daemon_lock))) is None:
        if loop.time() >= deadline_s:
            raise Refused(
                f"another daemon runs on {home.root}: stop it, or give this one its own directory", "exists"
            )
        await asyncio.sleep(LOCK_PATIENCE_S / 20)
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
            await asyncio.wait_for(stop.wait(), CONNECT_AGAIN_S)
    return None


def _shared(
    environment: Mapping[str, str] | None, host: str, state_dir: Path, url: str, secret_file: str
) -> dict[str, str]:
    """Return what the environments of all members have in common."""
    shared = {"PYTHONUNBUFFERED": "1"}  # a killed member's last lines shall be in its log
    shared |= os.environ if environment is None else environment
    shared |= {"ROVER_HOST": host, "ROVER_STATE_DIR": str(state_dir)}
    shared |= {key: value for key, value in (("ROVER_URL", url), ("ROVER_SECRET_FILE", secret_file)) if value}
    return shared
