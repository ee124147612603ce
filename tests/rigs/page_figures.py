"""Whether panels of the page show what the API says: `tests/broker/web/figures.js` in a browser, asked until they do."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from browser import Tab
from patience import PATIENCE_S
from told_job import JOB

FIGURES = (Path(__file__).parents[1] / "broker" / "web" / "figures.js").read_text()
OF_JOB = (
    "cluster",
    "figures",
    "plans",
    "throughput",
    "front",
    "lanes",
    "program",
    "memory",
    "state",
    "ledger",
)
OF_MOMENT = ("state", "ledger", "slots")
TABLES = ("throughput", "front", "lanes", "program", "memory", "ledger", "slots")


async def agree(page: Tab, *panels: str) -> None:
    """See each panel show what the API says: samples come now and then, and the page is drawn again a moment later."""
    for panel in panels:
        end_s = time.monotonic() + PATIENCE_S
        ask = f"differences({panel!r}, {JOB!r}).catch((error) => [error.message])"
        while differ := await page.value(ask):
            assert time.monotonic() < end_s, f"{panel}: {differ}"
            await asyncio.sleep(0.1)
