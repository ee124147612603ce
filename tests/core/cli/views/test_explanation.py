"""An explanation says what was measured, the fit with its error, the front, why the others lost; what-if asks the same planner."""

from __future__ import annotations

from math import log

import pytest

from rover_bus.brain.models.hazard import LossCount
from rover_bus.brain.models.hosts import add_residual
from rover_bus.brain.state import BrainState, Ceiling, KnownJob, TriedSize
from rover_bus.cli.commands.explain import explanation_lines, supposition_lines
from rover_bus.cli.findings import say_of_cores
from rover_bus.cli.views.explaining import explain_plan, slow_hosts_text, suppose
from rover_bus.cli.views.explanation import forecast_text, headline, rivals
from rover_bus.cli.views.plans import PlanView
from rover_bus.events import facts
from rover_bus.events.errors import Refused
from rover_bus.events.facts import LosingPlan, Size
from rover_bus.events.identity import HostCapacity
from rover_bus.events.job import DataSpec, JobSpec, RoleSpec, WorkersSpec

THREE, FOUR = Size(workers=3, servers=1), Size(workers=4, servers=1)
SPEC = JobSpec(
    name="a",
    program=["python"],
    data=DataSpec(train="t.csv", batch_size=32),
    workers=WorkersSpec(max_count=6),
    servers=RoleSpec(count=1),
)
PROPOSED = facts.PlanProposed(
    job="a",
    plan=4,
    workers=4,
    servers=1,
    step="scale",
    constant="more_throughput",
    reason="3 -> 4 workers",
    held=THREE,
    measured=3000.0,
    predicted=4000.0,
    predicted_low_90=3800.0,
    predicted_high_90=4200.0,
    losers=[LosingPlan(size=THREE, reason="less_gain", throughput=3000.0)],
    by="brain",
)


def known() -> KnownJob:
    """A job bound by its input, measured with one, two and three workers."""
    tried = [
        TriedSize(Size(workers=workers, servers=1), weight=3.0, mean=1000.0 * workers, input_share=0.9)
        for workers in (1, 2, 3)
    ]
    return KnownJob("u1", SPEC, plan=3, held=THREE, tried=tried, recent=[3000.0] * 3, total=60_000)


LOOSE = HostCapacity(cores=2.0, memory_bytes=1 << 34)


def cluster(job: KnownJob) -> BrainState:
    return BrainState(hosts={"h": HostCapacity(cores=2.0, memory_bytes=1 << 34)}, jobs={"a": job})


def test_a_plan_is_told_in_one_line_and_its_rivals_with_why_they_lost() -> None:
    assert headline(PROPOSED) == (
        "plan 4, more throughput: workers 3 -> 4; 3,000 samples/s now, 4,000 (3,800 to 4,200) predicted"
    )
    assert rivals(PROPOSED) == ["as it is, 3,000 samples/s: cheaper, but the step beyond it still pays"]


def test_an_explanation_holds_inputs_the_fit_with_its_error_the_front_and_both_figures() -> None:
    view = PlanView(PROPOSED)
    view.take(
        facts.PlanKept(
            job="a", plan=4, constant="gain_confirmed", before=3000.0, after=3800.0, predicted=4000.0
        ),
        2,
    )
    explained = explain_plan(view, known(), cluster(known()))
    assert [row["error"] for row in explained["tried"]] == pytest.approx([0.0] * 3)
    assert explained["fit"]["median_error"] == pytest.approx(0.0)
    assert explained["fit"]["ingest_a_worker"] == pytest.approx(1000.0)
    assert [row["workers"] for row in explained["front"]] == [1, 2, 3, 4, 5, 6]
    text = "\n".join(explanation_lines(explained))
    assert "4,000 samples/s (3,800 to 4,200); 3,800 measured (-5 %)" in text
    assert "bound by input: 1,000 samples/s a worker" in text
    assert "kept (gain_confirmed)" in text


def test_a_size_that_no_plan_asked_for_is_told_apart() -> None:
    job = known()
    assert "on their way" not in "\n".join(
        explanation_lines(explain_plan(PlanView(PROPOSED), job, cluster(job)))
    )
    job.tried[1].passing = True
    explained = explain_plan(PlanView(PROPOSED), job, cluster(job))
    assert [row["passing"] for row in explained["tried"]] == [False, True, False]
    lines = explanation_lines(explained)
    asked = [line.split("  ")[-1].strip() for line in lines[lines.index("inputs     (samples/s)") + 2 :][:3]]
    assert asked == ["a plan", "none: others were on their way", "a plan"], lines


def test_a_plan_from_before_the_brains_log_is_explained_by_what_it_carries() -> None:
    text = "\n".join(explanation_lines(explain_plan(PlanView(PROPOSED), None, BrainState())))
    assert "why not    as it is" in text
    assert "not measured yet" in text
    assert "front" not in text


def test_what_if_asks_the_planner_on_a_copy_and_names_what_it_would_refuse() -> None:
    job = known()
    before = cluster(known())
    supposed = suppose(job, before, Size(workers=6, servers=1))
    assert supposed["wanted"]["throughput"] == pytest.approx(6000.0)
    assert supposed["held"]["remaining_s"] == pytest.approx(20.0)
    assert supposed["would_be_refused"] is None
    assert before == cluster(known())
    beyond = suppose(job, before, Size(workers=8, servers=3))
    assert "pinned to 1" in beyond["would_be_refused"]
    assert beyond["never_measured"] == ["servers"]
    assert "beware: servers were never varied" in "\n".join(
        supposition_lines(beyond | {"job": "a", "brain_log_sequence": 9})
    )


def test_what_if_says_when_a_size_is_far_beyond_what_was_measured() -> None:
    supposed = suppose(known(), cluster(known()), Size(workers=100_000, servers=1))
    assert supposed["far_from_measured"] == ["100,000 workers are far beyond the 3 that were measured"]
    assert "beware: 100,000 workers" in "\n".join(
        supposition_lines(supposed | {"job": "a", "brain_log_sequence": 9})
    )
    assert suppose(known(), cluster(known()), Size(workers=6, servers=1))["far_from_measured"] == []


def test_a_job_without_a_plan_is_told_what_it_waits_for() -> None:
    left = {"constant": "quota_exceeded", "detail": "1 cores more do not fit the quota of 'ads'"}
    assert explanation_lines({"job": "a", "plan": None, "left_as_it_is": left}) == [
        "a has no plan yet",
        "it waits: quota_exceeded (1 cores more do not fit the quota of 'ads')",
    ]
    assert "rover doctor" in explanation_lines({"job": "a", "plan": None, "left_as_it_is": None})[1]


def test_a_persons_plan_says_that_a_person_made_it() -> None:
    assert "made from  a person's word" in explanation_lines(
        explain_plan(PlanView(PROPOSED), None, BrainState())
    )
    ours = PROPOSED.replace(brain_term=3, log_sequence=7, members_plan=2)
    assert "by Brain term 3" in "\n".join(explanation_lines(explain_plan(PlanView(ours), None, BrainState())))


def test_what_if_says_not_enough_rather_than_guess() -> None:
    job = known()
    job.tried = []
    with pytest.raises(Refused, match="not enough is measured"):
        suppose(job, cluster(job), FOUR)


def test_a_stop_is_foreseen_with_its_interval_or_said_to_be_out_of_reach() -> None:
    def said(**figures: float) -> str:
        return forecast_text(facts.JobForecast(job="a", constant="keep", value=0.5, target=0.4, **figures))

    assert (
        said(eta_s=90.0, low_90_s=60.0, high_90_s=-1.0) == "loss 0.5 now, 0.4 wanted: in 90 s (60 s to never)"
    )
    assert said(eta_s=-1.0, low_90_s=-1.0, high_90_s=-1.0) == (
        "loss 0.5 now, 0.4 wanted: out of reach by what is known (keep)"
    )


def test_inputs_show_every_axis_that_varied_and_no_other() -> None:
    job = known()
    sizes = (
        Size(workers=3, servers=1, worker_cores=0.5),
        Size(workers=3, servers=2, worker_cores=1.0),
        Size(workers=3, servers=2, worker_cores=1.0, server_memory_bytes=3 << 29),
    )
    job.tried = [TriedSize(size, weight=3.0, mean=1000.0, input_share=0.9) for size in sizes]
    job.ceilings = [Ceiling(sizes[1], 900.0, 0.0)]
    text = explanation_lines(
        explain_plan(PlanView(PROPOSED), job, cluster(job)) | {"left_as_it_is": None, "stop": None}
    )
    head = next(line for line in text if "measured" in line.lower() and "fitted" in line.lower()).lower()
    assert "cores a worker" in head
    assert "gib a server" in head
    assert "cores a server" not in head
    assert "gib a worker" not in head
    assert sum("1.5" in line.split() for line in text) == 1
    assert any("workers 3, servers 2, 1 cores a worker reverted at 900" in line for line in text)


def text_of(job: KnownJob, state: BrainState) -> str:
    explained = explain_plan(PlanView(PROPOSED), job, state)
    return "\n".join(explanation_lines(explained | {"left_as_it_is": None, "stop": None}))


def test_that_cores_are_no_axis_is_said_where_they_do_not_bind_and_only_there() -> None:
    job = known()
    assert "cores      are no axis: a host does not hold members to theirs" in text_of(job, cluster(job))
    job.cores_bind = True
    assert "no axis" not in text_of(job, cluster(job))
    [note], [ok] = (
        say_of_cores({"h2": LOOSE, "h1": LOOSE}),
        say_of_cores({"h": LOOSE.replace(cores_bind=True)}),
    )
    assert note.what.startswith("cores do not bind on h1, h2: ")
    assert (note.verdict, ok.verdict, ok.what) == ("note", "ok", "cores bind: members are held to theirs")


def test_of_nodes_it_is_said_that_no_member_has_spoken_yet_or_which_sets_no_limit() -> None:
    unseen, held = LOOSE.replace(cores_seen="none"), LOOSE.replace(cores_bind=True, cores_seen="members")
    job = known()
    state = cluster(job)
    state.hosts = {"n1": unseen}
    assert "cores      are no axis: no member has said yet that its host holds it" in text_of(job, state)
    state.hosts["n2"] = held.replace(cores_bind=False)
    assert "cores      are no axis: a host does not hold members to theirs" in text_of(job, state)
    state.hosts = {"n2": held}
    assert "cores      were no axis when this plan was made; by now" in text_of(job, state)
    [note] = say_of_cores({"n1": unseen})
    assert note.verdict == "note"
    assert note.what.startswith("whether cores bind on n1 is not known: no member there has said yet")
    for others in ({}, {"n2": held}):
        *_, note = say_of_cores({"n1": LOOSE.replace(cores_seen="members"), **others})
        assert note.verdict == "note"
        assert note.what.startswith("cores do not bind on n1: members there find no limit")
        assert "--cpu-cfs-quota=false" in note.what
    [ok] = say_of_cores({"n1": unseen, "n2": held})
    assert (ok.verdict, ok.what.split(" (")[0]) == ("ok", "cores bind: members are held to theirs")
    assert "on n1 none has said so yet" in ok.what
    both = say_of_cores({"n1": unseen, "n2": held, "n3": LOOSE})
    assert [each.what.split(" on ")[0] for each in both] == ["cores do not bind", "whether cores bind"]


def test_how_often_members_are_lost_is_said() -> None:
    job = known()
    state = cluster(job)
    assert "a member is counted on for 505 h (0 were lost here)" in text_of(job, state)
    state.losses = LossCount().watch(1, 3.6e6, 40)
    assert "a member is counted on for 32 h (40 were lost here)" in text_of(job, state)


def test_what_if_shows_the_cores_that_it_was_asked_about() -> None:
    supposed = suppose(known(), cluster(known()), THREE.replace(worker_cores=0.25))
    text = supposition_lines(supposed | {"job": "a", "brain_log_sequence": 9})
    assert any("cores a worker" in line.lower() for line in text)


def test_slow_hosts_are_named_with_what_showed_it_and_what_a_plan_avoided() -> None:
    job = known()
    state = cluster(job)
    state.slow_hosts["h"] = 0.0
    for worker in ("worker-0.1", "worker-1.1"):
        for _ in range(3):
            add_residual(state.host_evidence.setdefault("h", {}), f"a/{worker}", log(0.5), 0.0)
    assert slow_hosts_text(state) == [
        "host h is slow: 50% of what is usual, as a/worker-0.1, a/worker-1.1 show; plans avoid it, jobs leave it where it pays"
    ]
    plan = PlanView(PROPOSED.replace(slow_hosts=["h"]))
    text = explanation_lines(explain_plan(plan, job, state) | {"left_as_it_is": None, "stop": None})
    assert "avoided    h: slow (`rover doctor` says how much)" in text
