"""A model stands until what it was fitted to has moved; a family learns once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from rover_bus.brain import standing_models
from rover_bus.brain.evolution import evolve
from rover_bus.brain.families import MOST_FAMILIES, MOST_SAMPLES, family_of, remember
from rover_bus.brain.log import JobGone
from rover_bus.brain.models.forms import Form
from rover_bus.brain.models.paces import measure_paces
from rover_bus.brain.models.samples import Configuration, Configurations, NotEnough
from rover_bus.brain.predicting import OverruledModel, fit_family
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import BrainState, FamilySample, KnownJob, TriedSize
from rover_bus.events.facts import Size
from rover_bus.events.job import DataSpec, JobSpec

COUNTS = (1, 2, 4, 6)


def speed(workers: int) -> float:
    return 1000.0 * workers / (0.9 + 0.1 * workers)


def run(uid: str, pace: float = 1.0, counts: Sequence[int] = COUNTS, data: str = "t") -> KnownJob:
    spec = JobSpec(name=uid, program=["train"], data=DataSpec(train=data, batch_size=100))
    rows = [TriedSize(Size(workers=w, servers=1), weight=3.0, mean=pace * speed(w)) for w in counts]
    return KnownJob(uid, spec, held=rows[-1].size if rows else None, tried=rows, windows=1)


def cluster(*jobs: KnownJob) -> BrainState:
    return BrainState(jobs={job.uid: job for job in jobs})


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of samples of each fit."""
    seen = list[int]()

    def counted(samples: Sequence[FamilySample], form: Form) -> object:
        seen.append(len(samples))
        return fit_family(samples, form)

    monkeypatch.setattr(standing_models, "fit_family", counted)
    return seen


def model_of(models: StandingModels, job: KnownJob) -> OverruledModel:
    model = models.of(job)
    assert isinstance(model, OverruledModel)
    return model


def at(workers: int) -> Configurations:
    return Configurations.from_list([Configuration(workers, 1, 0.1, 0.1, 100.0)])


def window(job: KnownJob, **tried: float) -> None:
    """A window of the first size that a job tried."""
    job.windows += 1
    job.tried[0] = msgspec.structs.replace(job.tried[0], **tried)


# -- models that stand -------------------------------------------------------------------------------------------------


def test_a_window_that_repeats_what_is_known_costs_no_fit(fits: list[int]) -> None:
    job = run("aa")
    state = cluster(job)
    models = StandingModels(state)
    model_of(models, job)
    window(job, mean=1010.0)
    models.look(state)
    again = model_of(models, job)
    assert fits == [4]
    assert again.measured[0][1] == 1010.0  # what was measured is believed as it is now


@pytest.mark.parametrize("what", ["throughput", "input", "use", "size", "charge"])
def test_a_model_is_fitted_again_when_what_it_was_fitted_to_has_moved(fits: list[int], what: str) -> None:
    job = run("aa")
    state = cluster(job)
    models = StandingModels(state)
    model_of(models, job)
    if what == "throughput":
        window(job, mean=1030.0)
    elif what == "input":
        window(job, input_share=0.3)
    elif what == "use":
        job.tried[0] = msgspec.structs.replace(job.tried[0], size=job.tried[0].size.replace(worker_cores=1.0))
        job.cores_bind = True
        window(job, worker_cores=0.9)
    elif what == "size":
        job.tried.append(TriedSize(Size(workers=8, servers=1), weight=3.0, mean=speed(8)))
        window(job)
    else:
        job.cores_used["worker"] = 0.4  # no limit: a member is charged what it uses
        window(job)
    models.look(state)
    model_of(models, job)
    assert len(fits) == 2


def test_slow_drift_is_compared_with_the_fit_and_not_with_the_last_window(fits: list[int]) -> None:
    job = run("aa")
    state = cluster(job)
    models = StandingModels(state)
    for step in range(5):
        window(job, mean=1000.0 * 1.01**step)
        models.look(state)
        model_of(models, job)
    assert len(fits) == 2


def test_a_job_of_which_nothing_is_known_has_no_model() -> None:
    job = run("aa", counts=())
    assert isinstance(StandingModels(cluster(job)).of(job), NotEnough)


# -- families ----------------------------------------------------------------------------------------------------------


def test_a_job_whose_sizes_tell_nothing_apart_is_measured_at_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many were measured: a job without a model that asked for no other size had none for good."""
    monkeypatch.setattr(standing_models, "fit_family", lambda *_: NotEnough("1 configuration measured", 2))
    job = run("a")
    job.cold = True
    models = StandingModels(cluster(job))
    assert isinstance(models.of(job), NotEnough)
    assert models.wants_samples(job, held_back=False)


def test_runs_beside_one_another_share_one_fit(fits: list[int]) -> None:
    jobs = [run("aa"), run("bb", counts=(2, 8))]
    models = StandingModels(cluster(*jobs))
    for job in jobs:
        model_of(models, job)
    assert fits == [6]


def test_a_run_knows_from_its_first_second_what_its_predecessor_showed() -> None:
    state = cluster(run("aa"))
    evolve(state, JobGone(job="aa", cause="F:1"))
    state.jobs["bb"] = comes = run("bb", counts=())
    said = model_of(StandingModels(state), comes).predict(at(3))
    assert said.throughput[0] == pytest.approx(speed(3), rel=0.02)
    assert said.high_90[0] / said.low_90[0] > 1.15  # runs differ: by some percent until more is known
    stranger = run("cc", counts=(), data="other")
    state.jobs["cc"] = stranger
    assert isinstance(StandingModels(state).of(stranger), NotEnough)


def test_a_run_of_its_own_pace_moves_what_is_said_of_it_and_not_what_is_said_of_others() -> None:
    usual, slow = run("aa"), run("bb", pace=0.8, counts=(2, 4))
    models = StandingModels(cluster(usual, slow))
    assert model_of(models, slow).predict(at(6)).throughput[0] == pytest.approx(0.8 * speed(6), rel=0.04)
    assert model_of(models, usual).predict(at(8)).throughput[0] == pytest.approx(speed(8), rel=0.04)


def test_a_family_keeps_its_newest_samples_and_the_cluster_the_families_that_ended_last() -> None:
    state = cluster()
    for number in range(10):
        remember(state, run(f"{number}"))
    (kept,) = state.families.values()
    assert len(kept) == MOST_SAMPLES
    assert kept[-1].run == "9"
    remember(state, run("empty", counts=(), data="never"))
    for number in range(MOST_FAMILIES):
        remember(state, run("x", data=f"d{number}"))
    assert len(state.families) == MOST_FAMILIES
    assert family_of(run("0").spec) not in state.families


# -- paces -------------------------------------------------------------------------------------------------------------


def test_paces_of_many_runs_are_found_in_noise_and_shrunk_by_it() -> None:
    rng = np.random.default_rng(3)
    true = dict(zip("abcdefgh", rng.normal(0.0, 0.1, 8), strict=True))
    runs = [name for name in true for _ in range(5)]
    residuals = np.array([true[name] for name in runs]) + rng.normal(0.0, 0.05, len(runs))
    paces = measure_paces(runs, residuals)
    assert paces.drift == pytest.approx(0.1, rel=0.4)
    errors = [abs(paces.of(name)[0] - value) for name, value in true.items()]
    assert max(errors) < 0.07
    level = paces.level(runs, np.exp(residuals).tolist())
    assert np.log(level).std() < 0.7 * residuals.std()


def test_one_sample_of_a_run_says_half_of_what_many_would() -> None:
    alone = measure_paces(["a", "b", "b", "b", "b"], np.array([0.1, 0.0, 0.01, -0.01, 0.0]))
    assert 0.03 < alone.of("a")[0] < 0.095
    assert alone.of("a")[1] < alone.of("never seen")[1] == alone.drift
