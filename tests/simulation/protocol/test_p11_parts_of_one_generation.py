"""A server that writes its part of the result while the job goes back writes it again: one model is of one generation (P5, P11)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rover_bus.events.memory_links import Faults
from rover_bus.simulation.history import live
from rover_bus.simulation.plan import Blow, Plan
from rover_bus.simulation.rules import Rules
from rover_bus.simulation.tables import SimulatedTables

SHORT = Plan(
    seed=1,
    records=80,
    batch_size=4,
    epochs=1,
    workers=1,
    servers=2,
    batch_s=0.1,
    target_s=0.5,
    faults=Faults(),
    drop=0.0,
    double=0.0,
    delay_s=0.001,
    in_flight=1,
    cut_every_s=0.6,
)


def lived(writing_s, blow):
    """Live a history in which parts take so long to write until the job has gone back; return its verdict and what was said."""
    said = []

    class SlowTables(SimulatedTables):
        def write(self, core, path):
            size = super().write(core, path)
            self._busy_s = writing_s if core.state.generation == 0 else 0.0
            return size

    verdict = live(
        replace(SHORT, blows=(blow,)),
        say=lambda at_s, what: said.append(f"{at_s:.2f} {what}"),
        rules=Rules(tables=SlowTables),
    )
    return verdict, said


def test_a_part_that_was_said_to_be_written_and_is_not_there_is_lost():
    class ForgetfulTables(SimulatedTables):
        def write(self, core, path):
            size = super().write(core, path)
            if core.state.index == 0:
                del self._parts[str(path)]
            return size

    verdict = live(SHORT, rules=Rules(tables=ForgetfulTables))
    [wrong] = verdict.wrong
    assert "samples lost" in wrong


@pytest.mark.parametrize(("writing_s", "killed_s"), [(2.0, 3.5), (30.0, 3.1), (30.0, 13.0), (30.0, 28.0)])
def test_a_part_that_was_in_writing_when_the_job_went_back_is_written_again(writing_s, killed_s):
    """The data end at 2.9 s; one of two servers is killed while both write, and the other is neither lost nor believed."""
    verdict, said = lived(writing_s, Blow(killed_s, "kill_server", 0.0))
    assert verdict.good, (verdict.wrong, said)
    assert verdict.summary["rewinds"] == 1, said
    assert verdict.summary["servers_lost"] == 1, said
