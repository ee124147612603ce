"""The page in a headless Chromium: its figures are the API's, a plan is approved by keyboard, what happens is seen at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from browser import NEEDED, Tab, browser, tab
from waiting_plan import PLAN, Scene, waiting_plan

from rover_bus.web.static_files import FILES

pytestmark = [pytest.mark.broker, NEEDED]
PHONE = 375
SEEN_S = 1.0
MOST_BYTES = 150_000


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
        assert "http:" not in text, name
        assert "https:" not in text, name
        assert "innerHTML" not in text, name


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
            assert await page.value("document.querySelectorAll('#members tbody tr').length") >= 2
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
