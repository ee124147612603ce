"""The page in a headless Chromium: its figures are the API's, a plan is approved by keyboard, what happens is seen at once."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import NEEDED, Tab, browser, tab
from patience import until
from waiting_plan import PLAN, Scene, waiting_plan

from rover_bus.web.static_files import FILES

pytestmark = [pytest.mark.broker, NEEDED]
PHONE = 375
REPOSITORY = Path(__file__).parents[3]
PANELS = ("throughput", "lanes", "memory", "ledger", "slots")
SEEN_S = 1.0
MOST_BYTES = 150_000
MOST_DRAWN = 200  # events (events.js)
UPLOT_SAYS = "/*! https://github.com/leeoniya/uPlot (v1.6.32) */"
VENDORED = {  # of uplot-1.6.32.tgz of npm
    "uplot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with waiting_plan(tmp_path_factory.mktemp("browser")) as there:
        yield there


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with browser(tmp_path_factory.mktemp("chromium")) as driven_at:
        yield driven_at


def is_well(page: Tab, origin: str) -> None:
    """No request left the origin, and the console complains of nothing."""
    assert page.errors == []
    assert page.asked
    assert [url for url in page.asked if not url.startswith(f"{origin}/")] == []


def test_files_are_small_and_name_no_other_origin() -> None:
    assert sum(len(file.body) for file in FILES.values()) <= MOST_BYTES
    for name, file in FILES.items():
        text = file.body.decode().replace("http://www.w3.org/2000/svg", "")
        text = text.removeprefix(UPLOT_SAYS)
        assert "http:" not in text, name
        assert "https:" not in text, name
        assert "innerHTML" not in text, name


def test_what_is_vendored_is_as_its_makers_published_it_and_has_its_licence() -> None:
    for name, digest in VENDORED.items():
        assert hashlib.sha256(FILES[name].body).hexdigest() == digest, name
        assert digest in (REPOSITORY / "CONTRIBUTING.md").read_text()
    licence = (REPOSITORY / "rover_bus" / "web" / "static" / "uplot.LICENSE").read_text()
    assert "Leon Sorokin" in licence


CHARTS = """(() => { const at = (id) => document.getElementById(id); return {
  charts: [...document.querySelectorAll('.chart')].map((each) => each.dataset.chart),
  inked: [...document.querySelectorAll('.chart canvas, #lanes canvas')].every((canvas) => {
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    return data.some((value) => value > 0); }),
  lanes: Number(at('lanes').dataset.lanes), plan: at('front').dataset.plan,
  strips: document.querySelectorAll('.strip svg path').length } })()"""


def test_each_chart_is_drawn_and_has_a_table_behind_it_with_the_figures_of_the_api(
    scene: Scene, port: int
) -> None:
    path = f"/api/v1/jobs/{scene.job.name}"

    async def look() -> None:
        async with tab(port, f"{scene.page.url}/#/job/{scene.job.name}") as page:
            await page.until("document.querySelectorAll('.chart').length >= 3")
            await page.until(
                "document.querySelectorAll('#ledger .strip path[d^=M], #slots .strip path[d^=M]').length >= 2"
            )
            drawn = await page.value(CHARTS)
            assert {"throughput", "memory"} <= set(drawn["charts"])
            assert drawn["inked"]
            assert drawn["lanes"] >= 2
            assert drawn["plan"]
            for panel in PANELS:
                await page.value(f"document.querySelector('#{panel} summary').focus()")
                await page.press("Enter")
                await page.until(f"document.querySelector('#{panel} details table tbody')")
            same = f"""fetch('{path}/throughput').then((said) => said.json()).then((said) => {{
              const panel = document.getElementById('throughput');
              const cells = [...panel.querySelectorAll('details tbody tr')].map((line) => line.children[1].dataset.value);
              return Number(panel.dataset.sequence) === said.sequence
                && JSON.stringify(cells.filter(Boolean).map(Number)) === JSON.stringify(said.measured); }})"""
            await page.until(same)
            await page.until(
                f"""(() => {{ const at = document.getElementById('travel').dataset.at;
                  const cells = () => [...document.querySelectorAll('#ledger td[data-kind]')];
                  const drawn = () => cells().map((cell) => Number(cell.dataset.value));
                  return fetch(`{path}/state?at=${{at}}`).then((said) => said.json()).then(({{ ledger, committed }}) =>
                    document.getElementById('travel').dataset.at === at
                    && Number(document.getElementById('state').dataset.committed) === committed
                    && JSON.stringify(drawn()) === JSON.stringify(
                      [ledger.committed_batches, ledger.leased_batches, ledger.returned_batches, ledger.dead.length])) }})()"""
            )
            await page.call(
                "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}]
            )
            await page.call(
                "Emulation.setDeviceMetricsOverride",
                width=PHONE,
                height=800,
                deviceScaleFactor=1,
                mobile=False,
            )
            await page.until(
                "[...document.querySelectorAll('.chart canvas')].every((each) => each.clientWidth <= innerWidth)"
            )
            assert await page.value("getComputedStyle(document.body).backgroundColor") == "rgb(18, 24, 31)"
            assert await page.value("document.documentElement.scrollWidth") <= PHONE
            assert (await page.value(CHARTS))["inked"]
            is_well(page, scene.page.url)

    asyncio.run(look())


def test_the_slider_shows_what_replay_prints_and_a_moment_that_is_not_kept_is_refused(
    scene: Scene, port: int
) -> None:
    path, name = f"/api/v1/jobs/{scene.job.name}/state", scene.job.name
    now = scene.page.ask(path).json
    first, newest = now["first"], now["newest"]["sequence"]
    middle = (first["sequence"] + newest) // 2
    for at in (first["sequence"], middle, newest):
        said = scene.page.ask(f"{path}?at={at}").json
        printed = json.loads(scene.job.rover("replay", name, "--at", str(at), "-o", "json").stdout)
        assert {**said, "newest": 0} == {**printed, "newest": 0}
        assert said["at"]["sequence"] <= at
    refused = scene.page.ask(f"{path}?at={first['sequence'] - 1}")
    assert (refused.status, refused.json["code"]) == (409, "not_kept")
    printed = scene.job.rover("replay", name, "--at", str(first["sequence"] - 1))
    assert printed.returncode == 3
    assert f"the first moment is {first['sequence']}, of 20" in printed.stderr

    async def look() -> None:
        async with tab(port, f"{scene.page.url}/#/job/{name}") as page:
            await page.until("document.getElementById('travel')?.dataset.at")
            await page.value("document.getElementById('moment').focus()")
            begun = time.monotonic()
            await page.press("Home")
            await page.until(f"document.getElementById('travel').dataset.at === '{first['sequence']}'")
            took_s = time.monotonic() - begun
            print(f"the oldest kept moment was shown in {took_s:.2f} s")
            assert took_s <= SEEN_S
            oldest = scene.page.ask(f"{path}?at={first['sequence']}").json
            text = await page.value("document.getElementById('state').textContent")
            assert text.startswith(f"{oldest['phase']}; term {oldest['term']}, ")
            is_well(page, scene.page.url)

    asyncio.run(look())


def test_the_list_of_jobs_has_the_figures_of_the_api_and_a_new_event_is_seen_within_a_second(
    scene: Scene, port: int
) -> None:
    async def look() -> None:
        async with tab(port, f"{scene.page.url}/") as page:
            await page.until(f"document.querySelector('tr[data-job={scene.job.name}]')")
            drawn = await page.value(
                """(() => { const line = document.querySelector('tr[data-job]'); return {
                  sequence: Number(document.getElementById('jobs').dataset.sequence),
                  committed: Number(line.dataset.committed),
                  values: [...line.querySelectorAll('td.number')].map((cell) => cell.dataset.value) } })()"""
            )
            same = await page.until(
                f"""fetch('/api/v1/jobs').then((said) => said.json()).then(([job]) => {{
                  const line = document.querySelector('tr[data-job]');
                  const drawn = Number(document.getElementById('jobs').dataset.sequence);
                  return drawn === job.sequence && Number(line.dataset.committed) === job.committed
                    && Number(line.querySelectorAll('td.number')[0].dataset.value) === job.samples_per_second
                    && job.job === {scene.job.name!r} && job; }})"""
            )
            assert same["committed"] >= drawn["committed"]
            begun = time.monotonic()
            said = scene.job.rover("plan", "mode", scene.job.name, "observe")
            assert said.returncode == 0, said.stderr
            stored_by = time.monotonic()
            await page.until(
                """[...document.querySelectorAll('.events li')].some((line) => line.textContent.includes('observe'))"""
            )
            seen_s = time.monotonic() - stored_by
            print(
                f"seen {seen_s:.2f} s after the command's end, {time.monotonic() - begun:.2f} s after its start"
            )
            assert seen_s <= SEEN_S
            assert scene.job.rover("plan", "mode", scene.job.name, "approve").returncode == 0
            is_well(page, scene.page.url)

    asyncio.run(look())


def test_broker_and_web_restarted_the_page_goes_on_without_a_gap_or_a_repeat(scene: Scene, port: int) -> None:
    drawn = (
        "[...document.querySelectorAll('.events li')].map((line) => Number(line.dataset.sequence)).reverse()"
    )

    def say(mode: str) -> None:
        until(lambda: scene.job.rover("plan", "mode", scene.job.name, mode).returncode == 0, f"mode {mode}")

    def end_web() -> None:
        former = scene.stack.pids()["web"]
        os.kill(former, signal.SIGKILL)
        until(lambda: scene.stack.pids().get("web", former) != former and scene.page.ready, "another process")

    def missed() -> None:
        end_web()
        say("observe")
        scene.stack.restart_broker()
        say("auto")
        end_web()
        say("approve")

    async def look() -> None:
        async with tab(port, f"{scene.page.url}/") as page:
            await page.until("document.querySelectorAll('.events li').length > 5")
            first = (await page.value(drawn))[0]
            await asyncio.to_thread(missed)
            newest = scene.page.ask("/api/v1/cluster").json["sequence"]
            await page.until(f"{drawn}.at(-1) >= {newest}")
            seen = [each for each in await page.value(drawn) if each <= newest]
            stored = scene.page.ask(f"/api/v1/events?count=1000&before={newest + 1}").json
            wanted = [each["sequence"] for each in stored if each["sequence"] >= first]
            assert seen == wanted[-len(seen) :]
            assert len(seen) == min(len(wanted), MOST_DRAWN)

    asyncio.run(look())


def test_an_event_opens_its_story_and_a_phone_scrolls_no_further_than_its_tables(
    scene: Scene, port: int
) -> None:
    async def look() -> None:
        async with tab(port, f"{scene.page.url}/#/job/{scene.job.name}") as page:
            await page.call(
                "Emulation.setDeviceMetricsOverride",
                width=PHONE,
                height=800,
                deviceScaleFactor=1,
                mobile=False,
            )
            await page.until("document.querySelectorAll('.events li').length > 5")
            await page.value("document.querySelector('.events li button').focus()")
            await page.press("Enter")
            await page.until("document.querySelectorAll('.events .story li').length > 0")
            assert await page.value("document.documentElement.scrollWidth") <= PHONE
            await page.until("document.querySelectorAll('#members tbody tr').length > 1")
            is_well(page, scene.page.url)

    asyncio.run(look())


def test_a_plan_is_approved_by_keyboard_in_the_name_of_the_token(scene: Scene, port: int) -> None:
    token = scene.page.token("grace")

    async def approve() -> None:
        async with tab(port, f"{scene.page.url}/") as page:
            await page.until(f"document.querySelector('a[href=\"#/job/{scene.job.name}\"]')")
            await page.value("document.getElementById('token').focus()")
            await page.write(token)
            await page.press("Tab")
            await page.value(f"document.querySelector('a[href=\"#/job/{scene.job.name}\"]').focus()")
            await page.press("Enter")
            await page.until(f"document.getElementById('approve-{PLAN}')")
            await page.value(f"document.getElementById('approve-{PLAN}').focus()")
            await page.press("Enter")
            await page.until(
                f"document.querySelector('tr[data-plan=\"{PLAN}\"]')?.textContent.includes('by grace')"
                f" && !document.getElementById('approve-{PLAN}')"
            )
            is_well(page, scene.page.url)

    asyncio.run(approve())
    (approved,) = scene.job.facts("plan.approved")
    assert (approved["plan"], approved["by"]) == (PLAN, "grace")
