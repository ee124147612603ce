"""A round of many jobs is carried out in several inputs: none is long, what happens between them counts, a successor goes on."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from brain_states import GIB, cluster, runs, size, waits
from brain_totals import assert_totals_agree

from rover_bus.brain import choosing, decider, turns
from rover_bus.brain.decider import A_WINDOW, BrainDecider
from rover_bus.brain.decisions import rounds
from rover_bus.brain.log import RoundAdvanced, RoundBegun, WindowClosed
from rover_bus.brain.state import BrainRuleOff, BrainState
from rover_bus.brain.totals import keep_totals
from rover_bus.events.facts import JobEnded, JobPaused, JobStopRequested, PlanProposed
from rover_bus.events.inputs import Continued, Input, Observed, Ticked, TookOver
from rover_bus.events.log import Record

JOBS = 12


def crowd() -> BrainState:
    """Jobs that are each better off larger, on hosts with room for all of them."""
    jobs = [runs(f"j{at:02}", size(4), host) for at, host in zip(range(JOBS), "abcdefghijkl", strict=True)]
    return cluster(*jobs, cores=16.0, hosts="abcdefghijkl", memory_bytes=256 * GIB)


def brain_of(state: BrainState) -> BrainDecider:
    brain = BrainDecider(1)
    brain.state = state
    keep_totals(state)
    return brain


def pieces(brain: BrainDecider, at_s: float) -> list[list[Record]]:
    """The records of each input of one look."""
    said, unfinished = list[list[Record]](), True
    while unfinished:
        input: Input = Continued() if said else Ticked()
        decision = brain.decide(input, at_s)
        assert_totals_agree(brain.state)
        said.append(list(decision.effects))
        unfinished = decision.unfinished
    return said


def plans(said: list[list[Record]]) -> dict[str, PlanProposed]:
    return {each.job: each for records in said for each in records if isinstance(each, PlanProposed)}


def test_a_round_in_pieces_chooses_what_it_would_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PIECE", 1e9)
    [whole] = pieces(brain_of(crowd()), 0.0)
    assert len(plans([whole])) == JOBS
    assert not any(isinstance(each, RoundBegun | RoundAdvanced) for each in whole), (
        "one input needs no cursor"
    )
    monkeypatch.setattr(turns, "PIECE", 4.0)
    brain = brain_of(crowd())
    parts = pieces(brain, 0.0)
    assert plans(parts) == plans([whole])
    assert max(len(plans([part])) for part in parts) <= 4, "the work of each input is bounded"
    assert brain.state.round_left == []


ONCE_FOR_ALL = {
    "the windows that are due are found": (decider, "A_LOOK"),
    "a round begins": (turns, "LISTED"),
    "all jobs are put beside one another": (choosing, "_GATHERED"),
    "so are their offers": (rounds, "_GATHERED"),
    "decisions are said": (rounds, "_DECIDED"),
    "jobs are answered": (choosing, "_ANSWERED"),
    "answers are put in order": (turns, "ORDERED"),
}


@pytest.mark.parametrize("what", ONCE_FOR_ALL)
def test_what_is_done_once_for_all_jobs_counts_as_work_of_its_input(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It grows with the cluster: where it takes as long as an input may, that input does nothing else."""
    usual = pieces(brain_of(crowd()), 0.0)
    module, name = ONCE_FOR_ALL[what]
    monkeypatch.setattr(module, name, 1e3)
    longer = pieces(brain_of(crowd()), 0.0)
    assert plans(longer) == plans(usual)
    assert len(longer) > len(usual)


def test_a_job_that_ends_while_a_round_is_under_way_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PIECE", 4.0)
    brain = brain_of(crowd())
    said = [list(brain.decide(Ticked(), 0.0).effects)]
    while not brain.state.round_left:
        said.append(list(brain.decide(Continued(), 0.0).effects))
    gone = brain.state.round_left[-1]
    brain.decide(Observed(JobEnded(job=gone, state="completed"), "F:1"), 0.0)
    decision = brain.decide(Continued(), 0.0)
    while decision.unfinished:
        said.append(list(decision.effects))
        decision = brain.decide(Continued(), 0.0)
    said.append(list(decision.effects))
    assert plans(said).keys() == {f"j{at:02}" for at in range(JOBS)} - {gone}


@pytest.mark.parametrize("word", [JobPaused(job="-"), JobStopRequested(job="-", mode="finish")])
def test_what_a_person_says_of_a_job_while_a_round_is_under_way_comes_first(
    word: JobPaused | JobStopRequested, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PIECE", 4.0)
    brain = brain_of(crowd())
    said = [list(brain.decide(Ticked(), 0.0).effects)]
    while not brain.state.round_left:
        said.append(list(brain.decide(Continued(), 0.0).effects))
    named = brain.state.round_left[-1]
    brain.decide(Observed(msgspec.structs.replace(word, job=named), "F:1"), 0.0)
    unfinished = True
    while unfinished:
        decision = brain.decide(Continued(), 0.0)
        said.append(list(decision.effects))
        unfinished = decision.unfinished
    assert named not in plans(said)


def test_a_job_that_waits_and_is_asked_to_end_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PIECE", 4.0)
    monkeypatch.setattr(turns, "MOST_WAITING", 0)  # the round alone begins jobs
    state = cluster(*(waits(f"w{at:02}") for at in range(JOBS)), cores=64.0, hosts="ab")
    state.rules_off["sizes"] = BrainRuleOff(release="")  # then each begins with its least
    brain = brain_of(state)
    said, unfinished = [list(brain.decide(Ticked(), 0.0).effects)], True
    left = [name for name in state.jobs if name not in plans(said)]
    brain.decide(Observed(JobStopRequested(job=left[-1], mode="finish"), "F:1"), 0.0)
    while unfinished:
        decision = brain.decide(Continued(), 0.0)
        said.append(list(decision.effects))
        unfinished = decision.unfinished
    assert left[:-1]
    assert plans(said).keys() == state.jobs.keys() - {left[-1]}


def test_a_successor_goes_on_with_what_a_round_did_not_come_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PIECE", 4.0)
    brain = brain_of(crowd())
    said = [list(brain.decide(Ticked(), 0.0).effects)]
    while not brain.state.round_left:
        said.append(list(brain.decide(Continued(), 0.0).effects))
    left = list(brain.state.round_left)
    assert left
    assert plans(said).keys().isdisjoint(left)
    successor = BrainDecider(2)
    successor.restore(brain.dump())
    successor.decide(TookOver("b", 2), 0.0)
    after = pieces(successor, 1.0)
    assert plans(after).keys() == set(left)
    assert successor.state.round_left == []


def test_many_jobs_that_wait_begin_in_a_round_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PIECE", 4.0)
    state = cluster(*(waits(f"w{at:02}") for at in range(JOBS)), cores=64.0, hosts="ab")
    parts = pieces(brain_of(state), 0.0)
    assert plans(parts).keys() == set(state.jobs)
    assert all(each.step == "start" for each in plans(parts).values())
    assert len([part for part in parts if part]) > 1


def test_windows_that_are_due_together_are_closed_in_pieces_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brain = brain_of(crowd())
    pieces(brain, 0.0)
    monkeypatch.setattr(turns, "PIECE", 4 * A_WINDOW)
    first, *others = pieces(brain, 20.0)
    closed = [[each.job for each in said if isinstance(each, WindowClosed)] for said in (first, *others)]
    assert max(map(len, closed)) == 4, "the work of each input is bounded"
    assert sorted(name for names in closed for name in names) == sorted(brain.state.jobs)


def test_what_happens_between_two_pieces_of_a_look_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    brain = brain_of(crowd())
    pieces(brain, 0.0)
    monkeypatch.setattr(turns, "PIECE", 4 * A_WINDOW)
    said = list(brain.decide(Ticked(), 20.0).effects)
    closed = {each.job for each in said if isinstance(each, WindowClosed)}
    gone = max(brain.state.jobs.keys() - closed)
    brain.decide(Observed(JobEnded(job=gone, state="completed"), "F:1"), 20.0)
    said += [
        each for part in pieces(brain, 21.0) for each in part
    ]  # the next tick comes before the look is over
    counts = Counter(each.job for each in said if isinstance(each, WindowClosed))
    assert counts == dict.fromkeys(brain.state.jobs, 1)
    assert gone not in counts


def test_a_choice_among_many_is_made_in_pieces_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PIECE", 1e9)
    [whole] = pieces(brain_of(crowd()), 0.0)
    brain, choosing = brain_of(crowd()), 0
    monkeypatch.setattr(turns, "PIECE", 0.5)  # five of twelve jobs' offers
    said, unfinished = [list(brain.decide(Ticked(), 0.0).effects)], True
    while unfinished:
        under_way = brain._rounds._open
        choosing += under_way is not None and under_way.choosing is not None and under_way.left is None
        decision = brain.decide(Continued(), 0.0)
        said.append(list(decision.effects))
        unfinished = decision.unfinished
    assert choosing > 2
    assert plans(said) == plans([whole])
