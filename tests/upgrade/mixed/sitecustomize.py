"""Which release a process of a mix runs: Python imports this file before anything else, where its folder is on PYTHONPATH.

MIXED_OLD is a folder with the other release, MIXED_PARTS names the parts that run it, MIXED_NOTES a folder in which each process
notes what it ran. Parts that stand in the file MIXED_TURNED, which a test writes meanwhile, run the release that they did not run
before. A part is what can be upgraded by itself: the command line (with `rover up` and its page), Brain, daemon, operator, master,
standby, server, agent of a node, library (a worker's program), trial of a program. Standard library only: it runs in every
interpreter that the job starts.
"""

import os
import sys
from importlib.machinery import PathFinder


def part_of(words, environment):
    """Return which part a process is; "" for what is started and answered within one of them."""
    if "rover_bus.cli.serve" in words:
        role = words[words.index("rover_bus.cli.serve") + 1]
        if role == "master":
            return "standby" if words[words.index("--index") + 1] != "0" else "master"
        return {"ps": "server", "web": "command"}.get(role, role)
    if "rover_bus.node.local.lone_trial" in words:
        return "trial"
    if "rover_bus.cli.entry" in words or any(each.endswith("/pod_stacks.py") for each in words):
        return "command"
    return "library" if environment.get("ROVER_ROLE") == "worker" else ""


class FormerFinder:
    """Finds the package of the other release before any path is looked at: `python -m` puts the directory it runs in first."""

    def __init__(self, part):
        self.part = part

    def find_spec(self, name, path=None, target=None):
        if name != "rover_bus":
            return None
        note(f"{self.part}-old")
        return PathFinder.find_spec(name, [os.environ["MIXED_OLD"]])


def note(ran):
    """Note what a process runs, as `daemon-old`."""
    with open(os.path.join(os.environ["MIXED_NOTES"], ran), "a") as notes:
        notes.write(f"{os.getpid()}\n")


def is_old(part):
    """Say whether a part runs the other release."""
    turned = []
    if os.path.exists(os.environ["MIXED_TURNED"]):
        with open(os.environ["MIXED_TURNED"]) as file:
            turned = file.read().split()
    return (part in os.environ["MIXED_PARTS"].split(",")) != (part in turned)


def choose():
    """Have a process of the parts that run the other release import that."""
    part = part_of(sys.orig_argv, os.environ)
    if not part:
        return
    if is_old(part):
        sys.meta_path.insert(0, FormerFinder(part))
    else:
        note(f"{part}-new")


if "MIXED_OLD" in os.environ:
    choose()
