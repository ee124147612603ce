"""Spans that a real stack sends to a collector: one trace joins the Brain's plan, the daemon's start and the master's admission."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from collector import Collector, collecting, environment, never_answering
from outside import living
from patience import until
from small_job import SmallJob

from rover_bus.cli.stack import RunningStack
from rover_bus.client.programs import find_example

HELD = """
import os, runpy, sys, time
while os.path.exists({held!r}):
    time.sleep(0.05)
sys.path.insert(0, os.path.dirname({inner!r}))
runpy.run_path({inner!r}, run_name="__main__")
"""
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "100"}


def small_job(tmp_path: Path, stack: RunningStack, **more: object) -> SmallJob:
    known = {
        "folder": tmp_path,
        "home": stack.home.root,
        "rows": 640,
        "epochs": 1,
        "workers": 2,
        "servers": 1,
    }
    return SmallJob(**{**known, "checkpoint": f'path = "{tmp_path / "stored"}"', **more})  # type: ignore[arg-type]


def test_one_trace_joins_a_plan_the_start_of_its_members_and_their_first_commits(tmp_path: Path) -> None:
    with (
        collecting() as collector,
        environment(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, **SOON),
        RunningStack(tmp_path / "state", disposable=True) as stack,
    ):
        job = small_job(tmp_path, stack)
        job.submit()
        plan = collector.wait_for("plan", job="ads", plan=1)
        for worker in ("worker-0.1", "worker-1.1"):
            for name in ("member.process", "member.admission", "member.first_commit"):
                assert collector.wait_for(name, member=worker).trace == plan.trace
        applied = collector.wait_for("plan.apply", plan=1)
        change = next(each for each in collector.named("members.change") if each.trace == plan.trace)
        job.complete()
        assert plan.parent == ""
        assert (plan.service, applied.service) == ("rover-brain", "rover-master")
        assert applied.parent == plan.id
        assert change.parent == applied.id
        process = collector.wait_for("member.process", member="worker-0.1")
        assert (process.service, process.parent) == ("rover-daemon", change.id)
        assert plan.start_ns <= applied.start_ns <= applied.end_ns <= plan.end_ns
        collector.wait_for("brain.round")


def test_no_span_is_made_twice_by_services_that_replay_and_a_successor_ends_what_another_began(
    tmp_path: Path,
) -> None:
    """A plan whose worker cannot start yet stays open while the Brain and the master that began its spans are killed."""
    held = tmp_path / "held"
    held.touch()
    slow = tmp_path / "slow.py"
    slow.write_text(HELD.format(held=str(held), inner=str(find_example("dlrm/train.py"))))
    with (
        collecting() as collector,
        environment(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, **SOON),
        RunningStack(tmp_path / "state", disposable=True) as stack,
    ):
        job = small_job(tmp_path, stack, inner=slow, spares=0)
        job.submit()
        job.until(lambda: job.facts("plan.applied"), "a plan under way")
        job.until(lambda: living(job.home, job.name, "worker"), "workers that wait")
        brain = stack.services["brain"].pid
        assert brain is not None
        os.kill(brain, signal.SIGKILL)
        led = {each["holder"] for each in job.facts("master.elected")}
        for row in living(job.home, job.name, "master"):
            if f"master-{row['index']}.{row['incarnation']}" in led:
                os.kill(row["pid"], signal.SIGKILL)
        job.until(lambda: len(job.facts("master.elected")) > 1, "another master")
        assert not collector.named("plan", job="ads")
        assert not collector.named("plan.apply", job="ads")
        held.unlink()
        plan = collector.wait_for("plan", job="ads", plan=1)
        applied = collector.wait_for("plan.apply", plan=1)
        for name in ("member.process", "member.admission", "member.first_commit"):
            assert collector.wait_for(name, member="worker-0.1").trace == plan.trace
        job.complete()
    assert applied.parent == plan.id
    assert twice(collector) == []


def twice(collector: Collector) -> list[str]:
    counted = Counter((each.trace, each.id) for each in collector.spans)
    return [each.name for each in collector.spans if counted[each.trace, each.id] > 1]


def test_a_collector_that_does_not_answer_costs_spans_and_a_line_and_nothing_else(tmp_path: Path) -> None:
    with (
        never_answering() as endpoint,
        environment(OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_TIMEOUT="1", **SOON),
        RunningStack(tmp_path / "state") as stack,
    ):
        job = small_job(tmp_path, stack)
        job.submit()
        job.until(lambda: job.facts("member.admitted"), "members")
        until(lambda: lines(stack, "brain"), "a line")
        job.complete()
        time.sleep(3)  # batches that came after are lost too, and say nothing
        assert (len(lines(stack, "brain")), len(lines(stack, "daemon"))) == (1, 1)


def lines(stack: RunningStack, role: str) -> list[str]:
    text = (stack.home.services / f"{role}.log").read_text()
    return [line for line in text.splitlines() if "spans" in line or "opentelemetry" in line.lower()]


@pytest.mark.parametrize("on", [False, True])
def test_services_load_opentelemetry_where_traces_are_on_and_nowhere_else(tmp_path: Path, on: bool) -> None:
    """Python itself says what each service loads, masters and servers included: they inherit the variable from their daemon."""
    with collecting() as collector:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url} if on else {}
        with (
            environment(PYTHONPROFILEIMPORTTIME="1", **variables),
            RunningStack(tmp_path / "state") as stack,
        ):
            job = small_job(tmp_path, stack)
            job.submit()
            job.until(lambda: job.facts("member.admitted"), "members")
            job.complete()
            logs = [*stack.home.services.glob("*.log"), *stack.home.root.rglob("logs/**/master*")]
            loaded = {log.name.split("-")[0].split(".")[0]: log.read_text() for log in logs if log.is_file()}
    assert all("import time:" in text for role, text in loaded.items() if role != "broker"), loaded.keys()
    assert {"brain", "daemon", "master"} <= loaded.keys()
    assert {role for role, text in loaded.items() if "opentelemetry" in text} == (
        {"brain", "daemon", "master"} if on else set()
    )
