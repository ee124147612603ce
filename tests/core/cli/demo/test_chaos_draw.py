"""Strikes: the same for the same seed, spread over the whole training, enough of each."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest

from rover_bus.cli.demo.chaos import FIRST, LAST, TARGETS, Choice, Target, draw_strikes
from rover_bus.cli.demo.narrator import WHY


@pytest.mark.parametrize("choice", get_args(Choice))
def test_a_seed_draws_the_same_strikes_again(choice: Choice) -> None:
    strikes = draw_strikes(7, choice)
    assert strikes == draw_strikes(7, choice)
    assert strikes == sorted(strikes)
    assert Counter(each.target for each in strikes) == Counter(TARGETS[choice])


def test_all_kills_two_workers_a_leading_master_the_broker_and_a_server() -> None:
    assert Counter(TARGETS["all"]) == {"worker": 2, "master": 1, "broker": 1, "server": 1}


def test_strikes_are_uniform_over_the_training() -> None:
    points = [strike.at for seed in range(500) for strike in draw_strikes(seed, "all")]
    assert FIRST <= min(points) < 0.05
    assert 0.89 < max(points) <= LAST
    tenths = Counter(int((point - FIRST) / (LAST - FIRST) * 10) for point in points)
    assert all(200 < tenths[tenth] < 300 for tenth in range(10))


def test_every_kind_of_strike_has_its_words() -> None:
    assert set(WHY) == set(get_args(Target))
