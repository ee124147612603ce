"""How a daemon's threads give way to training: their priority. Used by the persister and by the server that lends parts.

Low, but not the lowest: against a busy core nice 12 gets one part in fifteen, nice 19 one in seventy, and a checkpoint that takes
minutes to be stored is none (the weights are those of the kernel's scheduler).
"""

from __future__ import annotations

import os
import threading

NICE = 12


def give_way() -> None:
    """Lower the priority of the calling thread; Linux has one for each thread."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
