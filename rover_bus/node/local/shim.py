"""The small process above every member: it owns the group, watches its memory, and writes down how it ended (protocol P23).

    python -I -S -c "... main()" dir=D alive=FD report=FD lock=PATH group=PATH cwd=D grace=S orphan=S oom=PATH ... -- command

Spawned by processes.py with the member's environment and log file (and `user=UID reads=PATHS` where the member is to be
another user), it survives its daemon. It writes `started` before the
member's exec and `exit` after the last of the group is gone (files of layout.py, renamed into place). It is commanded by
signals: SIGTERM drains, SIGUSR1 drains in a hurry, SIGHUP reads `limits` again. It sleeps in
sigtimedwait and wakes once a second for the lock of the daemon, more often only when memory comes close to its limit. It is
apart because every member pays for it: standard library only, no package of ours that imports more (about 10 ms of processor
time, under 5 MB).
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

from rover_bus.node import exits
from rover_bus.node.local import locks, proctree

TYPE_CHECKING = False  # checkers take it for true; importing typing costs every member 8 ms
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
else:
    import _signal as signal  # signal.py wraps these in enums: 5 ms and 0.9 MB of every member

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
# What exec would pass on as ignored: Python ignores the last two, a shell's background job the first two.
UNIGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)
SIGNALS = frozenset({signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1})

DAEMON_CHECK_S = 1.0
OOM_CHECK_S = 10.0
TREE_CHECK_S, TREE_COST = (
    0.25,
    200,
)  # a list of the group's processes is believed for this long, and 200 times its cost
GROWTH_BYTES_PER_S = 2 << 30  # nothing fills memory faster: decides when to look again
WATCH_MIN_S, WATCH_MAX_S = 0.05, 1.0


def prctl(option: int, value: int) -> None:
    """Ask the kernel for a property of this process; a kernel without it is not an error."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def attempt(call: Callable[..., object], *arguments: object) -> bool:
    """Do what the other side may have made pointless by dying; say whether it could be done."""
    try:
        call(*arguments)
    except OSError:
        return False
    return True


def next_look_s(used: int, limit: int) -> float:
    """Return after how many seconds memory could first reach its limit, within bounds."""
    return min(max((limit - used) / GROWTH_BYTES_PER_S, WATCH_MIN_S), WATCH_MAX_S)


def first_closed(path: str) -> str:
    """Return the topmost directory above a path that this user cannot pass through, or the path itself."""
    real = os.path.realpath(path)
    for above in (path, real):
        names = above.split("/")
        for end in range(2, len(names)):
            folder = "/".join(names[:end])
            if os.path.isdir(folder) and not os.access(folder, os.X_OK):
                return folder
    return path


def write_record(path: str, **fields: object) -> None:
    """Write flat JSON and rename it into place: readers see all of it or nothing. Imports no json: that costs 6 ms."""
    parts = [f'"{name}": {_quote(value)}' for name, value in fields.items()]
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write("{" + ", ".join(parts) + "}\n")
    os.rename(path + ".new", path)


def _quote(value: object) -> str:
    if value is None:
        return "null"
    if not isinstance(value, str):
        return repr(value)
    escaped = (
        f"\\u{ord(c):04x}" if c in '"\\' or not 32 <= ord(c) < 127 else c for c in value if ord(c) < 65536
    )
    return '"' + "".join(escaped) + '"'


class Shim:
    """One member's guardian, from its start to the last process of its group."""

    def __init__(self, options: dict[str, str], command: list[str]) -> None:
        self.directory = options["dir"]
        self.command = command
        self.cwd = options.get("cwd", "")
        self.entrance = options.get("group", "")  # of the control group that binds its cores
        self.user = int(options.get("user", "0"))  # that the member becomes; 0: none other
        self.reads = options.get("reads", "").split("\n")  # what it has to reach then
        self.report = int(options["report"])
        self.grace_s = float(options["grace"])
        self.orphan_s = float(options["orphan"])  # 0: never ends its group for want of a daemon
        self.oom_path = options["oom"]
        self.daemon_lock = os.open(options["lock"], os.O_RDONLY | os.O_CLOEXEC)
        self.memory_limit = 0
        self.cpus: list[int] = []
        self.pid = 0
        self.born_s = self.daemon_seen_s = time.monotonic()
        self.asked, self.within_s = "", 0.0
        self.killed = ""
        self.kill_at_s = 0.0
        self.look_at_s = 0.0
        self.group: list[int] = []
        self.group_until_s = 0.0
        self.oom_kills = proctree.out_of_memory_kills(self.oom_path)
        self.oom_at_s = self.born_s
        self.checked_s = 0.0

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    # -- birth ---------------------------------------------------------------------------------------------------------

    def start(self) -> str:
        """Fork, write down both pids, let it exec. Returns what went wrong, "" when the member runs."""
        self.read_limits()
        gate, opened = os.pipe()
        failure, failed = os.pipe()
        shim = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self.become_member(shim, gate, failed)
        os.close(gate)
        os.close(failed)
        started = proctree.start_ticks(self.pid)
        write_record(
            self.path("started"),
            shim=shim,
            pid=self.pid,
            pid_started=started,
        )
        os.write(opened, b"1")
        os.close(opened)
        problem = os.read(failure, 4096).decode("utf-8", "replace")
        os.close(failure)
        self.wake_daemon(b"f" if problem else b"s")
        return problem

    def wake_daemon(self, what: bytes) -> None:
        """Wake the daemon that spawned us; it may be gone."""
        attempt(os.write, self.report, what)
        os.close(self.report)

    def become_member(self, shim: int, gate: int, failed: int) -> None:
        """In the child: own session, death with the shim, cores; exec only after the shim wrote down our pid."""
        try:
            os.setsid()
            if self.cpus:
                os.sched_setaffinity(0, self.cpus)
            if self.entrance:
                attempt(self.enter_group)
            if self.user:
                self.become_user()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user clears it
            if os.getppid() != shim or os.read(gate, 1) != b"1":
                os._exit(127)  # the shim died before it could write: no record names us
            self.look_at_what_it_reads()
            if self.cwd:
                os.chdir(self.cwd)
            for number in UNIGNORED:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            os.execvp(self.command[0], self.command)
        except OSError as error:
            self.say_failure(failed, error)
        finally:
            os._exit(127)

    def say_failure(self, failed: int, error: OSError) -> None:
        """Name what could not be reached or run, and, where another user is why, what to do."""
        where = self.cwd if self.cwd and not os.path.isdir(self.cwd) else self.command[0]
        why = f"{where}: {error.strerror}"
        if self.user and isinstance(error, PermissionError):
            blocked = first_closed(str(error.filename or where))
            why = (
                f"{error.filename or where}: user {self.user}, which this job runs as (hosts.first_member_uid), cannot use "
                f"{blocked}: `chmod o+rx {blocked}`, or keep programs and interpreters elsewhere, for example in /opt"
            )
        os.write(failed, why.encode())

    def become_user(self) -> None:
        """Give up root for good, and every way back that a setuid program would be."""
        os.setgroups([])
        os.setresgid(self.user, self.user, self.user)
        os.setresuid(self.user, self.user, self.user)
        prctl(PR_SET_NO_NEW_PRIVS, 1)

    def look_at_what_it_reads(self) -> None:
        """Raise PermissionError for a file that is there, and closed to the member's user."""
        for path in self.reads if self.user else ():
            try:
                if path:
                    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            except PermissionError:
                raise
            except OSError:
                continue

    def enter_group(self) -> None:
        with open(self.entrance, "w") as procs:
            procs.write("0")

    # -- watch ---------------------------------------------------------------------------------------------------------

    def watch(self) -> int:
        """Sleep, look after what woke us, until the member ends. Returns its exit code (negative: a signal)."""
        while True:
            now = time.monotonic()
            info = signal.sigtimedwait(SIGNALS, max(self.next_duty_s() - now, 0.0))
            now = time.monotonic()
            if info is not None:
                if info.si_signo == signal.SIGHUP:
                    self.read_limits()
                    proctree.set_affinity(self.living(now, fresh=True), self.cpus)
                elif info.si_signo != signal.SIGCHLD:
                    hurried = info.si_signo == signal.SIGUSR1
                    self.drain("asked to leave", now, exits.HURRY_S if hurried else self.grace_s)
            code = self.reap()
            if code is not None:
                return code
            self.do_duties(now)

    def next_duty_s(self) -> float:
        """Return the monotonic second at which something is due without any signal."""
        due = min(self.daemon_check_s(), self.oom_at_s + OOM_CHECK_S)
        if self.kill_at_s:
            due = min(due, self.kill_at_s)
        if self.memory_limit:
            due = min(due, self.look_at_s)
        return due

    def daemon_check_s(self) -> float:
        if not self.orphan_s or self.asked:
            return float("inf")
        return self.checked_s + min(DAEMON_CHECK_S, self.orphan_s / 4)

    def do_duties(self, now: float) -> None:
        if now >= self.daemon_check_s():
            self.check_daemon(now)
        if self.kill_at_s and now >= self.kill_at_s:
            self.kill(f"grace: did not leave within {self.within_s:g} s", now)
        if self.memory_limit and now >= self.look_at_s:
            self.check_memory(now)
        if now >= self.oom_at_s + OOM_CHECK_S:
            self.oom_at_s, self.oom_kills = now, proctree.out_of_memory_kills(self.oom_path)

    def check_daemon(self, now: float) -> None:
        self.checked_s = now
        if locks.is_held(self.daemon_lock):
            self.daemon_seen_s = now
        elif now - self.daemon_seen_s >= self.orphan_s:
            self.drain(f"no daemon for {self.orphan_s:g} s", now, self.grace_s)

    def drain(self, why: str, now: float, within_s: float) -> None:
        """Ask the member to leave; after its grace the group is killed. A second word can only bring that forward."""
        if self.asked:
            if now + within_s < self.kill_at_s:
                self.within_s, self.kill_at_s = within_s, now + within_s
            return
        self.asked, self.within_s = why, within_s
        self.kill_at_s = now + within_s
        attempt(os.kill, self.pid, signal.SIGTERM)

    def check_memory(self, now: float) -> None:
        """Compare the group's memory with its limit; the cheap upper bound accuses, the exact figure decides."""
        used = proctree.memory_bytes(self.living(now))
        if used > self.memory_limit:
            used = proctree.exact_memory_bytes(self.living(now, fresh=True))
        if used > self.memory_limit:
            self.kill(f"out_of_memory: {used} bytes of {self.memory_limit} allowed", now)
        cost = time.monotonic() - now
        self.look_at_s = now + max(next_look_s(used, self.memory_limit), 20 * cost)

    def living(self, now: float, fresh: bool = False) -> list[int]:
        """Return the group's processes, from a list that may be old in proportion to what it costs."""
        if fresh or not self.group or now >= self.group_until_s:
            self.group = proctree.listed_descendants(os.getpid())
            done = time.monotonic()
            self.group_until_s = done + max(TREE_CHECK_S, TREE_COST * (done - now))
        return self.group

    def read_limits(self) -> None:
        """Read `limits`: bytes of memory (0: no limit), then the cores. A file that is not there changes nothing."""
        words = proctree.read_bytes(self.path("limits")).split()
        if words:
            self.memory_limit, self.cpus = int(words[0]), [int(word) for word in words[1:]]
            self.look_at_s = 0.0

    # -- death ---------------------------------------------------------------------------------------------------------

    def kill(self, why: str, now: float) -> None:
        self.killed = self.killed or why
        self.kill_at_s = now + 1.0  # a process in uninterruptible sleep: again
        self.kill_group()

    def kill_group(self) -> None:
        attempt(os.killpg, self.pid, signal.SIGKILL)
        for pid in proctree.listed_descendants(os.getpid()):
            attempt(os.kill, pid, signal.SIGKILL)

    def reap(self) -> int | None:
        """Collect the dead; return the member's exit code once it is among them."""
        code = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return code
            if pid == 0:
                return code
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(status)

    def end_group(self) -> None:
        """End what the member left behind. As subreaper we inherit all of it: "no child" proves that the group is dead."""
        while True:
            self.reap()
            try:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            self.kill_group()
            signal.sigtimedwait(SIGNALS, 0.05)

    def run(self) -> None:
        problem = self.start()
        code = self.watch()
        kernel_oom = proctree.out_of_memory_kills(self.oom_path) > self.oom_kills
        self.end_group()
        if self.entrance:
            own = os.path.dirname(self.entrance)
            attempt(os.rmdir, own)
            attempt(os.rmdir, os.path.dirname(own))  # the last one takes the whole away
        reason, status, number, detail = exits.classify(
            code, asked=self.asked, killed=self.killed, kernel_oom=kernel_oom
        )
        if problem:
            reason, status, number, detail = "never_started", None, None, problem
        write_record(
            self.path("exit"),
            reason=reason,
            status=status,
            signal=number,
            detail=detail,
            ran_s=round(time.monotonic() - self.born_s, 3),
            **used(),
        )


def used() -> dict[str, float | int]:
    """Return what all children that were ever reaped used: our own, and as subreaper whatever they left behind."""
    import resource  # only now: no component waits for a shim that ends

    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
        "peak_memory_bytes": usage.ru_maxrss * 1024,
    }


def main() -> None:
    """Read the order from the command line, guard the member, and go without the interpreter's goodbye."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    split = sys.argv.index("--")
    options = dict(word.split("=", 1) for word in sys.argv[1:split])
    for fd in (int(options["alive"]), int(options["report"])):
        os.set_inheritable(fd, False)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    Shim(options, sys.argv[split + 1 :]).run()
    os._exit(0)
