"""The Brain fits each job with the form of its training: two jobs with the same samples differ by it where none was measured."""

from __future__ import annotations

import numpy as np
from brain_states import cluster, runs, size

from rover_bus.brain.models.forms import ALL_REDUCE, ASYNCHRONOUS, SYNCHRONOUS
from rover_bus.brain.models.samples import Configurations, NotEnough
from rover_bus.brain.predicting import form_of
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import KnownJob, TriedSize
from rover_bus.events.job import RoleSpec

MEASURED = (1, 2, 4, 6)


def synchronous(workers: int) -> float:
    """Samples a second of a step whose compute is split over the workers, with a barrier."""
    return 1000 / (0.9 / workers + 0.02 + 0.01 * workers)


def job(name: str, training: str) -> KnownJob:
    known = runs(name, size(6))
    data = known.spec.data.replace(train=name)  # a family of its own
    known.spec = known.spec.replace(workers=known.spec.workers.replace(training=training), data=data)
    known.tried = [TriedSize(size=size(w), weight=3.0, mean=synchronous(w)) for w in MEASURED]
    return known


def test_a_synchronous_job_is_predicted_by_the_form_of_synchronous_steps() -> None:
    jobs = [job("sync", "synchronous"), job("async", "asynchronous")]
    assert [form_of(each.spec) for each in jobs] == [SYNCHRONOUS, ASYNCHRONOUS]
    standing = StandingModels(cluster(*jobs, cores=64.0))
    said = []
    for each in jobs:
        model = standing.of(each)
        assert not isinstance(model, NotEnough)
        held = each.charge(size(12)).configuration(each.spec.data.batch_size)
        said.append(float(model.predict(Configurations.from_list([held])).throughput[0]))
    wrong = [abs(np.log(each / synchronous(12))) for each in said]
    assert wrong[0] < 0.12
    assert wrong[1] > 0.2


def test_a_job_without_servers_is_a_ring() -> None:
    spec = job("ring", "synchronous").spec.replace(servers=RoleSpec(max_count=0))
    assert form_of(spec) is ALL_REDUCE
