"""Taking a host away as a power cut does, when it runs in processes of its own: everything of it, and its memory."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress

from rover_bus.cli.home import Home
from rover_bus.flash.places import host_root
from rover_bus.node.local.proctree import bearing


def take_away(home: Home) -> None:
    """Kill every process of a host's state directory, and remove what it staged. Its first process is the caller's to reap."""
    while left := bearing(str(home.root)):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    shutil.rmtree(host_root(home.node), ignore_errors=True)
