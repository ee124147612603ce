"""Several components digest one cut, and a server takes the slots over: the digests are whole, and nothing stays behind."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rover_bus.flash.digests import SlotDigests, write_digests
from rover_bus.flash.places import digests_path
from rover_bus.flash.pool import SlotPool

TIMES = 1000


def test_two_that_digest_one_cut_do_not_take_each_others_file(tmp_path: Path) -> None:
    slot, made = tmp_path / "ps-0.1.slot", SlotDigests(of=7, arrays={"a": b"12345678"})

    def write() -> None:
        for _ in range(TIMES):
            write_digests(slot, made)

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(write) for _ in range(4)]:
            each.result()
    assert list(tmp_path.iterdir()) == [digests_path(slot)]


def test_digests_are_written_again_when_a_server_removes_what_is_not_finished(tmp_path: Path) -> None:
    slot, made = tmp_path / "ps-0.1.slot", SlotDigests(of=7, arrays={"a": b"12345678"})
    done: list[bool] = []
    written: list[bool] = []

    def take_over() -> None:
        while not done:
            before = len(written)
            SlotPool(tmp_path, "ps-0").adopt()
            while (
                len(written) == before and not done
            ):  # servers do so once in their life: once a writing, here
                time.sleep(0)

    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(take_over)
        try:
            for _ in range(TIMES):
                write_digests(slot, made)
                written.append(True)
        finally:
            done.append(True)
        server.result()
    assert list(tmp_path.iterdir()) == [digests_path(slot)]
