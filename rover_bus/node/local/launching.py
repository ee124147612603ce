"""The command line of a spare: the interpreter of its program, with launcher.py in the program's place (docs/design/0042).

Used by warm.py for processes of this machine, and by spare_pod.py in a pod.
"""

from __future__ import annotations

import os
from pathlib import Path

from rover_bus.node.local.trials import PYTHON, read_invocation

LAUNCHER = str(Path(__file__).with_name("launcher.py"))
BECOME = f"with open({LAUNCHER!r}) as f: exec(compile(f.read(), f.name, 'exec'), {{'__name__': 'launcher'}})"
LOADED = "loaded"  # in a spare's directory: what it is to load
LATER = ("ROVER_INDEX", "ROVER_INCARNATION", "ROVER_CREDENTIAL")  # what only admission gives


def launch_command(command: list[str], directory: Path) -> list[str]:
    """Return the command that makes a spare of this program; empty for a program that cannot have any.

    It must be a Python's, and a script or a module: of a text after `-c`, of an archive and of other programs no line is first.
    """
    executable, *words = command or [""]
    if not PYTHON.fullmatch(os.path.basename(executable)):
        return []
    run = read_invocation(words)
    rest = words[len(run.options) :]
    if run.kind == "script" and rest[:1] == [run.first] and run.first.endswith(".py"):
        kind = "script"
    elif run.kind == "module" and rest[:1] == ["-m"] and len(rest) > 1:
        kind, rest = "module", rest[1:]
    else:
        return []
    return [executable, *run.options, "-c", BECOME, str(directory), kind, *rest]
