"""What a seed of `make attack` means: the same history for ever, every act among the first hundreds, damage that damages."""

from __future__ import annotations

import random
from pathlib import Path
from typing import get_args

import pytest
from attack.damage import DAMAGES, hurt
from attack.drawing import SEQUEL_S, SPAN_S, Memory, Process, Room, Storage, Traffic, draw
from attack.judging import EXPLAINED

ALL = {
    *(act for kind in (Process, Memory, Storage, Room, Traffic) for act in get_args(kind)),
    "remove_logs",
    "lose_host",
}


def test_a_seed_is_one_history() -> None:
    assert [draw(seed) for seed in range(50)] == [draw(seed) for seed in range(50)]
    assert len({draw(seed).blows for seed in range(50)}) == 50


def test_every_act_is_drawn_and_strikes_what_is_there() -> None:
    histories = [draw(seed) for seed in range(400)]
    assert {blow.act for history in histories for blow in history.blows} == ALL
    for history in histories:
        times = [blow.at_s for blow in history.blows]
        assert times == sorted(times)
        assert times[-1] <= SPAN_S + SEQUEL_S
        assert all(blow.job < len(history.jobs) and blow.host < history.hosts for blow in history.blows)
        assert history.hosts > 1 or all(blow.act != "lose_host" for blow in history.blows)


def test_only_what_is_drawn_explains_an_end() -> None:
    assert {act for acts in EXPLAINED.values() for act in acts} <= ALL


@pytest.mark.parametrize("kind", sorted(DAMAGES))
@pytest.mark.parametrize("seed", range(20))
def test_damage_changes_a_file(kind: str, seed: int, tmp_path: Path) -> None:
    path, whole = tmp_path / "a.slot", bytes(range(256)) * 8
    path.write_bytes(whole)
    assert hurt(kind, [path], random.Random(seed)) == ["a.slot"]
    assert not path.exists() if kind == "vanish" else path.read_bytes() != whole
