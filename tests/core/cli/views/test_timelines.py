"""Timelines: steps grow wider and lose nothing, a sample lies on the time that it covers, a restart lasts until its successor."""

from __future__ import annotations

from told import told as published

from rover_bus.cli.views.charts import lanes_of, program_of, throughput_of
from rover_bus.cli.views.picture import Picture
from rover_bus.cli.views.timelines import MOST_METRICS, MOST_STEPS, Timeline
from rover_bus.events import facts, subjects
from rover_bus.events.bus import Stored
from rover_bus.events.codec import encode
from rover_bus.events.fact import JobFact
from rover_bus.events.identity import Member
from rover_bus.events.job import DataSpec, JobSpec
from rover_bus.events.profiles import WorkerProfile

SPEC = JobSpec(name="a", program=["python"], data=DataSpec(train="t.csv"))
BEGAN_MS = 1_000_000_000_000


class Seen:
    """A picture of one job with one worker, told what happens second by second."""

    def __init__(self) -> None:
        self.picture, self.facts, self.samples = Picture(), 0, 0
        self.fact(0, facts.JobSubmitted(job="a", spec=SPEC, uid="0000000000a1"))

    @property
    def known(self):
        return self.picture.jobs["a"]

    def fact(self, second: float, fact: JobFact) -> None:
        self.facts += 1
        body, headers = published(fact, self.facts)
        at_ms = BEGAN_MS + round(1000 * second)
        self.picture.take_fact(
            Stored(self.facts, subjects.job_fact("a", fact.kind()), body, headers, time_ms=at_ms)
        )

    def sample(self, second: float, incarnation: int = 1, **more: float) -> None:
        self.samples += 1
        said = {"samples": 10, "batches": 1, "window_s": 2.0, "compute_s": 1.0, "wait_s": 1.0, **more}
        profile = WorkerProfile(job="a", member=Member("worker", 0, incarnation), **said)
        where = subjects.member_profile("a", "worker", 0)
        at_ms = BEGAN_MS + round(1000 * second)
        self.picture.take_sample(Stored(self.samples, where, encode(profile), time_ms=at_ms))


def test_steps_grow_wider_with_the_time_that_they_cover_and_sums_stay():
    timeline = Timeline()
    for second in range(1000):
        timeline.add("x", BEGAN_MS + 1000 * second, (2.0, 1.0))
    steps = timeline.steps("x")
    assert len(steps) <= MOST_STEPS
    assert [sum(sums[at] for _, sums in steps) for at in (0, 1)] == [2000.0, 1000.0]
    assert timeline.width_ms == 16_000
    assert all(begin % timeline.width_ms == 0 for begin, _ in steps)


def test_a_sample_lies_on_the_steps_that_its_window_covers():
    seen = Seen()
    for second in (2, 4, 6):
        seen.sample(second)
    (lane,) = lanes_of(seen.known, 1).lanes
    assert [(at - BEGAN_MS) // 1000 for at in lane.times_ms][-4:] == [2, 3, 4, 5]
    assert set(lane.compute) == set(lane.wait) == {0.5}


def test_a_restart_lasts_from_the_loss_to_the_next_incarnation():
    seen = Seen()
    member, follower = Member("worker", 0, 1), Member("worker", 0, 2)
    seen.fact(1, facts.MemberAdmitted(job="a", member=member))
    seen.fact(5, facts.MemberLost(job="a", member=member, reason="killed"))
    (lane,) = lanes_of(seen.known, 1).lanes
    assert (lane.restarts, lane.lost_ms) == ([], BEGAN_MS + 5000)
    seen.fact(9, facts.MemberAdmitted(job="a", member=follower))
    shown = lanes_of(seen.known, 1)
    (lane,) = shown.lanes
    assert (lane.restarts, lane.lost_ms) == ([(BEGAN_MS + 5000, BEGAN_MS + 9000)], None)
    assert [(each.kind, each.event) for each in shown.marks] == [("fault", 3)]
    seen.fact(10, facts.MemberLost(job="a", member=follower, reason="killed"))
    seen.fact(11, facts.MembersDesired(job="a", plan=2, members=[]))
    assert lanes_of(seen.known, 1).lanes[0].lost_ms is None, "nothing follows it"


def test_metrics_are_means_over_samples_and_bounded_in_number():
    seen = Seen()
    seen.sample(2, samples=10, loss=0.5, metrics={"auc": 0.7, "broken": float("nan")})
    seen.sample(2, samples=30, loss=0.9, metrics={"auc": 0.7, **{f"m{n}": 1.0 for n in range(20)}})
    seen.sample(2, samples=0, loss=9.0)
    shown = program_of(seen.known, 1, None)
    by_name = {each.name: each.values for each in shown.metrics}
    assert [round(value, 6) for value in by_name["loss"]] == [0.8]
    assert "broken" not in by_name
    assert len(by_name) == MOST_METRICS


def test_throughput_stands_beside_what_the_plan_promised_that_was_carried_out():
    seen = Seen()
    promised = {"predicted": 90.0, "predicted_low_90": 80.0, "predicted_high_90": 99.0}
    seen.fact(1, facts.PlanProposed(job="a", plan=1, workers=1, servers=1, **promised))
    seen.fact(2, facts.PlanProposed(job="a", plan=2, workers=2, servers=1, **promised))
    seen.fact(3, facts.PlanApplied(job="a", plan=1, workers=1, servers=1))
    told = {"epoch": 0, "committed": 40, "dead_lettered": 0, "total": 100}
    seen.fact(8, facts.JobReported(job="a", samples_per_second=85.0, **told))
    shown = throughput_of(seen.known, 4)
    assert (shown.times_ms, shown.measured) == ([BEGAN_MS + 8000], [85.0])
    (promise,) = shown.promises
    assert (promise.plan, promise.from_ms, promise.low_90) == (1, BEGAN_MS + 3000, 80.0)
