"""`rover up` ends on a signal whichever thread receives it."""

from __future__ import annotations

import signal
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

from rover_bus.cli.commands.up import StackEnding


def test_a_signal_that_another_thread_receives_ends_the_stack() -> None:
    stack: Any = SimpleNamespace(kill_members=lambda: None, turned_away="")
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    ending, over, missed = StackEnding(cast(Any, stack)), threading.Event(), list[str]()

    def receive() -> None:
        time.sleep(0.2)  # the main thread waits by now: a busy machine only makes the test easier
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        if not over.wait(20.0):
            missed.append("the main thread still waits")
            ending.told.set()

    thread = threading.Thread(target=receive)
    try:
        ending.listen()
        thread.start()
        ending.wait()
    finally:
        over.set()
        for number, handler in former.items():
            signal.signal(number, handler)
        thread.join()
    assert not missed
    assert ending.number == signal.SIGTERM


def test_a_host_that_its_broker_turned_away_waits_for_no_signal() -> None:
    StackEnding(cast(Any, SimpleNamespace(turned_away="the broker refuses the secret"))).wait()
