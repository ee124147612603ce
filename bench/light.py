"""How light rover is: start-up times, the client's import, an idle stack. Issue "Light": 100 ms, 250 ms, 3 % of a core, 250 MB.

    python -m bench.light [--seconds 60] [--json]

Start-ups are medians of runs that alternate with a bare interpreter's. The idle stack is `rover up` in a directory of its own
with one registered host; CPU is that of all its processes but the broker, memory the sum of their PSS.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

ROVER = [sys.executable, "-m", "rover_bus.cli.entry"]
STARTS: dict[str, tuple[list[str], bytes]] = {
    "bare python": ([sys.executable, "-c", "pass"], b""),
    "python with msgpack": ([sys.executable, "-c", "import msgpack"], b""),
    "rover decode": ([*ROVER, "decode"], b"\x81\xa4type\xa6test.1"),
    "rover --help": ([*ROVER, "--help"], b""),
    "import rover_bus.client": ([sys.executable, "-c", "import rover_bus.client"], b""),
}


def measure_starts(rounds: int) -> dict[str, float]:
    """Return median milliseconds of each command, run in turns."""
    taken: dict[str, list[float]] = {name: [] for name in STARTS}
    for _ in range(rounds):
        for name, (command, stdin) in STARTS.items():
            began = time.perf_counter()
            subprocess.run(command, input=stdin, capture_output=True, check=True)
            taken[name].append(1000 * (time.perf_counter() - began))
    return {name: round(statistics.median(times), 1) for name, times in taken.items()}


def measure_idle(seconds: float) -> dict[str, float]:
    """Return percent of a core and MB (PSS) of an idle `rover up`, the broker apart."""
    with tempfile.TemporaryDirectory(prefix="rover-light-") as directory:
        record = Path(directory, "state", "stack.json")
        command = [*ROVER, "up", "--quiet", "--dir", str(record.parent)]
        with subprocess.Popen(command) as up:
            while not record.exists():
                time.sleep(0.05)
            time.sleep(3.0)  # what only starting costs is over
            own = psutil.Process(up.pid)
            everybody = [own, *own.children(recursive=True)]
            broker = [each for each in everybody if each.name() == "nats-server"]
            services = [each for each in everybody if each not in broker]
            before = _cpu_s(services), _cpu_s(broker)
            time.sleep(seconds)
            after = _cpu_s(services), _cpu_s(broker)
            measured = {
                "cpu_percent": round(100 * (after[0] - before[0]) / seconds, 2),
                "pss_mb": round(_pss_mb(services), 1),
                "broker_cpu_percent": round(100 * (after[1] - before[1]) / seconds, 2),
                "broker_pss_mb": round(_pss_mb(broker), 1),
                "processes": len(services),
            }
            os.kill(up.pid, signal.SIGTERM)
    return measured


def _cpu_s(processes: list[psutil.Process]) -> float:
    return float(sum(sum(each.cpu_times()[:2]) for each in processes))


def _pss_mb(processes: list[psutil.Process]) -> float:
    return float(sum(each.memory_full_info().pss for each in processes)) / 1e6


def main() -> None:
    """Print a table and, with --json, one last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    starts, idle = measure_starts(options.rounds), measure_idle(options.seconds)
    result: dict[str, Any] = {"start_ms": starts, "idle": idle}
    for name, milliseconds in starts.items():
        print(f"{name:<26}{milliseconds:8.1f} ms")
    for name, value in idle.items():
        print(f"idle {name:<21}{value:8.1f}")
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
