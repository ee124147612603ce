"""What a spare runs in place of its program: it imports what the program will import, waits, and becomes the program.

    python [options] -c "exec(...)" DIRECTORY KIND FIRST [arguments of the program]

Started by warm.py under a shim, or by spare_pod.py in a pod, in the interpreter of the job, which may be another than ours:
standard library only, nothing of this package. Standard input is a socket of what started it. `r` goes out when all is loaded; one
line of JSON comes in and says as which member the process goes on. Its end without a line is the other's: the process ends itself,
so that no end of it counts against the program. KIND is `script` or `module`; FIRST the file, or the module's name.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # built in: the program may have a `signal` of its own
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket
    from typing import NoReturn

Stamp = tuple[int, int, int]  # size, time of change, inode of a file

ASKED = ("ROVER_INDEX", "ROVER_INCARNATION", "ROVER_CREDENTIAL")  # what no spare can know
NO_SPARE = 77  # status of one that cannot be: a module asks what only a member knows, or has the name of one that we need here


class Watched(os._Environ):  # type: ignore[type-arg]
    """The environment while modules are loaded: it notes whether one asks what only a member knows."""

    asked = ""

    def __getitem__(self, name: str) -> str:
        if name in ASKED:
            Watched.asked = name
        return str(super().__getitem__(name))


def be_none(why: str) -> NoReturn:
    """End: a spare of this program would not be what its worker is."""
    os.write(2, f"{why}\n".encode())
    os._exit(NO_SPARE)


def load(modules: list[list[str]], path: list[str]) -> dict[str, Stamp]:
    """Import these where the same files are found; return the files with size and time of change, by path.

    `path`: `sys.path` of the worker whose modules these are; its program may have changed it before it imported them.
    """
    files, left_out = dict[str, Stamp](), set[str]()
    for name, origin in modules:
        if name.partition(".")[0] in ("__main__", "__mp_main__") or name.rpartition(".")[0] in left_out:
            left_out.add(name)
            continue
        if name in sys.modules and getattr(sys.modules[name].__spec__, "origin", None) != origin:
            be_none(
                f"the program has a module of its own by the name {name!r}, of which a spare needs another"
            )
        try:
            stamp = stamp_of(origin)
            if name in sys.modules or import_from(name, origin) or import_along(name, origin, path):
                files[origin] = stamp
                continue
        except Exception:  # noqa: BLE001 - the program meets it itself, where it can speak of it
            pass
        left_out.add(name)
    return files


def import_from(name: str, origin: str) -> bool:
    """Import a module where it is found in this file; say whether it is."""
    import importlib.util

    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin != origin:
        return False
    importlib.import_module(name)
    return True


def import_along(name: str, origin: str, path: list[str]) -> bool:
    """The same along another path, of which nothing stays but what the import itself adds."""
    own = list(sys.path)
    sys.path[:] = path
    try:
        return import_from(name, origin)
    finally:
        sys.path[:] = own + [each for each in sys.path if each not in path]


def stamp_of(path: str) -> Stamp:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns, found.st_ino


def is_changed(files: dict[str, Stamp]) -> bool:
    """Whether a file of what was loaded is another now."""
    try:
        return any(stamp_of(path) != stamp for path, stamp in files.items())
    except OSError:
        return True


def await_admission() -> dict[str, str]:
    """Say that all is loaded; return what the daemon says. Without a daemon this process ends."""
    import json
    import socket

    with socket.socket(fileno=os.dup(0)) as daemon:
        daemon.sendall(b"r")
        line = b""
        while not line.endswith(b"\n"):
            more = daemon.recv(1 << 16)
            if not more:
                os.kill(os.getpid(), 9)
                os._exit(137)  # the first process of a container cannot kill itself
            line += more
        if os.getpid() == 1:
            reap(daemon)
    said: dict[str, str] = json.loads(line)
    return said


def reap(daemon: socket) -> None:
    """Wait for the end of what brought the admission: in a container it is a child of ours, of which the program knows nothing."""
    while daemon.recv(1):
        pass
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        return


def leave(*_: object) -> None:
    """End as a process does that does not handle SIGTERM: the first one of a container would not even hear it."""
    os._exit(143)


def become(kind: str, first: str) -> None:
    """Run the program as `python FIRST` or `python -m FIRST` would; `first` of a script is its full path."""
    from importlib.machinery import BuiltinImporter, SourceFileLoader

    main = sys.modules["__main__"].__dict__
    kept = {
        "__builtins__": main["__builtins__"],
        "__name__": "__main__",
        "__doc__": None,
        "__annotations__": {},
    }
    main.clear()
    main.update(kept, __package__=None, __spec__=None, __loader__=BuiltinImporter)
    if kind == "module":
        import runpy

        runpy._run_module_as_main(first)  # type: ignore[attr-defined]
        return
    main.update(__file__=first, __cached__=None, __loader__=SourceFileLoader("__main__", first))
    with open(first, "rb") as source:
        code = compile(source.read(), first, "exec", dont_inherit=True)
    exec(code, main)  # noqa: S102 - it is the program that this process was started for


def launch() -> None:
    """Load, wait, become the program."""
    directory, kind, first, *arguments = sys.argv[1:]
    options = sys.orig_argv[1 : sys.orig_argv.index("-c")]
    words = [first, *arguments] if kind == "script" else ["-m", first, *arguments]
    sys.orig_argv[1:] = [*options, *words]
    if kind == "script":
        if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
            sys.path[0] = os.path.dirname(os.path.realpath(first))
        sys.argv[:] = [first, *arguments]
        first = os.path.abspath(first)
    else:
        sys.path[:1] = [os.getcwd()] if sys.path[:1] == [""] else sys.path[:1]
        sys.argv[:] = ["-m", *arguments]
    import json  # found as the program would find it

    with open(os.path.join(directory, "loaded"), encoding="utf-8") as file:
        found = json.load(file)
    if os.getpid() == 1:
        _signal.signal(_signal.SIGTERM, leave)
    plain = type(os.environ)
    os.environ.__class__ = Watched
    files = load(found["modules"], found["path"])
    os.environ.__class__ = plain
    if Watched.asked:
        be_none(f"a module reads {Watched.asked} while it is imported, which only a worker has")
    os.environ.update(await_admission())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    if _signal.getsignal(_signal.SIGTERM) is leave:
        _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
    if is_changed(files):
        os.execv(sys.executable, sys.orig_argv)
    become(kind, first)


if __name__ == "launcher":
    launch()
