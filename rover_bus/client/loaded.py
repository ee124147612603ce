"""What a worker had loaded when it joined: the list from which its host makes spares ready (docs/design/0042).

Called by `job.join` where the platform names a file; read by node/local. Apart because it is about the interpreter, not the job.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path


def tell_loaded(path: Path) -> None:
    """Write names and files of all modules in the order of their loading, `sys.path`, and how old this process is in seconds.

    A disk that is full costs the job its spares, nothing else.
    """
    named = [(name, _origin(module)) for name, module in list(sys.modules.items())]
    modules = [[name, origin] for name, origin in named if origin]
    found = {"start_s": _age_s(), "path": [str(each) for each in sys.path], "modules": modules}
    fresh = path.with_name(f"{path.name}.new")
    with suppress(OSError):
        fresh.write_text(json.dumps(found))
        fresh.rename(path)


def _origin(module: object) -> str:
    """The file that a module came from; "" for what is no module that an import would find again."""
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None)
    return origin if isinstance(origin, str) and getattr(spec, "has_location", False) else ""


def _age_s() -> float:
    try:
        words = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return round(time.clock_gettime(time.CLOCK_BOOTTIME) - int(words[19]) / os.sysconf("SC_CLK_TCK"), 3)
    except (OSError, ValueError, AttributeError):
        return 0.0
