"""Log lines: text for people, JSON for what collects them, both with the job and the cause that are bound."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rover_bus.cli.log_lines import JsonLines, TextLines, form_of
from rover_bus.events.bus import Stored
from rover_bus.events.codec import encode
from rover_bus.events.errors import InputError
from rover_bus.events.facts import JobStopRequested
from rover_bus.events.intake import Intake
from rover_bus.events.logs import Bound, bound, get_logger
from rover_bus.events.subjects import job_fact


@pytest.fixture
def lines():
    """A logger of a part, and what it wrote in a form."""
    logger, out = logging.getLogger("rover.tested"), io.StringIO()
    handler = logging.StreamHandler(out)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False

    def write(formatter: logging.Formatter) -> str:
        handler.setFormatter(formatter)
        with Bound(job="ads"), Bound(cause="ROVER_FACTS:17"):
            get_logger("rover.tested").warning("a fact waits", waiting=3, why="it's full")
        get_logger("rover.tested").info("goes on")
        return out.getvalue()

    yield write
    logger.removeHandler(handler)


def test_json_lines_have_what_happened_what_belongs_to_it_and_what_is_bound(lines) -> None:
    first, second = map(json.loads, lines(JsonLines("master")).splitlines())
    time = first.pop("time")
    assert time.endswith("Z")
    assert first == {
        "level": "warning",
        "role": "master",
        "part": "rover.tested",
        "event": "a fact waits",
        "job": "ads",
        "cause": "ROVER_FACTS:17",
        "waiting": 3,
        "why": "it's full",
    }
    assert "job" not in second


def test_text_lines_are_for_people_and_have_the_same(lines) -> None:
    first, second = lines(TextLines("master")).splitlines()
    assert first.endswith(
        "master WARNING rover.tested a fact waits waiting=3 why=\"it's full\" job='ads' cause='ROVER_FACTS:17'"
    )
    assert second.endswith("goes on")


def test_an_exception_is_in_the_line_of_its_error(lines) -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonLines("brain"))
    logger = logging.getLogger("rover.other")
    logger.addHandler(handler)
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("it failed")
    logger.removeHandler(handler)
    assert "ValueError: no" in json.loads(out.getvalue())["traceback"]


def test_lines_are_json_in_a_pod_in_a_journal_and_on_demand_and_text_elsewhere() -> None:
    state = os.fstat(2)
    journal = {"JOURNAL_STREAM": f"{state.st_dev}:{state.st_ino}"}
    assert form_of({}, 2) == "text"
    assert form_of({"JOURNAL_STREAM": "1:2"}, 2) == "text"
    assert form_of(journal, 2) == form_of({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, 2) == "json"
    assert form_of({"ROVER_LOG_FORMAT": "text", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, 2) == "text"
    assert form_of({"ROVER_LOG_FORMAT": "json"}, 2) == "json"
    with pytest.raises(InputError):
        form_of({"ROVER_LOG_FORMAT": "xml"}, 2)


def test_a_service_says_in_json_why_it_cannot_start() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rover_bus.cli.serve", "master", "--job", "ads", "--url", ""],
        env={**os.environ, "ROVER_LOG_FORMAT": "json"},
        capture_output=True,
        text=True,
        check=False,
    )
    line = json.loads(done.stderr)
    assert (done.returncode, line["level"], line["role"], line["job"]) == (2, "error", "master", "ads")
    assert "ROVER_URL" in line["event"]


def test_what_a_service_logs_while_it_decides_on_a_fact_names_its_job_and_the_fact() -> None:
    seen = []
    wiring = SimpleNamespace(job="", release="1")
    bus = SimpleNamespace(max_payload_bytes=1 << 20)
    intake = Intake(bus, wiring, SimpleNamespace(failed={}, inputs={}), lambda *_, **__: seen.append(bound()))
    fact = JobStopRequested(job="ads", mode="drain")
    intake.on_fact(Stored(17, job_fact("ads", fact.kind()), encode(fact)))
    assert seen == [{"job": "ads", "cause": "ROVER_FACTS:17"}]
    assert bound() == {}
