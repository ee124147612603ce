"""Draw the pictures of docs/page.md: a real stack, a job that finds its size, a headless Chromium. `make page`.

python docs/make_page.py [FOLDER]     (tests/rigs must be on PYTHONPATH)
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from asked_page import page_of
from browser import Tab, browser, tab
from small_job import SmallJob

from rover_bus.cli.own_broker import LOOPBACK
from rover_bus.cli.stack import Here, RunningStack

PICTURES = Path(__file__).parent / "page"
TRAINS_S = 75.0  # until there is something to see
LOST_AFTER_S = 50.0  # a worker is killed then
ROWS = 2_000_000
MOST_HIGH = 700
SHAPES = {"light": ("light", 1100), "dark": ("dark", 1100), "375": ("light", 375)}
PARTS = ("throughput", "front", "lanes", "program", "memory", "bar", "travel")
PIXELS_A_BYTE = 50  # of a picture with words; one of a single colour is a fifth of that
ALL_HIGH = 6000  # of a window in which no panel is beyond it: what is not seen is not painted


def main(arguments: list[str]) -> int:
    """Draw them all; 1 where there is no browser."""
    if not shutil.which("chromium"):
        print("no chromium here: apt-get install chromium", file=sys.stderr)
        return 1
    target = Path(arguments[0]) if arguments else PICTURES
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with RunningStack(folder / "state", here=Here(page=LOOPBACK)) as stack, browser(folder) as port:
            job = _trained(folder)
            page = page_of(stack).url
            asyncio.run(_draw(port, page, job, target))
            job.finish()
    return 0


def _trained(folder: Path) -> SmallJob:
    """Return a job that has found its size and lost a worker."""
    job = SmallJob(
        folder=folder,
        home=folder / "state",
        rows=ROWS,
        epochs=1,
        workers=0,
        start=1,
        servers=2,
        most=4,
        most_servers=2,
        checkpoint='every = "10s"',
        top='plan = { mode = "auto", window = "3s", cooldown = "2s" }',
    )
    job.submit()
    time.sleep(LOST_AFTER_S)
    members = _pids(job)
    if members:
        os.kill(members[-1], signal.SIGKILL)
    time.sleep(TRAINS_S - LOST_AFTER_S)
    return job


def _pids(job: SmallJob) -> list[int]:
    """Return the processes of its workers, as `rover members` lists them."""
    rows = json.loads(job.rover("members", job.name, "-o", "json").stdout)
    return [row["pid"] for row in rows if row.get("role") == "worker" and row.get("pid")]


async def _draw(port: int, page: str, job: SmallJob, target: Path) -> None:
    for shape, (scheme, width) in SHAPES.items():
        async with tab(port, f"{page}/#/job/{job.name}") as shown:
            feature = {"name": "prefers-color-scheme", "value": scheme}
            await shown.call("Emulation.setEmulatedMedia", features=[feature])
            await _resize(shown, width, ALL_HIGH)
            for part in ("throughput", "front", "program", "memory"):
                await shown.until(f"document.querySelector('#{part} .chart canvas')")
            await shown.until("document.querySelector('#ledger path[d^=M]')")
            await asyncio.sleep(1.0)
            for part in PARTS:
                await _save(shown, f"document.getElementById('{part}')", target / f"{part}-{shape}.png")
        async with tab(port, f"{page}/") as shown:
            await shown.call(
                "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
            )
            await _resize(shown, width, 500)
            await shown.until("document.getElementById('jobs')")
            await _save(shown, "document.body", target / f"jobs-{shape}.png")


async def _resize(shown: Tab, width: int, height: int) -> None:
    await shown.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
    )


async def _save(shown: Tab, place: str, path: Path) -> None:
    """Write the picture of one element, painted, which stays where it is while it is taken."""
    while True:
        box = await _box(shown, place)
        picture = await shown.picture(box)
        is_painted = len(picture) > box["width"] * box["height"] / PIXELS_A_BYTE
        if is_painted and await _box(shown, place) == box:
            break
    _write(path, picture)


async def _box(shown: Tab, place: str) -> dict[str, float]:
    box: dict[str, float] = await shown.value(
        f"(() => {{ const box = {place}.getBoundingClientRect(); return {{"
        " x: Math.max(box.x - 8, 0), y: box.y + scrollY, width: box.width + 16,"
        f" height: Math.min(box.height + 8, {MOST_HIGH}) }} }})()"
    )
    return box


def _write(path: Path, picture: bytes) -> None:
    path.write_bytes(picture)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
