"""A model stands until what it was fitted to has moved."""

from __future__ import annotations

import msgspec
import pytest

from rover_bus.brain import standing_models
from rover_bus.brain.models.samples import NotEnough
from rover_bus.brain.predicting import OverruledModel, fit_rows
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import KnownJob, TriedSize
from rover_bus.events.facts import Size
from rover_bus.events.job import DataSpec, JobSpec


def measured(workers: int, speed: float) -> TriedSize:
    return TriedSize(Size(workers=workers, servers=1), weight=3.0, mean=speed)


@pytest.fixture
def job() -> KnownJob:
    spec = JobSpec(name="j", program=["train"], data=DataSpec(train="t", batch_size=100))
    rows = [measured(1, 1000.0), measured(2, 1900.0), measured(4, 3400.0), measured(6, 4500.0)]
    return KnownJob("aa", spec, held=rows[-1].size, tried=rows)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each fit."""
    seen = list[int]()

    def counted(job: KnownJob, rows: list[TriedSize]) -> object:
        seen.append(len(rows))
        return fit_rows(job, rows)

    monkeypatch.setattr(standing_models, "fit_rows", counted)
    return seen


def model_of(models: StandingModels, job: KnownJob) -> OverruledModel:
    model = models.of(job)
    assert isinstance(model, OverruledModel)
    return model


def test_a_window_that_repeats_what_is_known_costs_no_fit(job: KnownJob, fits: list[int]) -> None:
    models = StandingModels()
    model_of(models, job)
    job.tried[2] = msgspec.structs.replace(job.tried[2], mean=3430.0, weight=3.7)
    again = model_of(models, job)
    assert fits == [4]
    assert again.measured[2][1] == 3430.0  # what was measured is believed as it is now


@pytest.mark.parametrize("what", ["throughput", "input", "use", "size", "charge"])
def test_a_model_is_fitted_again_when_what_it_was_fitted_to_has_moved(
    job: KnownJob, fits: list[int], what: str
) -> None:
    models = StandingModels()
    model_of(models, job)
    replace = msgspec.structs.replace
    if what == "throughput":
        job.tried[0] = replace(job.tried[0], mean=1030.0)
    elif what == "input":
        job.tried[0] = replace(job.tried[0], input_share=0.3)
    elif what == "use":
        job.tried[0] = replace(job.tried[0], worker_cores=0.9)
    elif what == "size":
        job.tried.append(measured(8, 5300.0))
    else:
        job.cores_used["worker"] = 0.4  # no limit: a member is charged what it uses
    model_of(models, job)
    assert len(fits) == 2


def test_slow_drift_is_compared_with_the_fit_and_not_with_the_last_window(
    job: KnownJob, fits: list[int]
) -> None:
    models = StandingModels()
    for step in range(5):
        job.tried[0] = msgspec.structs.replace(job.tried[0], mean=1000.0 * 1.01**step)
        model_of(models, job)
    assert len(fits) == 2


def test_a_job_without_a_window_has_no_model_and_one_that_is_over_is_forgotten(
    job: KnownJob, fits: list[int]
) -> None:
    models = StandingModels()
    assert isinstance(models.of(KnownJob("bb", job.spec)), NotEnough)
    model_of(models, job)
    models.forget(job.uid)
    model_of(models, job)
    assert fits == [4, 4]
