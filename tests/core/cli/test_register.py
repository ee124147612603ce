"""Which runs have rights: from a submission until the grace of its members is over after the end; one run of a job at a time."""

from __future__ import annotations

import math

import pytest

from rover_bus.auth.vault import RunOfJob
from rover_bus.cli.registrar import LAST_WORDS_S, Register
from rover_bus.events.facts import JobEnded, JobForgotten, JobSubmitted
from rover_bus.events.job import DataSpec, JobSpec, RoleSpec, WorkersSpec

ONE, TWO = "0000000000a1", "0000000000a2"


def submitted(
    job: str, uid: str, workers_grace_s: float = 10.0, servers_grace_s: float = 10.0
) -> JobSubmitted:
    spec = JobSpec(
        name=job,
        program=["t"],
        data=DataSpec(train="t"),
        workers=WorkersSpec(grace_s=workers_grace_s),
        servers=RoleSpec(grace_s=servers_grace_s),
    )
    return JobSubmitted(job=job, uid=uid, spec=spec)


def ended(job: str) -> JobEnded:
    return JobEnded(job=job, state="completed")


def test_a_run_has_rights_from_its_submission_until_its_last_words() -> None:
    register = Register()
    assert register.admitted(0.0) == frozenset()
    assert register.next_end_s() == math.inf
    register.take(submitted("ads", ONE), 1.0)
    assert register.admitted(1e6) == {RunOfJob("ads", ONE)}
    register.take(ended("ads"), 2e6)
    last_s = 2e6 + 10.0 + LAST_WORDS_S
    assert register.next_end_s() == last_s
    assert register.admitted(last_s - 1) == {RunOfJob("ads", ONE)}
    assert register.admitted(last_s) == frozenset()
    assert register.next_end_s() == math.inf


@pytest.mark.parametrize(("workers_s", "servers_s"), [(600.0, 10.0), (10.0, 600.0)])
def test_a_member_that_may_take_long_to_leave_keeps_its_rights_so_long(
    workers_s: float, servers_s: float
) -> None:
    """It may have a model to write: without its rights it would end with an error."""
    register = Register()
    register.take(submitted("ads", ONE, workers_s, servers_s), 1.0)
    register.take(ended("ads"), 2.0)
    assert register.admitted(2.0 + 600.0) == {RunOfJob("ads", ONE)}
    assert register.admitted(2.0 + 600.0 + LAST_WORDS_S) == frozenset()


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
