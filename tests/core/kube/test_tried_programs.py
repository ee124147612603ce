"""Which question a trial of a program answers: those asked while it was under way share its answer, and no one asks for an hour."""

from __future__ import annotations

from rover_bus.events.programs import ProgramReply
from rover_bus.kube.trials import Tried

STARTS = ProgramReply(state="starts")
UNKNOWN = ProgramReply(state="unknown", problem="no answer within 40 s")


def try_now(tried: Tried, reply: ProgramReply) -> None:
    tried.take(tried.begin(), reply)


def test_all_that_ask_while_it_is_tried_have_the_answer_also_where_it_came_to_no_end() -> None:
    """A hundred nodes ask for the same program, and its pod never ends: each made a pod of its own, one after the other."""
    tried = Tried()
    number = tried.begin()
    floors = [tried.floor(anew=False) for _ in range(100)]
    tried.take(number, UNKNOWN)
    assert [tried.answer_after(each, anew=False) for each in floors] == [UNKNOWN] * 100


def test_what_came_to_no_end_is_no_answer_to_a_later_question() -> None:
    tried = Tried()
    try_now(tried, UNKNOWN)
    floor = tried.floor(anew=False)
    assert tried.answer_after(floor, anew=False) is None
    try_now(tried, STARTS)
    assert tried.answer_after(floor, anew=False) == STARTS


def test_an_answer_is_remembered_until_it_is_asked_anew() -> None:
    tried = Tried()
    try_now(tried, STARTS)
    assert tried.answer_after(tried.floor(anew=False), anew=False) == STARTS
    assert tried.answer_after(tried.floor(anew=True), anew=True) is None
    try_now(tried, UNKNOWN)
    assert tried.answer_after(tried.floor(anew=False), anew=False) == STARTS


def test_a_try_that_was_under_way_is_no_answer_to_a_question_asked_anew() -> None:
    tried = Tried()
    number = tried.begin()
    floor = tried.floor(anew=True)
    tried.take(number, STARTS)
    assert tried.answer_after(floor, anew=True) is None
    try_now(tried, STARTS)
    assert tried.answer_after(floor, anew=True) == STARTS
