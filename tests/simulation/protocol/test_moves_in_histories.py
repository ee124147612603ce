"""S11 to S15 and P2, P3, P8 for slots that move: real masters, sessions, servers; anybody dies; the witness judges.

The product gets through every history; each weaker rule loses samples, or counts them twice.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from rough_delivery import ROUGH_DELIVERY
from seeds import seeds

from rover_bus.node.simulated import SimulatedHost
from rover_bus.ps import core as server_core
from rover_bus.ps import moving
from rover_bus.ps.core import ServerCore
from rover_bus.simulation.history import live
from rover_bus.simulation.plan import Blow, draw
from rover_bus.simulation.rules import Rules

BUSY = replace(
    ROUGH_DELIVERY,
    blows=(
        Blow(1.6, "move_slots", 0.0, 0.5),
        Blow(2.2, "kill_worker", 0.3),
        Blow(3.4, "move_slots", 0.9, 1.0),
        Blow(3.6, "kill_worker", 0.9),
        Blow(4.6, "scale", 0.99),
        Blow(5.4, "kill_worker", 0.5),
        Blow(6.5, "scale", 0.0),
        Blow(7.0, "kill_worker", 0.1),
    ),
)
SEEDS = (5, 6, 7)


def verdicts(rules=None, plan=BUSY):
    return [live(replace(plan, seed=seed), rules=rules or Rules()) for seed in SEEDS]


def breaks(what, rules=None, plan=BUSY):
    """Whether a history of twenty goes wrong in this way: which ones do is a matter of milliseconds: one message moves them."""
    runs = (live(replace(plan, seed=seed), rules=rules or Rules()) for seed in range(5, 25))
    return any(what in wrong for verdict in runs for wrong in verdict.wrong)


def test_s13_s15_servers_change_again_and_again_while_workers_die_and_every_sample_is_applied_once():
    for verdict in verdicts():
        assert verdict.good, verdict.wrong
        assert verdict.summary["moves"] >= 3
        assert verdict.summary["workers_lost"] >= 3


@pytest.mark.parametrize("act", ["kill_leader", "kill_daemon", "restart_broker", "kill_brain"])
def test_moves_go_on_whoever_of_the_control_plane_dies(act):
    blows = tuple(Blow(1.7 + 0.8 * number, act, 0.5, 0.5) for number in range(4))
    plan = replace(BUSY, blows=tuple(sorted((*BUSY.blows, *blows), key=lambda blow: blow.at_s)))
    for verdict in verdicts(plan=plan):
        assert verdict.good, verdict.wrong
        assert verdict.summary["moves"] >= 1


@pytest.mark.parametrize("at_s", [1.7, 2.0, 2.4, 3.6, 5.2, 7.0])
def test_a_server_dies_in_the_middle_of_a_move_and_nothing_is_lost_or_twice(at_s):
    blow = Blow(at_s, "kill_server", 0.7)
    plan = replace(BUSY, blows=tuple(sorted((*BUSY.blows, blow), key=lambda each: each.at_s)))
    for verdict in verdicts(plan=plan):
        assert verdict.good, verdict.wrong


@pytest.mark.parametrize("seed", seeds("ROVER_MOVES", few=10, many=20, first=4000))
def test_servers_change_and_die_in_any_weather(seed):
    plan = draw(seed)
    expected_s = 3.0 + plan.epochs * plan.records / plan.batch_size * plan.batch_s / plan.workers
    blows = (
        Blow(1.0 + 0.1 * expected_s, "scale", seed % 3 / 3, 0.5),
        Blow(1.0 + 0.3 * expected_s, "move_slots", seed % 5 / 5, 0.7),
        Blow(1.0 + seed % 10 / 10 * expected_s, "kill_server", seed % 7 / 7),
    )
    verdict = live(replace(plan, blows=tuple(sorted((*plan.blows, *blows), key=lambda each: each.at_s))))
    assert verdict.good, f"seed {seed}: {verdict.wrong}"


# -- S14 -------------------------------------------------------------------------------------------------------------------


class NeverStarts(SimulatedHost):
    """Every server but the first two hangs before it joins."""

    def __init__(self, run):
        async def run_or_hang(order, leave):
            member = order.incarnation.member
            if member.role == "ps" and member.index > 1:
                await leave.wait()
                return 0
            return await run(order, leave)

        super().__init__(run_or_hang)


def test_s14_a_new_server_that_never_starts_is_given_up_and_training_goes_on():
    heard = []
    plan = replace(BUSY, records=5000, blows=(Blow(2.0, "scale", 0.99),))
    verdict = live(plan, rules=Rules(host=NeverStarts), say=lambda at_s, what: heard.append(what))
    assert verdict.good, verdict.wrong
    assert verdict.summary["moves"] == 0
    assert verdict.summary["rewinds"] == 0


# -- rules switched off ------------------------------------------------------------------------------------------------------


class Warm(ServerCore):
    def decide_push(self, state, fence, batch):
        return super().decide_push(msgspec.structs.replace(state, frozen={}), fence, batch)


class Bare(ServerCore):
    def take_in(self, move, fetched, body, last):
        bare = tuple(msgspec.structs.replace(sets, batches={}) for sets in fetched.applied)
        return super().take_in(move, msgspec.structs.replace(fetched, applied=bare), body, last)


class Deaf(moving.Departure):
    def note(self, family, store, keys, places):
        pass


class Greedy(moving.Departure):
    def check(self, fetch):
        super().check(fetch)
        return True


def test_p3_slots_that_arrive_without_their_applied_sets_count_samples_twice():
    assert breaks("applied twice", Rules(core=Bare))


def test_pushes_taken_during_a_hand_over_are_lost():
    assert breaks("lost", Rules(core=Warm))


def test_without_a_change_log_what_was_pushed_during_the_copy_is_lost(monkeypatch):
    monkeypatch.setattr(server_core, "Departure", Deaf)
    assert breaks("lost")


def test_a_repeated_answer_that_takes_in_new_changes_loses_them(monkeypatch):
    monkeypatch.setattr(server_core, "Departure", Greedy)
    assert breaks("lost", plan=replace(BUSY, double=0.5))
