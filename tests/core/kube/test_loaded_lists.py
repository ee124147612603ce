"""What workers say that they had loaded is kept within bounds, whatever they say."""

from __future__ import annotations

import random
import zlib

import pytest

from rover_bus.events.spare_requests import MOST_RECORD_BYTES, pack
from rover_bus.kube import loaded_lists
from rover_bus.kube.loaded_lists import LoadedLists

RUN = "ads", "0000000000a1"
LIST = pack({"start_s": 1.0, "path": [], "modules": []})


def test_a_list_is_kept_until_its_job_is_forgotten() -> None:
    lists = LoadedLists()
    assert lists.put(RUN, LIST)
    assert lists.put(("maps", "0000000000a2"), LIST)
    lists.forget("ads")
    assert lists.get(RUN) == b""
    assert lists.get(("maps", "0000000000a2")) == LIST


@pytest.mark.parametrize(
    "record",
    [b"", b"no list", LIST[:-3], zlib.compress(b" " * (MOST_RECORD_BYTES + 1))],
    ids=["nothing", "other bytes", "cut off", "more than any list"],
)
def test_what_is_no_list_is_not_kept(record: bytes) -> None:
    lists = LoadedLists()
    assert not lists.put(RUN, record)
    assert lists.get(RUN) == b""


def test_all_lists_together_have_a_bound_and_one_that_is_replaced_or_forgotten_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = pack({"noise": random.Random(1).randbytes(3000).hex()})
    monkeypatch.setattr(loaded_lists, "MOST_BYTES", 2 * len(large))
    lists = LoadedLists()
    for job in ("a", "b"):
        assert lists.put((job, "u"), large)
    assert not lists.put(("c", "u"), large)
    assert lists.put(("a", "u"), LIST)
    lists.forget("b")
    assert lists.put(("c", "u"), large)
