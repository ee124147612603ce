"""The Brain as a library: what a scheduler tells it, what it answers, and what stood in the way of either."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from brain_states import decide_round
from rings_by_library import devices, ring, run, speed, started

import rover_bus
from rover_bus.brain.decisions.plans import Allocation, PlanSpace
from rover_bus.brain.decisions.probes import ProbeView, decide_probe
from rover_bus.brain.decisions.rounds import NOTHING, Contender
from rover_bus.brain.decisions.scaling import JobView, Limits, PlanFront
from rover_bus.brain.decisions.scoring import ChangeCost, after_change, fair_value, moved_share
from rover_bus.brain.models.forms import ALL_REDUCE, ASYNCHRONOUS
from rover_bus.brain.models.rings import on_hosts, spanned
from rover_bus.brain.models.samples import Configuration, Configurations, Observations
from rover_bus.brain.rules import RULES, rules_for
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import KnownJob
from rover_bus.brain.v1 import Brain, ClusterHost, Measurement, TrainingJob
from rover_bus.events.errors import InputError


def test_a_job_without_servers_begins_is_measured_at_three_sizes_and_grows() -> None:
    brain = started(ring("one"))
    assert brain.placements["one"].workers_by_host == {"h0": 1}
    assert brain.placements["one"].server_hosts == []
    run(brain, 12)
    assert len(brain.placements["one"].worker_hosts) > 3
    assert brain.placements["one"].samples_per_s == pytest.approx(speed(brain.placements["one"]), rel=0.3)


def test_a_scheduler_may_do_without_a_rule() -> None:
    brain = started(ring("one"), without=["sizes"])
    run(brain, 12)
    assert len(brain.placements["one"].worker_hosts) == 1, "no size is chosen, and none is tried"


def test_models_that_know_are_not_taught_by_trying_sizes() -> None:
    class Told(StandingModels):
        def wants_samples(self, job: KnownJob, held_back: bool) -> bool:
            return False

    brain = started(ring("one"), models=Told)
    run(brain, 4)
    assert "probe" not in {placed.reason for placed in brain.placements.values()}
    assert len(brain.placements["one"].worker_hosts) == 1
    run(taught := started(ring("one")), 4)
    assert len(taught.placements["one"].worker_hosts) > 1


def test_no_host_ever_holds_more_than_it_has() -> None:
    brain = started(*(ring(f"j{i}", f"f{i % 2}") for i in range(6)), hosts=2)
    now_s = 0.0
    for _ in range(40):
        now_s = run(brain, 1, now_s)
        held = [host for placed in brain.placements.values() for host in placed.worker_hosts]
        assert max(map(held.count, held)) <= 4
    assert len(held) == 8, "devices are left idle"


def test_a_ring_that_changes_is_packed_anew_on_the_fewest_hosts() -> None:
    brain = started(ring("one"), ring("two", "g"), hosts=2)
    now_s = run(brain, 30)
    brain.end("two", now_s)
    run(brain, 30, now_s)
    workers = brain.placements["one"].workers_by_host
    assert len(workers) == -(-sum(workers.values()) // 4)


def test_one_possible_size_is_offered_on_an_idle_cluster() -> None:
    brain = started(ring("one", workers=4))
    assert len(brain.placements["one"].worker_hosts) == 4
    now_s = run(brain, 10)
    brain.end("one", now_s)
    brain.submit(ring("two", workers=4), now_s)
    assert brain.decide(now_s)["two"].workers_by_host == {"h0": 4}


def test_the_next_run_of_a_family_begins_where_the_former_one_arrived_also_in_another_brain() -> None:
    brain = started(ring("one"))
    now_s = run(brain, 30)
    brain.end("one", now_s)
    later = started(ring("two"), memory=brain.memory())
    assert len(later.placements["two"].worker_hosts) > 3
    assert later.placements["two"].reason == "warm_start"


def test_samples_that_are_counted_too_coarsely_are_refused() -> None:
    brain = started(ring("one"))
    for window in (1, 2):
        brain.observe(Measurement(job="one", seconds=30.0, samples_per_s=0.001), 60.0 * window)
    with pytest.raises(InputError, match="count smaller units"):
        brain.observe(Measurement(job="one", seconds=30.0, samples_per_s=0.001), 180.0)


def test_a_job_that_stands_still_for_a_while_is_no_bad_input() -> None:
    brain = started(ring("one"))
    for window in range(1, 9):
        speed = 0.001 if window % 3 else 500.0  # its first windows are those of its start
        brain.observe(Measurement(job="one", seconds=30.0, samples_per_s=speed), 60.0 * window)
        brain.decide(60.0 * window)


def test_rings_leave_no_device_of_a_cluster_idle() -> None:
    brain = started(ring("one"), hosts=1)
    run(brain, 30)
    assert len(brain.placements["one"].worker_hosts) == 4


def test_an_equal_is_never_paused_for_another() -> None:
    brain, now_s = started(*(ring(f"j{i}") for i in range(10)), hosts=2), 0.0
    for _ in range(20):
        before = {name for name, placed in brain.placements.items() if placed.worker_hosts}
        now_s = run(brain, 1, now_s)
        assert before <= {name for name, placed in brain.placements.items() if placed.worker_hosts}
    assert len(before) == 8


def test_numbers_of_numpy_are_numbers() -> None:
    brain = Brain(fair_share=float(np.float32(-1.0)))
    brain.set_hosts({"h0": ClusterHost(cores=np.int64(4))}, np.float64(0.0))
    brain.submit(TrainingJob(name="one", batch_size=np.int64(8), max_workers=np.int32(4)), np.int64(0))
    assert brain.decide(np.int64(0))["one"].worker_hosts == ["h0"]
    for window in range(1, 5):
        sample = Measurement(
            job="one",
            seconds=np.float32(30),
            samples_per_s=np.int64(5),
            input_share=np.float64(0.5),
            worker_cores_used=np.float64(0.5),
            server_memory_bytes=np.float32(2e9 / 3),
        )
        brain.observe(sample, np.int64(60 * window))
    brain.end("one", np.float64(300.0))
    Brain(memory=brain.memory())
    assert type(Allocation(workers=np.int64(3), servers=0).workers) is int


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda brain: brain.submit(ring("one"), 0.0), "submitted already"),
        (lambda brain: brain.end("two", 0.0), "'two' is not submitted, or ended"),
        (lambda brain: brain.decide(-1.0), "time does not go back"),
        (lambda brain: Brain(fair_share=1.0), "outside -10..0"),
        (lambda brain: Brain(memory=b"x"), "not what Brain.memory"),
    ],
)
def test_what_is_wrong_is_said_at_the_call(wrong, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=said):
        wrong(started(ring("one")))


def test_a_value_outside_its_range_names_its_field() -> None:
    with pytest.raises(ValueError, match="max_workers"):
        TrainingJob(name="one", max_workers=-1)
    with pytest.raises(ValueError, match="samples_per_s"):
        Measurement(job="one", seconds=1.0, samples_per_s="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"max_workers must be a whole number, not 2\.5"):
        TrainingJob(name="one", max_workers=2.5)  # type: ignore[arg-type]


def test_hosts_that_go_take_their_ring_along_and_it_begins_again_on_the_others() -> None:
    brain = started(ring("one", workers=4), hosts=2)
    now_s = run(brain, 5)
    [host] = brain.placements["one"].workers_by_host
    brain.set_hosts({name: each for name, each in devices(2).items() if name != host}, now_s)
    run(brain, 5, now_s)
    assert brain.placements["one"].worker_hosts
    assert host not in brain.placements["one"].worker_hosts


def test_a_stream_that_keeps_up_weighs_as_what_is_not_known() -> None:
    knows, does_not = started(ring("one")), started(ring("one"))
    run(knows, 12, left=0.0)
    run(does_not, 12, left=None)
    assert len(does_not.placements["one"].worker_hosts) > len(knows.placements["one"].worker_hosts)


def test_under_the_fair_share_two_equal_rings_end_with_about_equal_parts() -> None:
    brain = started(ring("one"), ring("two"), hosts=2, fair_share=-1.0)
    run(brain, 40)
    parts = [len(placed.worker_hosts) for placed in brain.placements.values()]
    assert sum(parts) == 8
    assert min(parts) >= 3, "what a move would gain beyond that is less than it costs"


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_a_probe_finds_a_third_size_from_one_worker_and_one_server() -> None:
    seen, held = list[Allocation](), Allocation(workers=1, servers=1)
    space = PlanSpace(tuple(range(1, 9)), (1,), (1.0,), (1.0,))
    for _ in range(3):
        seen.append(held)
        at = Configurations.from_list([each.configuration(512.0) for each in seen])
        view = ProbeView(held=held, anchor=seen[0], batch_size=512.0, free_cores=8.0)
        found = decide_probe(
            view, space, ASYNCHRONOUS, Observations.of(at, [100.0 * s.workers for s in seen])
        )
        held = found.allocation if found is not None else held
    assert {each.workers for each in seen} == {1, 2, 3}


def test_a_ring_spans_the_fewest_hosts_that_hold_it_and_crossing_them_has_a_term() -> None:
    at = Configurations.from_list([Configuration(w, 0) for w in (1, 4, 5, 16)])
    assert spanned(at, 4.0).ps.tolist() == [1, 1, 2, 4]
    assert [on_hosts(one, 4.0).ps for one in at] == [1, 1, 2, 4]
    assert ALL_REDUCE.design(spanned(at, 4.0))[:, -1].tolist() == [0, 0, 1, 1]
    assert np.isfinite(at.logs()).all()


def test_what_changes_took_is_charged_to_the_next_one() -> None:
    assert moved_share(600.0, 0.0, 30.0) == pytest.approx(600 / 630)
    assert moved_share(600.0, 120.0, 30.0) == pytest.approx(480 / 630)
    assert moved_share(60.0, 120.0, 30.0) == 0.0


def offered(taken_s: float) -> Contender:
    held = Allocation(workers=2, servers=0)
    front = PlanFront([held, held.replace(workers=4)], np.array([2.0, 4.0]), np.array([100.0, 150.0]))
    view = JobView(held=held, batch_size=1.0, remaining_samples=float("inf"), measured_throughput=100.0)
    return Contender(view=view, front=front, age_s=300.0, taken_s=taken_s, stops_s=30.0, change_s=30.0)


def test_a_job_that_was_moved_often_is_moved_for_much_only() -> None:
    rested, moved = (
        decide_round([offered(taken)], 8.0, 1.0, PlanSpace(), RULES)[0] for taken in (0.0, 150.0)
    )
    assert (rested.allocation.workers, moved.allocation.workers) == (4, 2)


def test_changes_took_from_a_ring_what_each_takes_and_from_other_jobs_what_their_windows_missed() -> None:
    moved = KnownJob("u", ring("one").spec(), moves=3, lost_s=7.0)
    assert moved.taken_s == 3 * 30.0
    moved.spec = TrainingJob(name="one", max_servers=2).spec()
    assert moved.taken_s == 7.0


def test_what_changes_took_is_charged_to_what_is_left() -> None:
    def left(remaining_s: float, taken_s: float) -> float:
        cost = ChangeCost(change_s=30.0, taken_s=taken_s, age_s=300.0)
        return float(after_change(150.0, 100.0, remaining_s, cost))

    assert left(600.0, 0.0) == pytest.approx(150 * (1 - 30 / 600))
    assert left(600.0, 150.0) == pytest.approx(150 * (1 - 180 / 600)), (
        "it was moved often, and has little left"
    )
    assert left(60_000.0, 150.0) > 149, "what is lost already is no reason to train slowly for hours"
    assert left(float("inf"), 150.0) == 150


def test_the_fair_share_is_a_power_mean_of_speedups() -> None:
    both = fair_value(np.array([0.5, 1.0, 2.0]), -1.0)
    assert both[1] - both[0] == pytest.approx(1.0), "from a half of its share to its share"
    assert both[2] - both[1] == pytest.approx(0.5)
    assert fair_value(0.0, -1.0) == 0.0


def test_the_fair_share_objective_gives_equal_jobs_equal_parts_whatever_they_have_left() -> None:
    def contender(left: float) -> Contender:
        first = Allocation(workers=4, servers=0)
        counts = [1, 2, 3, 4]
        plans = [first.replace(workers=count) for count in counts]
        front = PlanFront(plans, np.array(counts, dtype=float), np.array([100.0, 200.0, 300.0, 400.0]))
        view = JobView(held=first, batch_size=1.0, remaining_samples=left)
        return Contender(view=view, front=front, waiting=True, limits=Limits(max_workers=4))

    both = [contender(1e3), contender(1e9)]
    fair = decide_round(both, 4.0, 1.0, PlanSpace(), rules_for(-1.0, RULES.policy.hazard))
    assert [decision.allocation.workers for decision in fair] == [2, 2]
    short_first = decide_round(both, 4.0, 1.0, PlanSpace(), rules_for(0.0, RULES.policy.hazard))
    assert [decision.allocation for decision in short_first] == [both[0].front.allocations[-1], NOTHING]  # type: ignore[union-attr]


def test_the_example_is_a_scheduler_of_its_own() -> None:
    sys.path.insert(0, str(Path(rover_bus.__file__).parents[1]))
    from bench.foreign import ByBrain, figures, simulate, static, workload

    jobs = [job for job in workload(3) if job.arrive_s < 3600][:12]
    ours = figures(simulate([job for job in workload(3) if job.name in {j.name for j in jobs}], ByBrain()))
    theirs = figures(simulate(jobs, static()))
    assert ours["mean_jct_s"] < theirs["mean_jct_s"]
    assert ours["restarts"] < 6
