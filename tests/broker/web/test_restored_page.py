"""What serves HTTP by itself lives through a restore of its stack, and so does an open page: neither shows the erased past."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from all_rights import connect
from asked_page import AskedPage
from browser import NEEDED, browser, tab
from outside import ROVER, rover
from patience import until
from told import told

from rover_bus.cli.stack import RunningStack
from rover_bus.events import facts
from rover_bus.events.job import DataSpec, JobSpec
from rover_bus.events.streams import FACTS

pytestmark = [pytest.mark.broker, NEEDED]
DRAWN = "[...document.querySelectorAll('.events li')].map((line) => line.textContent).join('|')"
BEFORE, ERASED, AFTER = "before", "erased", "after"


@contextmanager
def served(stack: RunningStack) -> Iterator[AskedPage]:
    """Serve HTTP apart from the stack, as on another machine."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    words = ["web", "--url", stack.url, "--secret-file", str(stack.home.auth / "creds" / "web.creds")]
    words += ["--tokens", str(stack.home.page_tokens), "--listen", f"127.0.0.1:{port}"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
    process = subprocess.Popen([*ROVER, *words], env=environment)
    try:
        page = AskedPage(f"http://127.0.0.1:{port}", stack.home.root)
        until(lambda: page.ready, "the page")
        yield page
        assert process.poll() is None, "it serves until it is told to end"
    finally:
        process.terminate()
        process.wait(60)


def submit(home: Path, *jobs: str) -> None:
    async def say() -> None:
        bus = await connect(home)
        try:
            for job in jobs:
                spec = JobSpec(name=job, program=["true"], data=DataSpec(train="t.csv"))
                body, headers = told(facts.JobSubmitted(job=job, uid="0" * 15 + job[0], spec=spec), 1)
                await bus.append(FACTS, f"rover.job.{job}.job.submitted", body, headers=headers)
        finally:
            await bus.close()

    asyncio.run(say())


def jobs_of(page: AskedPage) -> set[str]:
    return {each["job"] for each in page.ask("/api/v1/jobs").json}


def test_a_page_that_lives_through_a_restore_shows_the_restored_stack_alone(tmp_path: Path) -> None:
    home, saved = tmp_path / "state", tmp_path / "saved"
    with browser(tmp_path) as port:
        asyncio.run(look(home, saved, port))


async def look(home: Path, saved: Path, port: int) -> None:
    with RunningStack(home, brain=None) as stack, served(stack) as page:
        await asyncio.to_thread(submit, home, BEFORE)
        assert (await asyncio.to_thread(rover, "backup", str(saved), home=home)).returncode == 0
        await asyncio.to_thread(submit, home, *(f"{ERASED}{number}" for number in range(20)))
        token = page.token("ada")
        async with tab(port, f"{page.url}/") as shown:
            await shown.until(f"{DRAWN}.includes('{ERASED}19')")
            first = page.ask("/api/v1/jobs").headers.get("Rover-Timeline")
            stack.stop()
            assert (await asyncio.to_thread(rover, "restore", str(saved), home=home)).returncode == 0
            with RunningStack(home, brain=None):
                await asyncio.to_thread(
                    until, lambda: page.ready and jobs_of(page) == {BEFORE}, "the restored jobs"
                )
                await asyncio.to_thread(submit, home, AFTER)
                await shown.until(f"{DRAWN}.includes('{AFTER}')")
                assert ERASED not in await shown.value(DRAWN)
                assert jobs_of(page) == {BEFORE, AFTER}
                assert page.ask("/api/v1/jobs").headers["Rover-Timeline"] != first
                path = f"/api/v1/jobs/{BEFORE}/plans/1/approve"
                said = page.ask(path, {}, Authorization=f"Bearer {token}", Rover_Timeline=first)
                assert (said.status, said.json["code"]) == (409, "restored")
