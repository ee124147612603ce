"""What the first touch of memory costs: pages that were never used, touched by the program or populated ahead, and used ones.

    python -m bench.pages [--mib 256] [--rounds 3] [--json]

On a virtual machine the host may have to find the memory as well; a second run finds it there already, unless the host took it
back. So rounds hold on to what they got. A server that takes in slots has its pages populated ahead (rover_bus/ps/memory.py).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np

from rover_bus.ps.memory import Pages, Stretch, populate

PAGE_BYTES = 4096


def fresh(size: int) -> tuple[Stretch, list[Pages]]:
    """Return reserved memory that was never touched, and its pages."""
    stretch = Stretch(1, "uint8")
    stretch.grow(size)
    return stretch, [pages._replace(end=size) for pages in stretch.cold(size)]


def timed(work: Callable[..., object], *given: object) -> float:
    began_s = time.perf_counter()
    work(*given)
    return time.perf_counter() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print the result as one last JSON line")
    options = parser.parse_args()
    kept, seconds = [], dict[str, list[float]]()
    for _ in range(options.rounds):
        (touched, _), (populated, cold) = fresh(options.mib << 20), fresh(options.mib << 20)
        kept += [touched, populated]
        seconds.setdefault("first touch", []).append(timed(_touch, touched))
        seconds.setdefault("populated ahead", []).append(timed(populate, cold))
        seconds.setdefault("touch after that", []).append(timed(_touch, populated))
    found = {name: statistics.median(each) / options.mib * 1e3 for name, each in seconds.items()}
    for name, ms in found.items():
        print(f"{name:20} {ms:7.3f} ms a MiB")
    if options.json:
        print(json.dumps({"bench": "pages", "ms_a_mib": found}))


def _touch(stretch: Stretch) -> None:
    stretch.array[:, 0][::PAGE_BYTES] = np.uint8(1)


if __name__ == "__main__":
    main()
