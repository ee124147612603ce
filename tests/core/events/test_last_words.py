"""The end of what a process wrote: its last lines, and before them the fault that many frames of threads would push out."""

from __future__ import annotations

from pathlib import Path

import pytest

from rover_bus.events.last_words import BYTES, LINES, describe_ending, end_of, read_tail, said_last

FAULT = "Fatal Python error: Bus error"


def frames(threads: int, each: int = 30) -> str:
    lines = ["starting", FAULT, ""]
    for thread in range(threads):
        lines += [
            f"Thread 0x{thread:04x}:",
            *(f'  File "loop.py", line {n} in wait' for n in range(each)),
            "",
        ]
    return "\n".join([*lines, "Extension modules: numpy, uvloop (total: 40)"])


@pytest.mark.parametrize("threads", [1, 2, 5, 20])
def test_a_fault_is_told_however_many_frames_follow(tmp_path: Path, threads: int) -> None:
    log = tmp_path / "member.log"
    log.write_text(frames(threads))
    kept = read_tail(log)
    assert FAULT in kept.splitlines()
    assert len(kept.splitlines()) <= LINES
    assert len(kept.encode()) <= BYTES
    assert kept.splitlines()[-1].startswith("Extension modules")
    assert describe_ending(None, 7, kept) == f"SIGBUS: {FAULT}"


def test_a_fault_among_the_last_lines_is_kept_once() -> None:
    for length in (10, 200):
        text = "\n".join([FAULT, *["é" * length] * 40])
        kept = end_of(text).splitlines()
        assert kept.count(FAULT) == 1
        assert len(end_of(text).encode()) <= BYTES


def test_what_a_former_process_said_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    log = tmp_path / "member.log"
    log.write_text(frames(1))
    begin = log.stat().st_size
    with log.open("a") as file:
        file.write("\nValueError: no such column\n")
    assert read_tail(log, begin=begin) == "ValueError: no such column"


def test_without_a_fault_the_last_line_speaks() -> None:
    assert said_last("one\n two \n\n") == "two"
    assert said_last("") == ""
    assert said_last(frames(3)) == FAULT
