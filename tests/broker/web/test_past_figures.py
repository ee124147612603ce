"""At a moment that is gone every chart shows what was known then: what the API had answered at that time, and nothing later."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from all_rights import connect
from asked_page import AskedPage
from browser import NEEDED, Tab, browser, tab
from page_figures import FIGURES, OF_JOB, OF_MOMENT, TABLES, agree
from patience import until
from told_job import JOB, send_samples, tell_a_record, tell_more, told_job

from rover_bus.events import data_facts

pytestmark = [pytest.mark.broker, NEEDED]
PATHS = ("", "/plans", "/members", "/throughput", "/explanation", "/lanes", "/program", "/memory", "/heat")
CHARTS = ("throughput", "front", "lanes", "program", "memory", "slots")
SAMPLES = 6
APART_S = 0.5
BEHIND_S = 2.5  # until no sample covers a step of before: such a step would not be shown
OF_NOW_ALONE = ("leader", "reason")  # what a job waits for, and who leads it, is of buckets
PANELS = (*(each for each in OF_JOB if each != "cluster"), *OF_MOMENT, "members")
READ = "JSON.stringify([...document.querySelectorAll('#{panel} [data-value]')].map((each) => each.dataset.value))"


def answers(page: AskedPage, at: int | None = None) -> dict[str, Any]:
    """Return what the API says of the job, now or at a moment."""
    asked = "" if at is None else f"?at={at}"
    said = {path: page.ask(f"/api/v1/jobs/{JOB}{path}{asked}") for path in PATHS}
    assert {path: each.status for path, each in said.items()} == dict.fromkeys(PATHS, 200)
    job = said[""].json
    return {path: each.json for path, each in said.items()} | {
        "": {key: value for key, value in job.items() if key not in OF_NOW_ALONE}
    }


def without_sequence(said: dict[str, Any]) -> dict[str, Any]:
    """Return answers without the newest fact: of a moment it is the newest of the job, of now the newest there is."""
    return {
        path: {key: value for key, value in body.items() if key != "sequence"}
        if isinstance(body, dict)
        else body
        for path, body in said.items()
    }


async def sample(home: Path, numbers: range) -> None:
    bus = await connect(home)
    try:
        for number in numbers:
            await send_samples(bus, number)
            await asyncio.sleep(APART_S)
    finally:
        await bus.close()


async def told(home: Path, *, more: bool = False) -> int:
    """Append a record to its log, behind more that happens; return its sequence."""
    bus = await connect(home)
    try:
        if more:
            await tell_more(bus)
        given_up: dict[str, Any] = {"samples": 100, "reason": "it failed three times"}
        record = data_facts.BatchDeadLettered(
            job=JOB, epoch=0, batch=40 + more, first_position=4000 + 100 * more, **given_up
        )
        return await tell_a_record(bus, record)
    finally:
        await bus.close()


def later_than(body: Any, moment_ms: int) -> list[Any]:
    """Return what an answer says of times behind a moment."""
    if isinstance(body, dict):
        return [found for value in body.values() for found in later_than(value, moment_ms)]
    if isinstance(body, list):
        return [found for value in body for found in later_than(value, moment_ms)]
    return [body] if isinstance(body, int) and moment_ms < body < 2 * moment_ms else []


async def go(shown: Tab, to: str) -> None:
    """Move the slider."""
    await shown.value(
        f"(() => {{ const slider = document.getElementById('moment'); slider.value = {to};"
        " slider.dispatchEvent(new Event('input')); })()"
    )


async def look(page: AskedPage, port: int, at: int) -> None:
    async with tab(port, f"{page.url}/#/job/{JOB}", FIGURES) as shown:
        await shown.until("document.querySelector('#memory .chart canvas')")
        for panel in TABLES:
            await shown.value(f"document.querySelector('#{panel} summary').click()")
        await agree(shown, "throughput", "front", "lanes", "program", "memory")
        present = {each: await shown.value(READ.format(panel=each)) for each in CHARTS}
        await go(shown, str(at))
        for panel in PANELS:
            if panel not in ("state", "ledger"):
                await shown.until(f"document.getElementById('{panel}')?.dataset.at === '{at}'")
        await agree(shown, *PANELS)
        past = {each: await shown.value(READ.format(panel=each)) for each in CHARTS}
        assert [each for each in CHARTS if past[each] == present[each]] == []
        assert not await shown.value("document.querySelector('#plans button')"), "a word on what waited once"
        await go(shown, "document.getElementById('moment').max")
        await shown.until("document.getElementById('throughput').dataset.at === ''")
        await shown.until("document.querySelector('#plans button')")
        await agree(shown, "throughput", "front", "lanes", "program", "memory")
        assert shown.errors == []


def test_every_chart_at_a_moment_shows_what_was_known_then_and_nothing_later(tmp_path: Path) -> None:
    with told_job(tmp_path) as (page, home), browser(tmp_path) as port:
        asyncio.run(sample(home, range(SAMPLES)))
        until(lambda: len(answers(page)["/lanes"]["lanes"][0]["times_ms"]) >= 2, "lanes")
        at = asyncio.run(told(home))
        was = answers(page)
        assert was["/heat"]["servers"], "no heat, so none to compare"
        time.sleep(BEHIND_S)
        asyncio.run(sample(home, range(50, 50 + SAMPLES)))
        asyncio.run(told(home, more=True))
        until(
            lambda: answers(page)["/plans"][-1]["state"] == "waits" and len(answers(page)["/plans"]) == 3,
            "plan 3",
        )
        moment_ms = page.ask(f"/api/v1/jobs/{JOB}/state?at={at}").json["at"]["time_ms"]
        then, now = answers(page, at), answers(page)
        assert without_sequence(then) == without_sequence(was)
        assert [path for path in PATHS if without_sequence(now)[path] == without_sequence(was)[path]] == []
        assert later_than(now, moment_ms), "nothing later is told, so nothing to leave out"
        assert later_than(then, moment_ms) == []
        for path in PATHS[3:]:
            rests_on = int(page.ask(f"/api/v1/jobs/{JOB}{path}?at={at}").headers["Rover-Sequence"])
            assert rests_on <= was["/throughput"]["sequence"]
        asyncio.run(look(page, port, at))
