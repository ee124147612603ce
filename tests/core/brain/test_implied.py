"""What members' use of their cores implies of sizes beside the first: a job grows to them in one change, which is a trial."""

from __future__ import annotations

import numpy as np
import pytest
from life_of_jobs import Life

from rover_bus.brain.choosing import OpenSize, consider
from rover_bus.brain.decisions.plans import Allocation, PlanSpace
from rover_bus.brain.judging import judge
from rover_bus.brain.models.forms import ASYNCHRONOUS, SYNCHRONOUS
from rover_bus.brain.models.implied import ImpliedModel, imply
from rover_bus.brain.models.samples import Configuration, Configurations, NotEnough, Observations
from rover_bus.brain.predicting import fit_family, is_young
from rover_bus.brain.spaces import no_less
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import BrainState, Change, FamilySample, KnownJob, TriedSize
from rover_bus.brain.wishes import _idle_cores
from rover_bus.events.facts import PlanKept, PlanProposed, PlanRolledBack, Size
from rover_bus.events.identity import HostCapacity
from rover_bus.events.job import DataSpec, JobSpec, RoleSpec, WorkersSpec

BATCH = 100.0
BEFORE = Size(workers=2, servers=1, worker_cores=1.0, server_cores=1.0)
LARGER = Size(workers=4, servers=1, worker_cores=4.0, server_cores=2.0)


def sample(
    workers: int = 2,
    worker_use: float = 0.8,
    wait: float = 0.0,
    server_use: float = 0.1,
    *,
    servers: int = 1,
    cores: float = 1.0,
    server_cores: float = 1.0,
    speed: float = 0.0,
) -> FamilySample:
    at = Configuration(workers, servers, cores, server_cores, BATCH)
    return FamilySample("run", at, speed or 1000.0 * workers, wait, worker_use, server_use)


def job(worker_use: float = 0.8, server_use: float = 0.1) -> KnownJob:
    """A cold job that was measured at one size, with room to grow."""
    spec = JobSpec(
        name="j",
        program=["train"],
        data=DataSpec(train="t", batch_size=int(BATCH)),
        workers=WorkersSpec(cores=0.5, max_cores=16.0),
        servers=RoleSpec(cores=0.5, max_cores=16.0, max_count=4),
    )
    row = TriedSize(BEFORE, weight=2.0, mean=2000.0, worker_cores=worker_use, server_cores=server_use)
    return KnownJob(
        "u",
        spec,
        held=BEFORE,
        cold=True,
        plan=1,
        tried=[row],
        recent=[2000.0, 2000.0],
        windows=2,
        clock_s=60.0,
        total=10_000_000,
        server_loads=[{"ps-0": server_use}],
        cores_bind=True,
    )


def grown(known: KnownJob) -> Allocation:
    """What such a job would hold next, alone in a large cluster."""
    state = BrainState(
        timeline=1, hosts={"h": HostCapacity(cores=400, memory_bytes=1 << 40)}, jobs={"j": known}
    )
    models = StandingModels(state)
    considered = consider("j", state, {}, models)
    assert isinstance(considered, OpenSize), considered
    assert considered.young
    front = considered.contender.front
    assert front is not None
    return front.allocations[-1]


@pytest.mark.parametrize("form", [ASYNCHRONOUS, SYNCHRONOUS])
def test_use_says_how_much_of_an_iteration_more_cores_make_shorter(form: object) -> None:
    seen = Observations.of(Configurations.of(2, 1, 1.0, 4.0, BATCH), [1000.0])
    workers, servers, more = imply(seen, ([0.8], [1.0]), [0.0], form).throughput  # type: ignore[arg-type]
    assert workers == pytest.approx(1000 / (1 - 0.8 / 2))
    assert servers == pytest.approx(1000 / (1 - 0.25 / 2))
    assert more == pytest.approx(1000 * 2**0.5), (
        "of more workers no use tells: half of the way to twice the speed"
    )


def test_nothing_is_implied_where_workers_wait_for_input_or_no_use_was_measured() -> None:
    seen = Observations.of(Configurations.of([2, 2], 1, 1.0, 4.0, BATCH), [1000.0, 1000.0])
    assert len(imply(seen, ([0.0, 0.0], [0.0, 0.0]), [0.0, 0.0], ASYNCHRONOUS)) == 0
    assert len(imply(seen, ([0.8, 0.8], [1.0, 1.0]), [0.9, 0.9], ASYNCHRONOUS)) == 0


def test_once_workers_were_varied_only_measurements_say_what_more_of_them_bring() -> None:
    seen = Observations.of(Configurations.of([2, 4], 1, 1.0, 4.0, BATCH), [1000.0, 1100.0])
    rows = imply(seen, ([0.8, 0.4], [0.0, 0.0]), [0.0, 0.0], ASYNCHRONOUS)
    assert rows.configurations.workers.tolist() == [2, 4]
    assert rows.configurations.worker_cores.tolist() == [2.0, 2.0]


def test_a_model_stands_from_the_first_size_on_and_is_the_less_sure_the_further_it_reaches() -> None:
    model = fit_family([sample()])
    assert not isinstance(model, NotEnough)
    assert isinstance(model.common, ImpliedModel)
    said = model.of("run").predict(Configurations.of(2, 1, [1.0, 2.0, 4.0, 8.0], 1.0, BATCH))
    assert np.all(np.diff(said.throughput) > 0)
    assert np.all(np.diff(said.high_90 / said.low_90) > 0)
    assert said.high_90[-1] > 4 * said.throughput[-1]


def test_three_measured_sizes_need_nothing_implied_of_what_they_varied() -> None:
    three = [
        sample(workers, servers=servers, cores=cores, server_cores=cores)
        for workers, servers, cores in ((1, 1, 1.0), (2, 2, 2.0), (4, 2, 1.0))
    ]
    assert is_young(three[:2])
    assert not is_young(three)
    model = fit_family(three)
    assert not isinstance(model, NotEnough)
    assert not isinstance(model.common, ImpliedModel)


def step(workers: int = 1, servers: int = 1, cores: float = 1.0) -> FamilySample:
    """A size of a synchronous job whose step is 50 ms of computing, 10 ms at the servers and 40 ms of waiting for them."""
    seconds = 0.05 / (workers * cores) + 0.01 / servers + 0.04 / servers
    at = Configuration(workers, servers, cores, 1.0, BATCH)
    return FamilySample("run", at, BATCH / seconds, 0.0, 0.05 / workers / seconds, 0.01 / servers / seconds)


def gain(samples: list[FamilySample], **more: float) -> float:
    """What a model says that one worker of one core beside one server would bring with more of something."""
    model = fit_family(samples, SYNCHRONOUS)
    assert not isinstance(model, NotEnough)
    one = {"workers": 1.0, "ps": 1.0, "worker_cores": 1.0, "ps_cores": 1.0, "batch_size": BATCH}
    before, after = (
        model.of("run").predict(Configurations.of(**at)).throughput[0] for at in (one, one | more)
    )
    return float(after / before)


def test_of_an_axis_that_no_size_varied_half_of_the_way_is_still_implied() -> None:
    """A job that was measured at three widths of its one worker looks for a second worker as it did before, and for a server."""
    widths = [step(cores=cores) for cores in (1.0, 2.0, 4.0)]
    assert not is_young(widths)
    assert gain(widths, workers=2.0) == pytest.approx(2**0.5, rel=0.1)
    assert 1.05 < gain(widths, ps=2.0) < gain([*widths, step(servers=2)], ps=2.0), "that was the half of it"


def test_what_is_implied_refutes_no_limit_of_reading_that_was_measured() -> None:
    """Two workers waited for input and more did not; no size varied servers, so that more of them are implied: as if a worker had
    read faster beside these. One worker would read half of what two did, and was taken to be faster than four."""
    seen = [
        sample(2, 0.50, 0.37, 0.30, servers=3, cores=6.0, server_cores=3.0, speed=11598.0),
        sample(4, 0.70, 0.00, 0.55, servers=3, cores=6.0, server_cores=3.0, speed=16480.0),
        sample(4, 0.64, 0.00, 0.49, servers=3, cores=6.0, server_cores=2.0, speed=15630.0),
        sample(4, 0.67, 0.00, 0.53, servers=3, cores=6.0, server_cores=4.0, speed=16119.0),
        sample(3, 0.67, 0.00, 0.54, servers=3, cores=3.0, server_cores=2.0, speed=16912.0),
    ]
    model = fit_family(seen, SYNCHRONOUS)
    assert not isinstance(model, NotEnough)
    assert isinstance(model.common, ImpliedModel)
    said = model.of("run").predict(Configurations.of(1, 3, [2.0, 6.0], [2.0, 4.0], BATCH))
    assert said.throughput == pytest.approx(11598.0 / 2, rel=0.05)


def test_a_cold_job_grows_in_all_that_its_members_use_up_at_once() -> None:
    after = grown(job(worker_use=0.9, server_use=0.6))
    assert after.workers == 2 * BEFORE.workers
    assert after.servers == 2 * BEFORE.servers
    assert after.worker_cores == 4.0
    assert after.server_cores > BEFORE.server_cores


def test_a_cold_job_whose_cores_idle_grows_in_workers_and_hardly_in_cores() -> None:
    idle, busy = (grown(job(worker_use=use, server_use=0.05)) for use in (0.05, 0.9))
    assert idle.workers > BEFORE.workers
    assert idle.servers == BEFORE.servers, "slots are not moved out of curiosity"
    assert idle.worker_cores <= 1.5 < busy.worker_cores


def test_while_little_is_known_no_plan_takes_more_than_idle_cores() -> None:
    space = PlanSpace((1, 2, 4), (1, 2), (0.25, 0.5, 1.0, 2.0), (0.5, 1.0, 2.0))
    known = job(worker_use=0.1, server_use=0.9)
    known.cores_used = {"worker": 0.1, "ps": 0.9}
    assert no_less(space, known) == PlanSpace((2, 4), (1, 2), (0.5, 1.0, 2.0), (1.0, 2.0))
    known.cores_used = {}
    assert no_less(space, known).worker_cores == (1.0, 2.0), (
        "of use that was not measured nothing is known to be idle"
    )
    known.cores_used = {"worker": 0.4, "ps": 0.1}
    assert no_less(space, known).server_cores == (0.5, 1.0, 2.0)
    known.cores_peak = {"worker": 0.45, "ps": 0.95}
    assert no_less(space, known).worker_cores == (0.5, 1.0, 2.0), (
        "busy all of the time with less than half of a core"
    )
    assert no_less(space, known).server_cores == (1.0, 2.0), "a tenth of the time with all of one"


def test_a_smaller_size_that_was_as_fast_may_be_gone_back_to_while_little_is_known() -> None:
    """Workers were doubled on trial, a straggler was replaced meanwhile, and no verdict was spoken on the trial: the job kept twice
    the members for hours, which were slower."""
    space = PlanSpace((1, 2, 4, 8), (1, 2), (0.5, 1.0, 2.0), (1.0,))
    known = job(worker_use=0.9)
    known.cores_used = {"worker": 0.9, "ps": 0.9}
    known.held = BEFORE.replace(workers=4, servers=2, worker_cores=2.0)
    assert no_less(space, known) == PlanSpace((4, 8), (2,), (2.0,), (1.0,)), (
        "of the present size nothing was measured"
    )
    known.tried = [*known.tried, TriedSize(known.held, weight=2.0, mean=1900.0)]
    assert no_less(space, known) == PlanSpace((2, 4, 8), (1, 2), (1.0, 2.0), (1.0,))
    known.tried[-1].mean = 2500.0
    assert no_less(space, known).workers == (4, 8), "it was slower"
    known.tried[-1].mean, known.tried[0].size = 1900.0, BEFORE.replace(worker_cores=4.0)
    assert no_less(space, known).workers == (4, 8), "it had more of something"


def test_idle_cores_are_halved_no_further_than_bursts_use() -> None:
    known = job(worker_use=0.1)
    known.cores_bind, known.cores_used = True, {"worker": 0.1}
    known.spec = known.spec.replace(workers=WorkersSpec(cores=0.25, max_cores=16.0))
    less = _idle_cores(known)
    assert less is not None
    assert less.size.worker_cores == 0.5
    known.cores_peak = {"worker": 0.4}
    assert _idle_cores(known) == less
    known.cores_peak = {"worker": 0.8}
    assert _idle_cores(known) is None, "an eighth of the time it uses more than half of a core"


@pytest.mark.parametrize(("cores", "grows"), [(400.0, True), (3.5, False)])
def test_what_is_not_known_to_pay_takes_free_room_only(cores: float, grows: bool) -> None:
    """Three cores are held by the job, the rest but half a core by another one, which would shrink for a job that is known."""
    known, other = job(worker_use=0.9), job(worker_use=0.9)
    other.held = Size(workers=int(max(cores - 4, 0)) or 1, servers=0, worker_cores=1.0)
    hosts = {"h": HostCapacity(cores=cores + (other.held.workers if cores < 9 else 0), memory_bytes=1 << 40)}
    other.spec = other.spec.replace(name="o", program=["other"])
    state = BrainState(timeline=1, hosts=hosts, jobs={"j": known, **({"o": other} if cores < 9 else {})})
    considered = consider("j", state, {}, StandingModels(state))
    if grows:
        assert isinstance(considered, OpenSize)
        assert considered.contender.front is not None
        assert considered.contender.front.allocations[-1].cores > 3 * BEFORE.workers
    else:
        assert not isinstance(considered, OpenSize) or all(
            each.cores <= cores
            for each in considered.contender.front.allocations  # type: ignore[union-attr]
        )


@pytest.mark.parametrize(
    ("constant", "reached", "kept"),
    [
        ("more_throughput", 2600.0, True),  # far less than was predicted, and well worth its members
        ("more_throughput", 2100.0, False),
        ("more_throughput", 1500.0, False),
        ("probe", 2100.0, True),  # it was to teach, and has
    ],
)
def test_a_trial_is_kept_where_it_brings_something(constant: str, reached: float, kept: bool) -> None:
    known = job()
    known.change = Change(
        plan=2,
        step="probe",
        before=BEFORE,
        after=LARGER,
        predicted=9000.0,
        since_s=0.0,
        base=[2000.0, 2000.0],
        windows=[reached, reached],
        applied=True,
        settled=True,
        constant=constant,
    )
    known.held = LARGER
    said = list(judge("j", known, BrainState(jobs={"j": known})))
    assert any(isinstance(each, PlanKept) for each in said) is kept
    assert any(isinstance(each, PlanRolledBack) for each in said) is not kept


@pytest.mark.parametrize(("low_90", "kept"), [(0.0, False), (2200.0, True)])
def test_growth_is_held_to_the_lower_end_of_a_wide_prediction(low_90: float, kept: bool) -> None:
    known = job()
    known.change = Change(
        plan=2,
        step="scale",
        before=BEFORE,
        after=LARGER,
        predicted=5000.0,
        low_90=low_90,
        since_s=0.0,
        base=[2000.0] * 3,
        windows=[2800.0] * 3,
        applied=True,
        settled=True,
    )
    known.held = LARGER
    said = list(judge("j", known, BrainState(jobs={"j": known})))
    assert any(isinstance(each, PlanKept) for each in said) is kept


def test_a_life_begins_with_trials_and_no_size_is_tried_only_to_learn() -> None:
    life = Life(cores=64.0)
    busy = life.submit("j", lambda w: 1000.0 * w / (0.8 + 0.2 * w), cores=1.0, max_cores=8.0, input_share=0.0)
    busy.needs_cores = 4.0
    life.wait(60)
    plans = list(life.found(PlanProposed))
    assert [plan.step for plan in plans[:2]] == ["start", "probe"]
    assert plans[1].constant == "more_throughput"
    assert (plans[1].workers, plans[1].worker_cores) == (2, 4.0), "both in one change"
    assert "probe" not in {plan.constant for plan in plans}
