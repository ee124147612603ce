"""0046 in histories: servers come one by one, training begins with the first of them; anybody dies; the witness judges."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rough_delivery import ROUGH_DELIVERY

from rover_bus.events.facts import RolloutOpened
from rover_bus.master.decider import MasterDecider
from rover_bus.simulation.history import live
from rover_bus.simulation.plan import Act, Blow, Plan
from rover_bus.simulation.rules import Rules
from rover_bus.simulation.verdict import Verdict

LATE = replace(
    ROUGH_DELIVERY,
    servers=3,
    late_s=(3.0, 0.0, 6.0),
)
SEEDS = (5, 6, 7)
ROOM = 64 << 10


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[RolloutOpened]:
    """The rollouts by which jobs began early, as their masters logged them."""
    seen = list[RolloutOpened]()
    evolve = MasterDecider.evolve

    def watch(decider: MasterDecider, record: object) -> None:
        evolve(decider, record)  # type: ignore[arg-type]
        if isinstance(record, RolloutOpened) and record.first:
            seen.append(record)

    monkeypatch.setattr(MasterDecider, "evolve", watch)
    return seen


def verdicts(plan: Plan, rules: Rules | None = None) -> list[Verdict]:
    return [live(replace(plan, seed=seed), rules=rules or Rules()) for seed in SEEDS]


def struck(*blows: Blow) -> Plan:
    return replace(LATE, blows=blows)


def test_training_begins_with_the_first_server_and_every_sample_is_applied_once(
    begun: list[RolloutOpened],
) -> None:
    for verdict in verdicts(LATE):
        assert verdict.good, verdict.wrong
        assert verdict.summary["moves"] >= 2
    assert {len(each.joins) for each in begun} == {2}


def test_a_short_job_is_over_before_the_others_are_there() -> None:
    said = list[float]()

    def listen(at_s: float, what: str) -> None:
        if what.startswith("the job is"):
            said.append(at_s)

    assert live(replace(LATE, records=600, late_s=(20.0, 0.0, 20.0)), say=listen).good
    assert said[-1] < 20.0


@pytest.mark.parametrize("at_s", [1.8, 2.5, 3.3, 4.0, 6.4])
def test_the_first_server_dies_and_the_job_begins_again_on_all_of_them(at_s: float) -> None:
    for verdict in verdicts(struck(Blow(at_s, "kill_server", 0.5))):
        assert verdict.good, verdict.wrong


@pytest.mark.parametrize("act", ["kill_leader", "kill_daemon", "restart_broker", "kill_brain", "kill_all"])
def test_whatever_dies_meanwhile_nothing_is_lost_or_twice(act: Act) -> None:
    for verdict in verdicts(struck(*(Blow(1.2 + 1.1 * number, act, 0.5, 0.5) for number in range(4)))):
        assert verdict.good, verdict.wrong


def test_checkpoints_that_are_taken_on_the_first_servers_are_gone_back_to() -> None:
    plan = replace(struck(Blow(4.0, "kill_server", 0.5), Blow(7.0, "kill_server", 0.9)), cut_every_s=0.3)
    for verdict in verdicts(plan):
        assert verdict.good, verdict.wrong


def test_rows_that_find_no_room_on_the_first_server_wait_for_the_others(begun: list[RolloutOpened]) -> None:
    for verdict in verdicts(replace(LATE, room_bytes=1 << 10)):
        assert verdict.good, verdict.wrong
    assert begun
