"""One stack on one machine: a broker, a node daemon and a Brain, started, kept alive, and taken away without a trace.

Fed by `rover up`, `rover submit --embedded`, `rover demo` and by tests; everything else finds it through its state
directory (home.py). On loopback unless told otherwise. It is
synchronous: it starts processes and waits; what they do is theirs.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from rover_bus.auth.host_vault import HostVault
from rover_bus.auth.rights import RoleName
from rover_bus.auth.vault import Vault
from rover_bus.cli.connection import Address
from rover_bus.cli.endings import Endings
from rover_bus.cli.home import Home, StackRecord
from rover_bus.cli.open_files import check_open_files
from rover_bus.cli.options import parse_quotas
from rover_bus.cli.own_broker import A_BROKER, LOOPBACK, OwnBroker, care, start_broker
from rover_bus.cli.own_page import OwnPage
from rover_bus.cli.supervisor import ServiceOrder, SupervisedService, Supervisor, Tended, service_command
from rover_bus.cli.tended_broker import RenewedCertificate
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.errors import AccessDenied, InputError, PermanentError, RoverError
from rover_bus.events.subjects import name as check_name
from rover_bus.events.written_settings import PREFIX, Chosen, choose, of_processes

START_TIMEOUT_S = (
    90.0  # a daemon waits until the one before it has left; a service that fails says so at once
)
BRAIN_STOP_S = 5.0
WEB_STOP_S = 5.0
DAEMON_STOP_S = 50.0  # it drains its members first, each within its grace, and waits for a last cut
DYING_S = 2.0  # for killed processes to be reaped
# Of our own variables only these pass on to services; the others name a stack, and theirs comes with their arguments.
PASSED_ON = ("ROVER_LOG_LEVEL", "ROVER_LOG_FORMAT", "ROVER_DOMAIN", "ROVER_SHM")


class CannotWrite(PermanentError):
    """The directory of a stack takes nothing: its disk is full, read-only or broken."""

    code = "cannot_write"
    exit_code = 4

    @classmethod
    def below(cls, root: Path, error: OSError) -> CannotWrite:
        """Return the error that says what is wrong with a state directory, and what to do."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return cls(
                f"the disk below {root} is full, nothing was started: make room, then `rover up` again"
            )
        return cls(f"{error.filename or root} cannot be written, nothing was started: {error.strerror}")


@dataclass(frozen=True, slots=True)
class OtherBroker:
    """A broker that runs already. `store_limit_bytes`: what it may store; 0: that is not known."""

    url: str
    secret_file: str | Path = ""
    store_limit_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Here:
    """What this host is called ("": as the machine), and the address that other hosts reach it at (`check_bind`).

    `page`: the address at which it serves HTTP (docs/design/0063), "" for nowhere; what serves it is started last, and nothing
    waits for it.
    """

    name: str = ""
    bind: str = LOOPBACK
    page: str = ""


@dataclass(frozen=True, slots=True)
class BrainPolicy:
    """What a stack's Brain is started with: what becomes of its plans, and each tenant's quota (`ads=8:32GiB`)."""

    plan_mode: str = "auto"
    quotas: Sequence[str] = ()


class RunningStack:
    """A stack from `start` to `stop`; a context manager does both. Its directory stays, for logs and for the next start."""

    def __init__(
        self,
        home: Home | str | Path,
        *,
        broker: OwnBroker | OtherBroker = A_BROKER,
        brain: BrainPolicy | None = BrainPolicy(),
        here: Here = Here(),
        settings: Sequence[str] = (),
        disposable: bool = False,
    ) -> None:
        """`brain` None: one more host of a cluster that has its Brain elsewhere. `settings`: NAME=VALUE as `rover up --set` takes
        them; the environment wins over them. `disposable`: its state is not wanted: at its end the memory where its jobs staged
        cuts is freed, whatever became of them; when it ends by an exception its members are killed instead of drained.
        Raises InputError for what no stack can be started with.
        """
        self.home = home if isinstance(home, Home) else Home.find(home)
        self.host = check_name(here.name or host_name(), "host")
        named = broker.secret_file if isinstance(broker, OtherBroker) else ""
        self.secret_file = Path(named).absolute() if named else self.home.secret_file
        self._wanted_broker, self._brain, self._disposable = broker, brain, disposable
        self._bind = check_bind(here.bind)
        parse_quotas(
            brain.quotas if brain else ()
        )  # services read them and the settings again: what is wrong
        chosen = choose(settings, os.environ)  # with them is said before anything starts
        self._members_have_users = _check_users(chosen, self.home)
        self._settings = tuple(settings)
        self._page = OwnPage(self.home, check_bind(here.page)) if here.page else None
        self._vault: Vault | None = None
        self._lock = -1
        self.broker: EmbeddedBroker | None = None
        self.services: dict[str, SupervisedService] = {}
        self._supervisor: Supervisor | None = None
        self._endings = Endings(self.host, lambda: self._address_of("daemon"), _complain)

    @property
    def url(self) -> str:
        """Where its broker listens."""
        if self.broker:
            return self.broker.url
        return self._wanted_broker.url if isinstance(self._wanted_broker, OtherBroker) else ""

    def start(self) -> Self:
        """Start everything; return when the host is registered. Raises RoverError, and then nothing of it runs."""
        check_open_files("a stack")
        self.home.create()
        if self._members_have_users:
            self.home.let_pass()
        try:
            self._lock = self.home.hold()
        except OSError as error:
            raise CannotWrite.below(self.home.root, error) from error
        try:
            self._start_broker()
            self._start_services()
            self._start_page()
            self.home.take_note_of_kept()  # of a former one
            self.home.write_record(self.record())
        except OSError as error:
            self.stop()
            raise CannotWrite.below(self.home.root, error) from error
        except BaseException:
            self.stop()
            raise
        return self

    @property
    def address(self) -> Address:
        """How a command reaches it."""
        return Address(self.url, self.secret_file, self.home)

    def _address_of(self, role: RoleName) -> Address:
        return Address(self.url, self._credentials_of(role), self.home)

    def _credentials_of(self, role: RoleName) -> Path:
        """Return the file with which a process of this host shows itself; a broker that knows no users has one for all."""
        return self._vault.credentials_file(role, self.host) if self._vault else self.secret_file

    def _shown(self, role: RoleName) -> list[str]:
        """Return how a service is told what to show; a broker that was named without a secret may ask for none."""
        named = self._vault or (
            isinstance(self._wanted_broker, OtherBroker) and self._wanted_broker.secret_file
        )
        return ["--secret-file", str(self._credentials_of(role))] if named else []

    @property
    def turned_away(self) -> str:
        """Why another stack's broker has this host no more; "" as long as it has."""
        refusals = [each.refusal for each in self.services.values() if self.broker is None and each.refusal]
        return next((each.message for each in refusals if each.exit_code == AccessDenied.exit_code), "")

    @property
    def has_broker(self) -> bool:
        """Whether the broker ends with it, and every job with that."""
        return self.broker is not None

    def record(self) -> StackRecord:
        """Return how to reach it."""
        from rover_bus.flash.places import host_root

        return StackRecord(
            url=self.url,
            pid=os.getpid(),
            host=self.host,
            secret_file=str(self.secret_file),
            embedded=self.broker is not None,
            sync=self.broker.sync if self.broker else "default",
            store_limit_bytes=self._store_limit_bytes,
            home=str(self.home.root),
            disposable=self._disposable,
            staging=str(host_root(self.home.node)),
            settings=self._settings,
            page=self.page_url,
        )

    @property
    def page_url(self) -> str:
        """Where a browser finds its page, "" where it serves none."""
        return self._page.url if self._page else ""

    def stop(self, *, at_once: bool = False) -> None:
        """End everything in order: the Brain, the daemon with all members, the broker last. May be called twice.

        Members drain, each within its grace; `at_once` they are killed.
        """
        if self._supervisor:
            self._supervisor.stop()
            self._supervisor = None
            self._endings.stop()
        self.home.remove_record()
        for name, timeout_s in (("web", WEB_STOP_S), ("brain", BRAIN_STOP_S), ("daemon", DAEMON_STOP_S)):
            if name in self.services:
                service = self.services.pop(name)
                service.ask_to_stop()
                if at_once and name == "daemon":
                    self.kill_members()
                service.stop(timeout_s)
        if self._page:
            self._page.close()
        if self._disposable:
            from rover_bus.flash.places import host_root

            shutil.rmtree(host_root(self.home.node), ignore_errors=True)
        if self.broker:
            self.broker.stop()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def lose_host(self) -> None:
        """Take this host away as a power cut does: everything that runs on it, and its memory; it is not started again."""
        from rover_bus.events.cgroup import find
        from rover_bus.flash.places import host_root
        from rover_bus.node.local.cores import CoreGroups
        from rover_bus.node.local.proctree import bearing

        if self._supervisor:
            self._supervisor.stop()
            self._supervisor = None
            self._endings.stop()
        for service in self.services.values():
            service.kill()
        while left := bearing(str(self.home.node)):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(host_root(self.home.node), ignore_errors=True)
        CoreGroups.below(find(), self.home.node).remove_empty(DYING_S)

    def restart_broker(self) -> None:
        """SIGKILL the broker and start it again: what `--chaos broker` does."""
        if self.broker is None or self._supervisor is None:
            raise RoverError("this stack has no broker of its own to restart")
        with self._supervisor.pause:
            self.broker.restart()

    def pids(self) -> dict[str, int]:
        """Return the process ids of what runs, by name."""
        found = {name: service.pid for name, service in self.services.items()}
        found["broker"] = self.broker.pid if self.broker else None
        return {name: pid for name, pid in found.items() if pid is not None}

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(at_once=self._disposable and error is not None)

    # -- the parts -----------------------------------------------------------------------------------------------------

    def _start_broker(self) -> None:
        wanted = self._wanted_broker
        if isinstance(wanted, OtherBroker):
            joined = HostVault.beside(self.secret_file)  # its one process, the daemon, has what it shows
            self._vault = None if joined else Vault.beside(self.secret_file)
        else:
            self._vault = Vault(self.home.auth)
        if self._vault and self._is_encrypted:
            self._vault.certificate(self._bind)  # before credentials, which name its authority
        if self._vault:
            self._vault.write_credentials(self.host)
        if isinstance(wanted, OtherBroker) or self._vault is None:
            return
        self.broker = start_broker(self.home, self._vault, wanted, self._bind)

    @property
    def _is_encrypted(self) -> bool:
        """Whether its own broker speaks TLS: beyond loopback alone."""
        return self._bind != LOOPBACK and not isinstance(self._wanted_broker, OtherBroker)

    def _start_services(self) -> None:
        common = ["--url", self.url, "--host", self.host]
        node = ["--dir", str(self.home.node), "--storage", str(self.home.checkpoints)]
        node += ["--bind", self._bind]
        common += [word for setting in self._settings for word in ("--set", setting)]
        if self._brain is not None:
            brain = ["--plan-mode", self._brain.plan_mode, *self._store_limit()]
            brain += [word for quota in self._brain.quotas for word in ("--quota", quota)]
            self.services["brain"] = self._service("brain", [*common, *brain])
        self.services["daemon"] = self._service("daemon", [*common, *node])
        for service in self.services.values():
            service.start()
        deadline_s = time.monotonic() + START_TIMEOUT_S
        for service in self.services.values():
            service.wait_until_ready(deadline_s)
        self._tended: list[Tended] = list(self.services.values())
        if self.broker:
            self._tended += care(self.broker, _complain, self._endings.note)
        self._supervisor = Supervisor(self._tended, _complain)
        self._endings.start()
        self._supervisor.start()

    @property
    def _store_limit_bytes(self) -> int:
        """What its broker may store, another's as far as that was said."""
        if isinstance(self._wanted_broker, OtherBroker):
            return self._wanted_broker.store_limit_bytes
        return self.broker.store_limit_bytes() if self.broker else 0

    def _store_limit(self) -> list[str]:
        return ["--store-limit", str(self._store_limit_bytes)]

    def _start_page(self) -> None:
        """Serve HTTP, behind everything that trains. Its socket listens before its process is there, and while it restarts."""
        if self._page is None:
            return
        words = ["--url", self.url, "--host", self.host, *self._store_limit(), *self._page.words(self._vault)]
        service = self._service("web", words, (self._page.descriptor,))
        self.services["web"] = service
        service.start()
        self._tended.append(service)
        if self._vault is not None:
            self._tended.append(RenewedCertificate("page", partial(self._page.renew, self._vault), _complain))

    def kill_members(self) -> None:
        """Kill what the daemon was told to drain; it waits for their shims and starts nothing any more."""
        from rover_bus.node.local.layout import list_members

        for status in list_members(self.home.node):
            if status.pid:
                with suppress(ProcessLookupError):
                    os.kill(status.pid, signal.SIGKILL)

    def _service(
        self, role: RoleName, arguments: list[str], descriptors: tuple[int, ...] = ()
    ) -> SupervisedService:
        below = self.home.services
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
        environment |= {
            key: os.environ[key] for key in os.environ if key in PASSED_ON or key.startswith(PREFIX)
        }
        order = ServiceOrder(
            role,
            service_command(role, *self._shown(role), *arguments),
            below / f"{role}.log",
            below / f"{role}.ready",
            environment,
            descriptors,
        )
        return SupervisedService(order, _complain, self._endings.note)


def _check_users(chosen: Chosen, home: Home) -> bool:
    """Say whether each job's members are to be a user of their own. Raises InputError where they cannot be."""
    hosts = of_processes(chosen).hosts
    if not hosts.first_member_uid:
        return False
    from rover_bus.node.users import check_can_be_given

    check_can_be_given(hosts, home.root)
    return True


def _complain(text: object) -> None:
    print(f"rover: {text}", file=sys.stderr, flush=True)


def check_bind(address: str) -> str:
    """Return an address to listen at. Raises InputError unless it is one IPv4 address that this machine has.

    All addresses at once (0.0.0.0) will not do: other hosts get one address to connect to, and no service listens elsewhere.
    """
    try:
        named = ipaddress.IPv4Address(address)
        with socket.socket() as probe:
            probe.bind((address, 0))
    except ipaddress.AddressValueError:
        raise InputError(f"--bind {address}: name an IPv4 address of this machine") from None
    except OSError as error:
        raise InputError(f"--bind {address} is no address of this machine: {error.strerror}") from None
    if named.is_unspecified:
        raise InputError(f"--bind {address}: name the one address of this machine that the other hosts reach")
    return address


def host_name() -> str:
    """Return this machine's name as a subject can hold it."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname()).strip("-_")[:64] or "local"


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into what Ctrl-C does, so that `with` blocks end in order; further signals are then ignored."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    former = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
