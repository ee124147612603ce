"""Which runs have rights: from a submission to FAREWELL_S after the end, and one run of a job at a time."""

from __future__ import annotations

import math

from rover_bus.auth.vault import RunOfJob
from rover_bus.cli.registrar import FAREWELL_S, Register
from rover_bus.events.facts import JobEnded, JobForgotten, JobSubmitted
from rover_bus.events.job import DataSpec, JobSpec

ONE, TWO = "0000000000a1", "0000000000a2"


def submitted(job: str, uid: str) -> JobSubmitted:
    return JobSubmitted(job=job, uid=uid, spec=JobSpec(name=job, program=["t"], data=DataSpec(train="t")))


def ended(job: str) -> JobEnded:
    return JobEnded(job=job, state="completed")


def test_a_run_has_rights_from_its_submission_until_its_last_words() -> None:
    register = Register()
    assert register.admitted(0.0) == frozenset()
    assert register.next_end_s() == math.inf
    register.take(submitted("ads", ONE), 1.0)
    assert register.admitted(1e6) == {RunOfJob("ads", ONE)}
    register.take(ended("ads"), 2e6)
    assert register.next_end_s() == 2e6 + FAREWELL_S
    assert register.admitted(2e6 + FAREWELL_S - 1) == {RunOfJob("ads", ONE)}
    assert register.admitted(2e6 + FAREWELL_S) == frozenset()
    assert register.next_end_s() == math.inf


def test_what_ended_before_the_registrar_came_gets_no_rights_again() -> None:
    register = Register()
    register.take(submitted("old", ONE), -900.0)
    register.take(ended("old"), -800.0)
    assert register.admitted(0.0) == frozenset()


def test_a_name_that_is_used_again_is_another_run() -> None:
    register = Register()
    for fact in (
        submitted("ads", ONE),
        ended("ads"),
        JobForgotten(job="ads", uid=ONE),
        submitted("ads", TWO),
    ):
        register.take(fact, 1.0)
    assert register.admitted(1e6) == {RunOfJob("ads", TWO)}


def test_a_second_submission_takes_the_rights_of_no_running_job() -> None:
    register = Register()
    register.take(submitted("ads", ONE), 1.0)
    register.take(submitted("ads", TWO), 2.0)
    assert register.admitted(3.0) == {RunOfJob("ads", ONE)}


def test_the_end_of_an_unknown_job_is_nothing_to_remember() -> None:
    register = Register()
    register.take(ended("ads"), 1.0)
    assert register.next_end_s() == math.inf
