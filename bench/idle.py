"""What an idle stack costs: `rover up` with one registered host and no job, and the start of what people start often.

    python -m bench.idle [--seconds 60] [--json]

Share of a core and memory (sum of PSS) of the services, each a process of its own, without the broker; the supervisor (`rover up`
itself) is counted too. Then wall time of `rover --help` and of importing the client library, medians of fresh processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.processes import Meter, find_processes, pss_bytes, running_stack

SERVICES = ("up", "daemon", "brain")
SETTLE_S = 5.0  # the start is over: imports, first samples
MEBIBYTE = 1 << 20
CPU_SHARE, MEMORY_MB, HELP_MS, IMPORT_MS = 0.03, 250.0, 100.0, 250.0
STARTS = {
    "rover --help": [str(Path(sys.executable).with_name("rover")), "--help"],
    "import rover_bus.client": [sys.executable, "-c", "import rover_bus.client"],
    "python -c pass": [sys.executable, "-c", "pass"],
}


def measure_idle(seconds: float) -> dict[str, dict[str, float]]:
    """Return share of a core and PSS by service, over `seconds` of idleness."""
    with tempfile.TemporaryDirectory(prefix="rover-bench-") as directory:
        with running_stack(Path(directory) / "stack") as home:
            time.sleep(SETTLE_S)
            meter = Meter(home)
            meter.begin()
            began_s = time.monotonic()
            time.sleep(seconds)
            meter.look()
            window_s = time.monotonic() - began_s
            memory = {role: pss_bytes(pid) / MEBIBYTE for pid, role in find_processes(home).items()}
        return {
            role: {"core": meter.spent_s(role) / window_s, "pss_mb": memory.get(role, 0.0)}
            for role in (*SERVICES, "broker")
        }


def measure_starts(times: int) -> dict[str, float]:
    """Return milliseconds of wall time by command; the commands take turns. Byte code is cached, as on a user's machine."""
    with tempfile.TemporaryDirectory(prefix="rover-bench-") as cache:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = cache
        taken: dict[str, list[float]] = {name: [] for name in STARTS}
        for turn in range(times + 1):
            for name, command in STARTS.items():
                began_s = time.perf_counter()
                subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
                if turn:  # the first one writes the byte code
                    taken[name].append(1000 * (time.perf_counter() - began_s))
    return {name: statistics.median(each) for name, each in taken.items()}


def judge(services: dict[str, dict[str, float]], starts: dict[str, float]) -> dict[str, Any]:
    """Return the sums without the broker, and whether each target holds."""
    core = sum(services[role]["core"] for role in SERVICES)
    memory = sum(services[role]["pss_mb"] for role in SERVICES)
    return {
        "core": core,
        "pss_mb": memory,
        "met": {
            "core": core <= CPU_SHARE,
            "pss_mb": memory <= MEMORY_MB,
            "help": starts["rover --help"] <= HELP_MS,
            "import": starts["import rover_bus.client"] <= IMPORT_MS,
        },
    }


def main() -> None:
    """Print a row a service, the starts, the verdict; with --json one last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print one last line of JSON")
    options = parser.parse_args()

    starts = measure_starts(options.starts)
    for name, milliseconds in starts.items():
        print(f"{name:24} {milliseconds:6.0f} ms, median of {options.starts}", flush=True)
    services = measure_idle(options.seconds)
    found = judge(services, starts)
    print(f"idle for {options.seconds:g} s   core     PSS MB")
    for role, figures in services.items():
        note = "   (not counted)" if role == "broker" else ""
        print(f"{role:14} {figures['core']:8.2%}  {figures['pss_mb']:7.1f}{note}")
    print(f"{'sum':14} {found['core']:8.2%}  {found['pss_mb']:7.1f}")
    for target, met in found["met"].items():
        print(f"{'met   ' if met else 'MISSED'} {target}")
    if options.json:
        print(json.dumps({"bench": "idle", "services": services, "starts_ms": starts, **found}))


if __name__ == "__main__":
    main()
