"""`rover freeze`, against a stack: windows are set, listed, obeyed by the next Brain, and lifted."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from outside import rover
from patience import until

from rover_bus.cli.stack import RunningStack

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    with RunningStack(tmp_path_factory.mktemp("freezes") / "state") as running:
        yield running


def freezes(home: Path) -> list[dict[str, str]]:
    done = rover("freeze", "list", "-o", "json", home=home)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, str]] = json.loads(done.stdout)
    return rows


def test_a_window_is_set_holds_for_the_next_brain_and_is_lifted(stack: RunningStack) -> None:
    home = stack.home.root
    assert freezes(home) == []
    done = rover("freeze", "set", "sale", "--for", "2h", "--reason", "the sale", home=home)
    assert done.stdout.startswith("sale: no running job is changed from "), done.stderr
    later = ("freeze", "set", "nights", "--from", "2099-01-01T20:00+02:00", "--for", "10h", "--every", "day")
    assert (
        "from 2099-01-01 18:00 UTC to 2099-01-02 04:00 UTC, again every day"
        in rover(*later, home=home).stdout
    )
    until(
        lambda: (
            {each["freeze"]: each["state"] for each in freezes(home)} == {"sale": "holds", "nights": "waits"}
        ),
        "the freeze",
    )
    os.kill(stack.pids()["brain"], signal.SIGKILL)
    assert rover("freeze", "lift", "nights", home=home).returncode == 0
    until(lambda: [each["freeze"] for each in freezes(home)] == ["sale"], "the next Brain")
    [sale] = freezes(home)
    assert (sale["state"], sale["reason"], sale["every"]) == ("holds", "the sale", "")
    assert rover("freeze", "lift", "sale", "--reason", "cancelled", home=home).returncode == 0
    until(lambda: freezes(home) == [], "the end of the freeze")
    told = [line for line in rover("events", home=home).stdout.splitlines() if "freeze" in line]
    assert any("freezes all jobs from" in line and "('sale'): the sale" in line for line in told)
    assert any("lifts the freeze 'sale': cancelled" in line for line in told)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("set", "x"), "say how long it holds"),
        (("set", "x", "--for", "1h", "--until", "2099-01-01"), "say how long it holds"),
        (("set", "x", "--from", "tomorrow", "--for", "1h"), "--from 'tomorrow' is no time"),
        (("set", "x", "--from", "2099-01-02", "--until", "2099-01-01"), "before it begins"),
        (("set", "x", "--from", "2020-01-01", "--for", "1h"), "it is over since 2020-01-01T01:00Z"),
        (("set", "x", "--for", "1d", "--every", "day"), "would never end"),
        (("set", "x", "--for", "soon"), "--for"),
        (("set", "x", "--for", "1h", "--of", "absent"), "there is no tenant 'absent': the stack has default"),
        (("lift", "x"), "there is no freeze 'x'"),
    ],
)
def test_a_window_that_is_none_is_refused_in_one_line(
    stack: RunningStack, words: tuple[str, ...], says: str
) -> None:
    done = rover("freeze", *words, home=stack.home.root)
    assert done.returncode == 2
    assert says in done.stderr
    assert freezes(stack.home.root) == []
