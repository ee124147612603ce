"""Tries whether a program would start here, as a member of this host: its file is found, and its Python has `rover_bus.client`.

Fed by processes.py with the interpreter and the environment that members get; answers on the event loop. Apart because it looks at
files and waits for a child that a user's machine may hold up for ever: all of that happens in threads of its own, each child is
killed after TRY_S, and of what it writes only the end is kept. The user's program is never run: what is imported is our client, by
the interpreter, the options and the first place on `sys.path` that the program would have.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import select
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass

from rover_bus.events.last_words import LOOKED_AT_BYTES, describe_ending, said_last
from rover_bus.events.logs import get_logger
from rover_bus.events.programs import OWN_PYTHON, STARTS, TRY_S, ProgramReply, ProgramRequest
from rover_bus.flash.acting import acting_as
from rover_bus.node.port import Answer
from rover_bus.node.users import MemberUsers, end_all_of

AT_ONCE = 4  # trials that run at a time on a host
GIVE_UP_S = TRY_S + 5.0  # on a thread that a dead file system holds
MOST_SHOWN = 300  # characters of a problem
MOST_REMEMBERED = 1000  # interpreters that are known to have our client
PYTHON = re.compile(r"(python|pypy)[0-9.]*t?")
SHORT = re.compile(
    r"-([^cmWX]*)([cmWX]?)(.*)", re.DOTALL
)  # flags alone, the one that takes an argument, its argument
OF_THE_MOMENT = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)  # the host's, not the program's
IMPORT = f"""\
import os, signal, sys
signal.alarm({TRY_S:.0f})
kind, first = sys.argv[1:]
if kind == "script" and not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
    sys.path[0] = first
if kind == "module":
    import importlib.util
    if importlib.util.find_spec(first) is None:
        sys.exit("No module named " + repr(first))
import rover_bus.client
os._exit(0)  # nothing is left to do: taking all that was imported apart again would cost a quarter of the trial
"""

Environment = Mapping[str, str]
log = get_logger("rover.node")


# -- what a command line runs ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Invocation:
    """What a Python command line runs. `first`: a script's file, or the top package of a module."""

    options: tuple[str, ...]
    kind: str = "command"  # command | script | module
    first: str = ""


def read_invocation(words: Sequence[str]) -> Invocation:
    """Take what follows `python` apart as the interpreter does."""
    options, rest = list[str](), deque(words)
    while rest and rest[0] != "-" and rest[0].startswith("-"):
        word = rest.popleft()
        if word == "--":
            break
        found = SHORT.fullmatch(word)
        assert found is not None
        plain, taking, argument = found.groups() if not word.startswith("--") else ("", "", "")
        if taking and taking in "cm":
            options += [f"-{plain}"] if plain else []
            if taking == "c":
                return Invocation(tuple(options))
            module = argument or (rest[0] if rest else "")
            return Invocation(tuple(options), "module", module.partition(".")[0])
        options.append(word)
        if rest and ((taking and not argument) or word == "--check-hash-based-pycs"):
            options.append(rest.popleft())
    if not rest or rest[0] == "-":
        return Invocation(tuple(options))
    return Invocation(tuple(options), "script", rest[0])


# -- one trial ---------------------------------------------------------------------------------------------------------


def prepare(request: ProgramRequest, environment: Environment, python: str) -> list[str] | ProgramReply:
    """Look at the files. Return the refusal, or the command that tries the import; empty where nothing is left to try.

    python: the interpreter that `python` as first word means here.
    """
    directory = request.directory
    if directory and not os.path.isdir(directory):
        return _refused(directory, _closed(directory) or "no such directory")
    for path in request.reads:
        if not os.path.exists(path):
            return _refused(path, _closed(path) or "no such file, and workers read it")
    if not request.program:
        return _refused("program", "it is empty")
    first, *rest = request.program
    if first == OWN_PYTHON:
        executable = python
    else:
        executable, problem = _find_executable(first, directory, environment)
        if problem:
            return _refused(executable, problem)
        if not PYTHON.fullmatch(os.path.basename(first)):
            return []
    run = read_invocation(rest)
    if run.kind != "script":
        return [executable, *run.options, "-c", IMPORT, run.kind, run.first]
    script = os.path.join(directory, run.first)
    if problem := _unreadable(script):
        return _refused(script, problem)
    real = os.path.realpath(script)
    beside = real if os.path.isdir(real) else os.path.dirname(real)
    return [executable, *run.options, "-c", IMPORT, run.kind, beside]


def _find_executable(first: str, directory: str, environment: Environment) -> tuple[str, str]:
    """Return what `execvp` would run in this directory, and why it cannot."""
    if "/" in first:
        path = os.path.join(directory, first)
        if not os.path.exists(path):
            return path, _closed(path) or "no such file"
        return path, "" if shutil.which(path) else "it cannot be executed"
    places = environment.get("PATH", os.defpath).split(os.pathsep)
    found = shutil.which(first, path=os.pathsep.join(os.path.join(directory, place) for place in places))
    return (found, "") if found else (first, "no such program on the PATH of this host")


def _closed(path: str) -> str:
    """Say that the user of members has no way to a file; "" where it has one, as far as the file is there."""
    try:
        os.stat(path)
    except PermissionError:
        return "the user that members run as cannot reach it: `chmod o+x` the directories above, or keep it elsewhere"
    except OSError:
        pass
    return ""


def _unreadable(script: str) -> str:
    """Say why Python could not read a script, or a directory or archive in its place; "" where it can."""
    if os.path.isdir(script):
        return "" if os.path.isfile(os.path.join(script, "__main__.py")) else "it holds no __main__.py"
    try:
        os.close(os.open(script, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return "no such file" if error.errno == errno.ENOENT else str(error.strerror)
    return ""


def _refused(path: str, problem: str) -> ProgramReply:
    return ProgramReply(state="refused", path=path, problem=problem[:MOST_SHOWN])


def _unknown(path: str, problem: str) -> ProgramReply:
    return ProgramReply(state="unknown", path=path, problem=problem[:MOST_SHOWN])


class Children:
    """The processes of trials, so that all can be ended at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._closed = False

    def add(self, pid: int) -> None:
        with self._lock:
            self._running.add(pid)
            if self._closed:
                _kill_group(pid)

    def end(self, pid: int) -> None:
        """Kill what is left of a child's group; it is not reaped yet, so its number is still its own."""
        with self._lock:
            self._running.discard(pid)
            _kill_group(pid)

    def close(self) -> None:
        """Kill all, and each that comes from now on."""
        with self._lock:
            self._closed = True
            for pid in self._running:
                _kill_group(pid)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def import_client(
    command: list[str], directory: str, environment: Environment, children: Children, user: int | None = None
) -> ProgramReply:
    """Run the command that imports our client, for TRY_S at most. `user`: as which; None: as this process."""
    path = command[0]
    try:
        child = subprocess.Popen(
            command,
            cwd=directory or None,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
    except OSError as error:
        answer = _unknown if error.errno in OF_THE_MOMENT else _refused
        return answer(path, str(error.strerror))
    children.add(child.pid)
    with child:
        try:
            written, in_time = _listen(child)
        finally:
            children.end(child.pid)
    if not in_time:
        return _unknown(path, f"no answer within {TRY_S:.0f} s")
    if child.returncode == 0:
        return STARTS
    if child.returncode in (
        -signal.SIGKILL,
        -signal.SIGTERM,
        -signal.SIGALRM,
    ):  # from outside, or its own alarm
        return _unknown(path, f"the trial was ended by {signal.Signals(-child.returncode).name}")
    status, number = (child.returncode, None) if child.returncode > 0 else (None, -child.returncode)
    return _refused(path, said_last(written) or describe_ending(status, number))


def _listen(child: subprocess.Popen[bytes]) -> tuple[str, bool]:
    """Return the end of what a child wrote to stderr, and whether the child ended in time."""
    assert child.stderr is not None
    pipe, ending = child.stderr.fileno(), os.pidfd_open(child.pid)
    os.set_blocking(pipe, False)
    watch, written, deadline_s = select.poll(), b"", time.monotonic() + TRY_S
    watch.register(pipe, select.POLLIN)
    watch.register(ending, select.POLLIN)
    try:
        while (left_s := deadline_s - time.monotonic()) > 0:
            ready = {fd for fd, _ in watch.poll(left_s * 1000)}
            if pipe in ready:
                more = _read(pipe)
                written = (written + more)[-LOOKED_AT_BYTES:]
                if not more:
                    watch.unregister(pipe)
            elif ending in ready:  # all that it wrote is read
                return written.decode(errors="replace"), True
        return written.decode(errors="replace"), False
    finally:
        os.close(ending)


def _read(pipe: int) -> bytes:
    with suppress(BlockingIOError):
        return os.read(pipe, 1 << 16)
    return b""


# -- all trials of a host ----------------------------------------------------------------------------------------------


class Trials:
    """Trials in threads of their own, AT_ONCE at a time. The same question is tried once for all that ask it meanwhile.

    That an interpreter has our client is remembered, as long as nothing else is asked for by `anew`; files are looked at each time.
    """

    def __init__(
        self,
        python: str,
        environment: Callable[[ProgramRequest], Environment],
        users: MemberUsers | None = None,
    ) -> None:
        """`environment`: the one that a member with such a program gets. `users`: where members are not the daemon's user."""
        self._python, self._environment = python, environment
        self._user = users.of_trials if users is not None else None
        self._at_once = AT_ONCE if users is None else 1  # they are one user
        self._loop = asyncio.get_running_loop()
        self._children = Children()
        self._remembered: set[tuple[object, ...]] = set()
        self._asking: dict[tuple[object, ...], list[Answer]] = {}
        self._waiting: deque[tuple[tuple[object, ...], ProgramRequest, bool]] = deque()
        self._running: dict[tuple[object, ...], asyncio.TimerHandle] = {}  # until when each is waited for

    def ask(self, request: ProgramRequest, answer: Answer, anew: bool = False) -> None:
        """Try a program; `answer` is called on the loop, once."""
        around = request.directory, tuple(sorted(request.environment.items())), tuple(request.reads)
        key = (tuple(request.program), *around, anew)
        asking = self._asking.setdefault(key, [])
        asking.append(answer)
        if len(asking) == 1:
            self._waiting.append((key, request, anew))
            self._begin()

    def close(self) -> None:
        """Answer nothing any more; what runs is killed."""
        self._waiting.clear()
        self._asking.clear()
        for timer in self._running.values():
            timer.cancel()
        self._children.close()

    def _begin(self) -> None:
        while self._waiting and len(self._running) < self._at_once:
            waiting = self._waiting.popleft()
            late = _unknown("", f"no answer within {GIVE_UP_S:.0f} s")
            self._running[waiting[0]] = self._loop.call_later(GIVE_UP_S, self._end, waiting[0], late)
            threading.Thread(target=self._try, args=waiting, name="program-trial", daemon=True).start()

    def _try(self, key: tuple[object, ...], request: ProgramRequest, anew: bool) -> None:
        """In a thread."""
        reply = _unknown("", "the trial failed")
        try:
            reply = self._answer(request, anew)
        except Exception as error:  # noqa: BLE001 - an error of ours refuses no program
            log.warning("a program could not be tried", program=request.program, why=repr(error))
            reply = _unknown("", repr(error))
        finally:
            with suppress(RuntimeError):  # the loop is closed: nothing waits for this any more
                self._loop.call_soon_threadsafe(self._end, key, reply)

    def _answer(self, request: ProgramRequest, anew: bool) -> ProgramReply:
        environment = self._environment(request)
        with nullcontext() if self._user is None else acting_as(self._user):
            command = prepare(request, environment, self._python)
        if isinstance(command, ProgramReply):
            return command
        tried = (*command, request.directory, *sorted(request.environment.items()))
        if not command or (tried in self._remembered and not anew):
            return STARTS
        self._remembered.discard(tried)
        try:
            reply = import_client(command, request.directory, environment, self._children, self._user)
        finally:
            if self._user is not None:
                end_all_of(self._user)
        if reply.state == "starts" and len(self._remembered) < MOST_REMEMBERED:
            self._remembered.add(tried)
        return reply

    def _end(self, key: tuple[object, ...], reply: ProgramReply) -> None:
        timer = self._running.pop(key, None)
        if timer is None:
            return  # it was given up
        timer.cancel()
        for answer in self._asking.pop(key, []):
            answer(reply)
        self._begin()
