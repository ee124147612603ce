"""Who has a state directory: a stack, or for a moment a command that reads what one left."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from rover_bus.cli import home as homes
from rover_bus.cli.home import A_READER, Home, NoStack, StackRecord
from rover_bus.events.errors import Refused


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "state")
    home.create()
    return home


def left_by(home: Home, pid: int) -> None:
    home.write_record(StackRecord(url="nats://127.0.0.1:1", pid=pid, host="one", secret_file=""))


def test_a_stack_waits_for_a_command_that_reads_what_the_last_one_left(home: Home) -> None:
    left_by(home, 2**22 + 1)  # killed: its record stays
    reading = home.hold(A_READER)
    timer = threading.Timer(0.3, os.close, [reading])
    timer.start()
    os.close(home.hold())
    timer.join()


def test_a_command_that_reads_is_no_stack_whatever_record_a_killed_one_left(home: Home) -> None:
    left_by(home, os.getpid())
    lock = home.hold(A_READER)
    assert not home.is_held()
    with pytest.raises(NoStack):
        home.read_record()
    os.close(lock)
    lock = home.hold()
    assert home.read_record().host == "one"
    os.close(lock)


def test_what_has_it_for_too_long_is_named(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes, "PATIENCE_S", 0.1)
    lock = home.hold(A_READER)
    with pytest.raises(Refused, match=f"process {os.getpid()} reads what a stack left"):
        home.hold()
    os.close(lock)


def test_a_stack_that_runs_is_not_waited_for(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes, "PATIENCE_S", float("inf"))
    lock = home.hold()
    left_by(home, os.getpid())
    with pytest.raises(Refused, match="a stack runs in"):
        home.hold()
    os.close(lock)


def test_a_lock_of_a_former_release_says_nothing_and_is_a_stacks(home: Home) -> None:
    lock = home.hold(A_READER)
    os.ftruncate(lock, 0)
    assert home.is_held()
    os.close(lock)


def test_asking_whether_a_stack_runs_keeps_none_from_starting(home: Home) -> None:
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            home.is_held()

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for each in askers:
        each.start()
    try:
        for _ in range(50):
            os.close(home.hold())
    finally:
        over.set()
        for each in askers:
            each.join()
