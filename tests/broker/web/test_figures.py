"""Every figure of the page is the JSON API's at the same sequence: panel by panel, of a job that has all that is shown."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from all_rights import connect
from asked_page import AskedPage
from browser import NEEDED, Tab, browser, tab
from page_figures import FIGURES, OF_JOB, OF_MOMENT, TABLES, agree
from told_job import JOB, send_samples, told_job

pytestmark = [pytest.mark.broker, NEEDED]
EVERY_S = 2.0
RAMP = 4  # samples that differ; those that follow are the same again
OF_ALL = ("cluster", "jobs")
OF_NOW = ("members", "slots")  # what was sampled lately


@asynccontextmanager
async def sampled(home: Path) -> AsyncIterator[None]:
    """Send samples while the body runs."""
    bus = await connect(home)

    async def send() -> None:
        for number in itertools.count():
            await send_samples(bus, min(number, RAMP))
            await asyncio.sleep(EVERY_S)

    sending = asyncio.create_task(send())
    try:
        yield
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await bus.close()


async def events_agree(page: Tab, asked: AskedPage, job: str = "") -> None:
    """See the events drawn, the newest first; the list of all says whose each is."""
    said = asked.ask(f"/api/v1/events?count=200&job={job}").json
    wanted = []
    for each in reversed(said):
        whose = f"{each['job']}: " if each["job"] and not job else ""
        wanted.append([each["sequence"], each["time_ms"], whose + each["text"]])
    await page.until(f"document.querySelectorAll('.events li').length >= {min(len(wanted), 30)}")
    drawn = await page.value(
        """[...document.querySelectorAll('.events > li')].map((line) => { const time = line.querySelector('time');
          return [Number(line.dataset.sequence), Date.parse(time.dateTime), time.nextSibling.textContent]; })"""
    )
    assert drawn == wanted[: len(drawn)]


async def travel(shown: Tab, page: AskedPage) -> None:
    """See the panels of a moment show what the API says of it: of the one before the newest, and of the first."""
    state = page.ask(f"/api/v1/jobs/{JOB}/state").json
    await shown.value("document.getElementById('moment').focus()")
    for key, moment in (
        ("ArrowLeft", f"< {state['newest']['sequence']}"),
        ("Home", f"=== {state['first']['sequence']}"),
    ):
        await shown.press(key)
        await shown.until(f"Number(document.getElementById('travel').dataset.at) {moment}")
        await agree(shown, *OF_MOMENT)


def test_every_figure_of_every_panel_is_the_apis_at_the_sequence_that_the_panel_says(tmp_path: Path) -> None:
    async def look(page: AskedPage, home: Path, port: int) -> None:
        async with tab(port, f"{page.url}/", FIGURES) as shown:
            await shown.until("document.querySelector('#jobs[data-sequence]')")
            await agree(shown, *OF_ALL)
            await events_agree(shown, page)
        async with tab(port, f"{page.url}/#/job/{JOB}", FIGURES) as shown:
            await shown.until("document.querySelector('#ledger path[d^=M]')")
            async with sampled(home):
                await shown.until("document.querySelectorAll('#members rect').length === 9")
                for panel in TABLES:
                    await shown.value(f"document.querySelector('#{panel} summary').click()")
                await agree(shown, *OF_NOW)
            await agree(shown, *OF_JOB)
            await events_agree(shown, page, JOB)
            await travel(shown, page)

    with told_job(tmp_path) as (page, home), browser(tmp_path) as port:
        asyncio.run(look(page, home, port))
