"""A stack's state directory: where its keys, its address and everything it writes are.

    auth/           0700: its keys, and the credentials of its processes and people (auth/vault.py)
    lock            held by the `rover up` that runs here, or by a command that reads what one left; it says which, and the kernel
                    lets go of it when that process dies
    stack.json      how to reach it, while it runs
    page.port       where its page listened last
    kept            `rover down` has had last checkpoints taken: the stack need not ask for them once more
    broker/         nats-server: configuration, log, store
    node/           the node daemon: records of members, their logs
    services/       logs of the Brain and the daemon
    jobs/<job>/     what a job leaves: parts of its model, indexes of its data
    checkpoints/    one directory a run of a job, unless its job file names another place

Written by stack.py, read by every command that talks to a stack. Found by --dir, else $ROVER_HOME, else ./.rover.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from rover_bus.events.errors import BusError, InputError, Refused, RoverError
from rover_bus.events.settings import StackSettings
from rover_bus.events.units import require_text
from rover_bus.events.written_settings import choose, of_processes

VARIABLE = "ROVER_HOME"
DEFAULT = ".rover"
A_STACK, A_READER, A_RESTORE = (
    "is a stack",
    "reads what a stack left",
    "restores a backup",
)  # what holds a lock
PATIENCE_S, LOOK_S = 30.0, 0.05


class NoStack(BusError):
    """There is no running stack where one was looked for."""

    code = "no_stack"


@dataclass(frozen=True, slots=True)
class StackRecord:
    """How to reach a running stack. `embedded`: the broker is its own; `pid` is the supervisor's.

    `home` is where its state is when that is elsewhere: the demo's is in a temporary directory, and found from here all the same.
    """

    url: str
    pid: int
    host: str
    secret_file: str
    embedded: bool = True
    sync: str = "default"
    store_limit_bytes: int = 0  # of its broker; 0: not known
    home: str = ""
    disposable: bool = False  # its models are not wanted when it ends
    staging: str = ""  # where its host stages cuts: in shared memory, which is not below its state directory
    settings: tuple[str, ...] = ()  # as `rover up --set` was given them
    page: str = ""  # where a browser finds it, "" where it serves none

    @property
    def ending(self) -> StackSettings:
        """How long its end may take; the environment of the command that ends it wins."""
        return of_processes(choose(self.settings, os.environ)).stack


NO_ACCOUNT = "$G"  # as nats-server calls it


@dataclass(frozen=True, slots=True)
class Home:
    """Paths below a state directory."""

    root: Path

    @classmethod
    def find(cls, given: str | os.PathLike[str] = "") -> Home:
        """Return the directory that is meant: the one given, $ROVER_HOME, or ./.rover. Raises InputError: not UTF-8."""
        root = Path(given or os.environ.get(VARIABLE) or DEFAULT).absolute()
        require_text(str(root), "state directory")
        return cls(root)

    @property
    def auth(self) -> Path:
        """Keys and credentials of the stack (auth/vault.py)."""
        return self.root / "auth"

    @property
    def secret_file(self) -> Path:
        """The credentials with which a person's commands reach the stack."""
        return self.auth / "creds" / "operator.creds"

    @property
    def page_tokens(self) -> Path:
        """Tokens of people and programs for HTTP (auth/page_tokens.py)."""
        return self.auth / "page" / "tokens"

    @property
    def page_port(self) -> Path:
        """Where the port of the page is noted: it is the same at the next start."""
        return self.root / "page.port"

    @property
    def broker(self) -> Path:
        return self.root / "broker"

    def adopt_store(self, account: str) -> None:
        """Give the streams of a release that knew no accounts to this one; where there are none, or it has some, do nothing."""
        streams = self.broker / "store" / "jetstream"
        if (streams / NO_ACCOUNT).is_dir() and not (streams / account).exists():
            (streams / NO_ACCOUNT).rename(streams / account)

    @property
    def node(self) -> Path:
        return self.root / "node"

    @property
    def services(self) -> Path:
        return self.root / "services"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def index_cache(self) -> Path:
        return self.root / "indexes"

    @property
    def _record(self) -> Path:
        return self.root / "stack.json"

    @property
    def _lock(self) -> Path:
        return self.root / "lock"

    @property
    def has_history(self) -> bool:
        """Whether a stack's broker ever stored something here."""
        return (self.broker / "store").is_dir() and self.secret_file.exists()

    @property
    def _kept(self) -> Path:
        return self.root / "kept"

    def create(self) -> None:
        """Make the directory; only its owner can read it."""
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.services.mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.root} cannot be the state directory: {error.strerror}") from None

    def let_pass(self) -> None:
        """Let users of members pass to what is theirs below node/ and checkpoints/; the rest is closed to them."""
        self.root.chmod(0o711)
        for closed in (self.broker, self.services, self.index_cache, self.root / "jobs"):
            closed.mkdir(mode=0o700, exist_ok=True)
            closed.chmod(0o700)

    def hold(self, what: str = A_STACK) -> int:
        """Take the directory for this process; return the lock's descriptor. `what`: what it does here, as others are told.

        Another command may have it for a moment: it reads what a stopped stack left, or a stack begins or ends. Raises Refused when
        a stack runs here, or when it is not free in time.
        """
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline_s = time.monotonic() + PATIENCE_S
        try:
            while not _take(descriptor, fcntl.LOCK_EX):
                if self._runs_a_stack() or time.monotonic() > deadline_s:
                    raise Refused(self._whose(descriptor), "exists")
                time.sleep(LOOK_S)
            with suppress(OSError):  # a full disk: then nothing names the holder
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()} {what}".encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _whose(self, lock: int) -> str:
        pid, what = _holder(lock)
        if what == A_STACK:
            return f"a stack runs in {self.root} already: use it, end it with `rover down`, or choose another --dir"
        return f"process {pid} {what} in {self.root}: try again when it has ended, or choose another --dir"

    def _runs_a_stack(self) -> bool:
        record = self._read_record()
        return record is not None and _lives(record.pid) and self.is_held()

    def is_held(self) -> bool:
        """Say whether a stack runs here, or begins or ends; a command that reads what one left is none."""
        try:
            with self._lock.open("r+") as lock:
                return not _take(lock.fileno(), fcntl.LOCK_SH) and _holder(lock.fileno())[1] == A_STACK
        except FileNotFoundError:
            return False

    def of_running(self) -> Home:
        """Return where the state of the stack that runs here is: here, unless its record says otherwise."""
        try:
            return Home(Path(self.read_record().home or self.root))
        except NoStack:
            return self

    @contextmanager
    def pointing_to(self, record: StackRecord) -> Iterator[bool]:
        """Let the stack of another directory be found here while the body runs; yields False where that cannot be."""
        made = not self.root.exists()
        try:
            self.create()
            lock = self.hold()
        except RoverError:
            yield False
            return
        try:
            self.write_record(record)
            yield True
        finally:
            self.remove_record()
            os.close(lock)
            if made:
                shutil.rmtree(self.root, ignore_errors=True)

    def note_kept(self) -> None:
        """Tell the stack that runs here that its models are kept, or may be lost."""
        self._kept.touch()

    def take_note_of_kept(self) -> bool:
        """Say whether its models are seen to already; the note is used up."""
        noted = self._kept.exists()
        self._kept.unlink(missing_ok=True)
        return noted

    def write_record(self, record: StackRecord) -> None:
        fresh = self._record.with_suffix(".next")
        fresh.write_text(json.dumps(asdict(record)) + "\n")
        fresh.rename(self._record)

    def remove_record(self) -> None:
        self._record.unlink(missing_ok=True)

    def read_record(self) -> StackRecord:
        """Return how to reach the stack that runs here. Raises NoStack."""
        record = self._read_record()
        if record is None or not self.is_held():
            raise NoStack(
                f"no stack runs in {self.root}: start one with `rover up`, or name one with --dir or --url"
            )
        return record

    def _read_record(self) -> StackRecord | None:
        """Return what the stack that ran here last noted, unless it ended in order."""
        try:
            return StackRecord(**json.loads(self._record.read_text()))
        except (OSError, ValueError, TypeError):
            return None


def _take(lock: int, how: int) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(lock: int) -> tuple[int, str]:
    """Return which process wrote itself into a lock, and what it does: a stack, where nothing of it can be read."""
    pid, _, what = os.pread(lock, 200, 0).decode(errors="replace").partition(" ")
    return (int(pid), what) if pid.isdecimal() and what else (0, A_STACK)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
