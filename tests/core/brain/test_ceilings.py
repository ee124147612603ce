"""Growth that did not pay bounds what is believed of more of the same, and of nothing else."""

from __future__ import annotations

import msgspec
import pytest
from brain_states import cluster, runs, size

from rover_bus.brain.decisions.reasons import Reason
from rover_bus.brain.evolution import evolve
from rover_bus.brain.models.samples import NotEnough
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import Ceiling, Change
from rover_bus.brain.wishes import predicted
from rover_bus.events.facts import PlanRolledBack, Size

HELD, REACHED = size(4), 11_000.0


def believed(grown: Size, *asked: Size) -> list[float]:
    """What is believed of sizes after a job was taken back from one that it had grown to."""
    job = runs("job", HELD)
    state = cluster(job, cores=64.0)
    job.change = Change(
        4, "scale", HELD, grown, predicted=20_000.0, since_s=900.0, applied=True, settled=True
    )
    rolled = PlanRolledBack(
        job="job", plan=4, by_plan=5, constant=Reason.GAIN_TOO_SMALL, before=1.0, after=REACHED, predicted=2e4
    )
    evolve(state, rolled)
    model = StandingModels(state).of(job)
    assert not isinstance(model, NotEnough)
    return [predicted(job, model, each)[0] for each in asked]


def test_cores_that_brought_nothing_say_nothing_of_more_workers() -> None:
    wider, more, both = believed(size(4, cores=1.0), size(4, cores=2.0), size(8), size(8, cores=1.0))
    assert wider <= REACHED
    assert more > 1.3 * REACHED
    assert both > 1.3 * REACHED


@pytest.mark.parametrize("cores", [0.5, 1.0])
def test_workers_that_brought_nothing_bound_as_many_with_any_cores(cores: float) -> None:
    grown = size(6, cores=cores)
    assert max(believed(grown, size(6, cores=0.25), size(8), size(8, cores=2.0))) <= REACHED
    assert believed(grown, size(6, servers=2))[0] > REACHED, "more servers may mend it"


def test_a_log_of_before_says_only_the_size_that_was_taken_back() -> None:
    former = msgspec.msgpack.encode((size(4, cores=1.0), REACHED, 7.0))
    assert msgspec.msgpack.decode(former, type=Ceiling).of_workers
