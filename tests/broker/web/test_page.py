"""The page of a real stack: what it says is what commands say, words on plans bear their author, events come once over restarts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from all_rights import connect
from outside import rover
from patience import until
from prometheus_client.parser import text_string_to_metric_families
from waiting_plan import PLAN, Scene, waiting_plan

from rover_bus.cli.page import ShownStack

pytestmark = pytest.mark.broker
ROLES = ("worker", "ps")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with waiting_plan(tmp_path_factory.mktemp("page")) as there:
        yield there


def test_a_word_needs_a_token_that_may_act_from_our_own_page_and_is_logged_in_its_name(scene: Scene) -> None:
    page, path = scene.page, f"/api/v1/jobs/{scene.job.name}/plans/{PLAN}/approve"
    act, look = page.token("ada"), page.token("eve", "--look")
    assert page.ask(path, {}).status == 401
    assert page.ask(path, {}, Authorization=f"Bearer {look}").status == 403
    assert page.ask(path, {}, Authorization=f"Bearer {act}", Origin="http://evil.example").status == 403
    assert page.ask(path, {}, Authorization=f"Bearer {act}", Content_Type="text/plain").status == 415
    assert page.ask(path, {"why": 1}, Authorization=f"Bearer {act}").status == 400
    assert scene.job.facts("plan.approved") == []
    said = page.ask(path, {"reason": "it fits"}, Authorization=f"Bearer {act}")
    assert (said.status, said.json["by"]) == (200, "ada")
    (approved,) = scene.job.facts("plan.approved")
    assert (approved["by"], approved["reason"]) == ("ada", "it fits")
    applied = scene.job.facts("plan.applied")[-1]
    assert (applied["plan"], applied["approved_by"]) == (PLAN, "ada")
    again = page.ask(path, {}, Authorization=f"Bearer {act}")
    assert (again.status, again.json["code"]) == (409, "none_waits")


def test_what_it_says_of_a_job_is_what_commands_say(scene: Scene) -> None:
    page, name = scene.page, scene.job.name
    until(lambda: page.ask(f"/api/v1/jobs/{name}").json["state"] == "training", "training")

    def command(*words: str):
        done = scene.job.rover(*words, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    keys = ("job", "uid", "state", "total", "workers", "leader", "term")

    def agree(of_page: Callable[[], Any], of_command: Callable[[], Any]) -> None:
        """The job goes on between two questions: they agree as soon as nothing happens in between."""
        until(lambda: of_page() == of_command(), "the same", more=lambda: (of_page(), of_command()))

    # Warm spares, which `rover members` lists below the members, are no members: they come and go while the job trains.
    def process(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["role"], row["index"], row["pid"]

    def picked(row: dict[str, Any]) -> dict[str, Any]:
        return {key: row[key] for key in keys}

    agree(lambda: picked(page.ask(f"/api/v1/jobs/{name}").json), lambda: picked(command("jobs")[0]))
    agree(
        lambda: sorted(map(process, page.ask(f"/api/v1/jobs/{name}/members").json)),
        lambda: sorted(process(row) for row in command("members", name) if row["role"] != "spare"),
    )
    plans = page.ask(f"/api/v1/jobs/{name}/plans").json
    assert [each["plan"] for each in plans] == [each["plan"] for each in command("plan", "list", name)]
    assert page.ask(f"/api/v1/jobs/{name}/explanation").json["plan"] == command("explain", name)["plan"]
    events = page.ask("/api/v1/events?count=1000").json
    lines = scene.job.rover("events", "--json").stdout.splitlines()
    known = {each["id"]: each["body"] for each in map(json.loads, lines)}
    assert events
    assert all(known[each["id"]] == each["body"] for each in events if each["id"] in known)
    applied = next(each for each in events if each["kind"] == "plan.applied")
    story = page.ask(f"/api/v1/events/{applied['sequence']}/story").json
    assert story[0]["event"]["kind"] == "job.submitted"


def test_what_happened_before_is_the_same_whether_it_is_at_hand_or_read(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has the newest facts at hand; a picture that keeps three reads all others from the stream."""
    stored = [json.loads(line) for line in scene.job.rover("events", "--json").stdout.splitlines()]
    numbers = [int(each["id"].partition(":")[2]) for each in stored]
    end = numbers[-1] + 1

    async def read() -> dict[str, list[int]]:
        bus = await connect(scene.stack.home.root)
        try:
            shown = ShownStack.on(bus)
            await shown.picture.follow(bus)
            await shown.picture.beyond(numbers[-1] - 1)
            shown.picture.recent = deque(shown.picture.recent, maxlen=3)
            asked = {
                "all": ("", end, 1000),
                "seven": ("", end, 7),
                "job": (scene.job.name, end, 1000),
                "old": ("", 9, 4),
            }
            return {
                name: [each.sequence for each in await shown.past(job, before, count)]
                for name, (job, before, count) in asked.items()
            }
        finally:
            await bus.close()

    monkeypatch.setattr("rover_bus.cli.page.STEP", 5)
    read_there = asyncio.run(read())
    assert read_there["all"] == numbers
    assert read_there["seven"] == numbers[-7:]
    assert read_there["old"] == [each for each in numbers if each < 9][-4:]
    on_job = [
        int(each["id"].partition(":")[2]) for each in stored if f".job.{scene.job.name}." in each["subject"]
    ]
    assert [each for each in read_there["job"] if each < numbers[-3]] == [
        each for each in on_job if each < numbers[-3]
    ]


def test_every_answer_satisfies_the_document_that_describes_it(scene: Scene) -> None:
    page, name = scene.page, scene.job.name
    document = page.ask("/api/v1/openapi.json").json
    for path, methods in document["paths"].items():
        if "get" not in methods or "event-stream" in str(
            methods["get"]["responses"]["200"]["content"].keys()
        ):
            continue
        sequence = page.ask("/api/v1/events?count=1").json[0]["sequence"]
        asked = path.replace("{job}", name).replace("{plan}", "1").replace("{event}", str(sequence))
        said = page.ask(asked)
        assert said.status == 200, (asked, said.body)
        schema = methods["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(said.json, {**schema, "components": document["components"]})
    unknown = page.ask("/api/v1/jobs/nothing")
    assert (unknown.status, unknown.json["code"]) == (404, "bad_input")
    assert page.ask("/api/v1/nothing").status == 404
    assert page.ask("/api/v1/events?count=x").status == 400


def test_no_answer_may_be_framed_or_run_what_is_not_ours_and_a_foreign_host_reads_nothing(
    scene: Scene,
) -> None:
    said = scene.page.ask("/api/v1/cluster")
    assert "default-src 'self'" in said.headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in said.headers["Content-Security-Policy"]
    assert said.headers["X-Content-Type-Options"] == "nosniff"
    assert scene.page.ask("/api/v1/cluster", Host="evil.example").status == 421
    assert scene.page.ask("/metrics", Host="evil.example").status == 421
    assert scene.page.ask("/healthz", Host="evil.example").status == 200


def test_a_scrape_is_what_prometheus_reads_and_commands_say(scene: Scene) -> None:
    def scraped() -> dict[str, Any]:
        said = scene.page.ask("/metrics").body.decode()
        return {family.name: family for family in text_string_to_metric_families(said)}

    def running() -> dict[str, float]:
        samples = scraped()["rover_job_running_members"].samples
        return {role: sum(each.value for each in samples if each.labels["role"] == role) for role in ROLES}

    def listed() -> dict[str, float]:
        rows = json.loads(scene.job.rover("members", scene.job.name, "-o", "json").stdout)
        return {role: float(sum(row["role"] == role and bool(row["pid"]) for row in rows)) for role in ROLES}

    assert scraped()["rover_brain_leads"].samples[0].value == 1
    assert scraped()["rover_facts_refused"].samples[0].value == 0
    until(lambda: running() == listed(), "the same members", more=lambda: (running(), listed()))
    assert min(running().values()) >= 1


def test_events_come_once_and_all_over_restarts_of_the_web_and_of_the_broker(scene: Scene) -> None:
    """The reader comes back with the id of the last event that it has, as browsers do."""
    page, seen = scene.page, list[int]()
    end = page.ask("/api/v1/cluster").json["sequence"]

    def read(until_sequence: int) -> None:
        while not seen or seen[-1] < until_sequence:
            last = seen[-1] if seen else None
            try:
                with page.events("/api/v1/events/stream?after=0", last) as coming:
                    for event in coming:
                        seen.append(event["sequence"])
                        if event["sequence"] >= until_sequence:
                            return
            except OSError:
                time.sleep(0.1)

    read(end)
    former = scene.stack.pids()["web"]
    os.kill(former, signal.SIGKILL)
    until(lambda: scene.stack.pids().get("web", former) != former and page.ready, "another process")
    said = scene.job.rover("plan", "mode", scene.job.name, "observe")
    assert said.returncode == 0, said.stderr
    read(end + 1)
    scene.stack.restart_broker()
    until(lambda: scene.job.rover("plan", "mode", scene.job.name, "auto").returncode == 0, "a word")
    until(lambda: page.ready, "readiness after the broker is back")
    newest = page.ask("/api/v1/cluster").json["sequence"]
    read(newest)
    stored = [
        int(json.loads(line)["id"].partition(":")[2])
        for line in scene.job.rover("events", "--json").stdout.splitlines()
    ]
    assert seen == [each for each in stored if each <= seen[-1]]


def test_a_stack_without_its_page_trains_on_and_the_page_comes_back_at_its_port(scene: Scene) -> None:
    web = scene.stack.services["web"]
    former = scene.stack.pids()["web"]
    os.kill(former, signal.SIGSTOP)
    committed = scene.job.rover("jobs", "-o", "json")
    assert json.loads(committed.stdout)[0]["state"] == "training"
    os.kill(former, signal.SIGKILL)
    until(lambda: web.pid not in (None, former) and scene.page.ready, "the page at its port")


def test_beyond_loopback_there_is_no_http_without_a_token_and_a_certificate(tmp_path: Path) -> None:
    for words in ([], ["--certificate", "x.pem"]):
        done = rover(
            "web", "--url", "nats://127.0.0.1:1", "--listen", "0.0.0.0:0", *words, home=tmp_path, cwd=tmp_path
        )
        assert done.returncode == 2, done.stderr
        assert "HTTP at 0.0.0.0 needs" in done.stderr
