"""What a golden script cannot show of the decider of RoverJobs: other namespaces, tenants, what fails, what is on its way."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest
from object_script import BEGUN_S, SPEC, UID

from rover_bus.events import facts
from rover_bus.events.deciding import WakeAt
from rover_bus.events.job import JobSpec
from rover_bus.kube.conditions import differs, patch_of
from rover_bus.kube.kinds import Metadata, Ref
from rover_bus.kube.known_objects import Acted, Acting, Happening, Objects, ObjectSeen, TenantsKnown, evolve
from rover_bus.kube.object import changed_keys, job_of
from rover_bus.kube.objects import (
    AskStop,
    ConfirmGone,
    Effect,
    ForObject,
    HandIn,
    KeepObject,
    WriteStatus,
    decide,
)
from rover_bus.kube.roverjobs import FINALIZER, RoverJob
from rover_bus.kube.runs import MOST_NEWS, HeardFact

REF = Ref("team", "clicks")


def clicks(version: int = 1, held: bool = True, **status: object) -> RoverJob:
    about = Metadata(
        name="clicks",
        namespace="team",
        uid=UID,
        generation=1,
        resource_version=str(version),
        finalizers=[FINALIZER] if held else [],
    )
    return RoverJob(metadata=about, spec=SPEC, status=dict(status))


def spec(name: str = "clicks") -> JobSpec:
    return job_of({"metadata": {"name": name}, "spec": SPEC})


def submitted(
    by: str = "kubernetes/team", job: str = "clicks", uid: str = UID.replace("-", "")[:16]
) -> HeardFact:
    return HeardFact(facts.JobSubmitted(job=job, uid=uid, spec=spec(), by=by), 1, int(BEGUN_S * 1000))


def after(*happenings: Happening, state: Objects = Objects()) -> Objects:  # noqa: B008 - a value
    for each in happenings:
        state = evolve(state, each)
    return state


def acts(effects: list[Effect]) -> list[object]:
    return [act for each in effects if isinstance(each, ForObject) for act in each.acts]


def test_a_job_of_another_operators_namespace_is_no_orphan_of_ours() -> None:
    state = after(submitted())
    assert [type(act) for act in acts(decide(state, BEGUN_S))] == [ConfirmGone, AskStop]
    elsewhere = replace(state, namespaces=frozenset({"others"}))
    assert decide(elsewhere, BEGUN_S) == []
    assert decide(after(submitted(by="ann")), BEGUN_S) == []


def test_another_clusters_job_of_a_namespace_of_the_same_name_is_left_alone() -> None:
    """Two clusters share a bus, and both have a namespace `team`."""
    there, here = "kubernetes/team/aaaaaaaa", replace(Objects(), cluster="bbbbbbbb")
    state = after(submitted(by=there), state=here)
    assert decide(state, BEGUN_S) == [], "it is no orphan of ours"
    assert [type(act) for act in acts(decide(replace(state, cluster="aaaaaaaa"), BEGUN_S))] == [
        ConfirmGone,
        AskStop,
    ]
    ended = HeardFact(facts.JobEnded(job="clicks", state="completed", position=(1, 0)), 2, 0)
    younger = clicks()
    about = msgspec.structs.replace(younger.metadata, uid=UID.replace("0a1b", "ffff"))
    state = after(ended, ObjectSeen(REF, msgspec.structs.replace(younger, metadata=about)), state=state)
    (act,) = acts(decide(state, BEGUN_S))
    assert isinstance(act, WriteStatus), "nor is it forgotten for an object of ours"
    assert "of kubernetes/team/aaaaaaaa" in act.patch["conditions"][0]["message"]


def test_what_is_being_done_for_an_object_is_not_done_twice() -> None:
    state = after(ObjectSeen(REF, clicks(held=False)))
    assert [type(act) for act in acts(decide(state, BEGUN_S))] == [KeepObject]
    state = after(Acting(REF), state=state)
    assert decide(state, BEGUN_S) == []
    state = after(Acted(REF, BEGUN_S, version=2), state=state)
    assert decide(state, BEGUN_S) == [], "the version that was written has not been seen"
    state = after(ObjectSeen(REF, clicks(version=2)), state=state)
    assert [type(act) for act in acts(decide(state, BEGUN_S))] == [HandIn]
    state = after(Acting(REF), Acted(REF, BEGUN_S, sequence=1), state=state)
    assert decide(state, BEGUN_S) == [], "the fact that was stored has not been received"


def test_what_fails_is_tried_again_ever_more_rarely() -> None:
    state = after(ObjectSeen(REF, clicks(held=False)))
    rests = []
    for _ in range(9):
        state = after(Acting(REF), Acted(REF, BEGUN_S, problem="no answer"), state=state)
        (wake,) = decide(state, BEGUN_S)
        assert isinstance(wake, WakeAt)
        rests.append(wake.at_s - BEGUN_S)
        assert acts(decide(state, wake.at_s)), "then it is tried"
    assert rests == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]


def test_an_object_of_a_namespace_with_a_tenants_name_is_that_tenants_job() -> None:
    state = after(TenantsKnown(frozenset({"team"})), ObjectSeen(REF, clicks()))
    (act,) = acts(decide(state, BEGUN_S))
    assert isinstance(act, HandIn)
    assert (act.job, act.spec.name, act.spec.plan.tenant) == ("team/clicks", "clicks", "team")
    ended = HeardFact(
        facts.JobEnded(job="team/clicks", state="completed", position=(1, 0)), 2, int(BEGUN_S * 1000)
    )
    state = after(submitted(job="team/clicks"), ended, state=state)
    (act,) = acts(decide(state, BEGUN_S))[-1:]
    assert isinstance(act, WriteStatus)
    assert act.patch["state"] == "Complete"


def test_an_object_of_a_tenant_that_is_still_being_made_waits_for_it_and_says_so() -> None:
    state = after(ObjectSeen(REF, clicks()), state=Objects(declared=frozenset({"team"})))
    (act,) = acts(decide(state, BEGUN_S))
    assert isinstance(act, WriteStatus)
    [accepted] = [each for each in act.patch["conditions"] if each["type"] == "Accepted"]
    assert (accepted["status"], accepted["reason"]) == ("False", "TenantNotReady")
    (act,) = acts(decide(after(TenantsKnown(frozenset({"team"})), state=state), BEGUN_S))
    assert isinstance(act, HandIn)
    assert act.job == "team/clicks"


def test_what_began_as_a_job_of_no_tenant_stays_one() -> None:
    state = after(submitted(), ObjectSeen(REF, clicks()), TenantsKnown(frozenset({"team"})))
    assert HandIn not in [type(act) for act in acts(decide(state, BEGUN_S))]
    assert state.job_name(REF) == "clicks"


def test_a_job_on_which_nothing_shall_be_decided_is_left() -> None:
    state = after(ObjectSeen(REF, clicks()))
    assert decide(state, BEGUN_S, {"clicks"}) == []


def test_only_so_many_facts_wait_to_be_told() -> None:
    lost = facts.MemberLost(job="clicks", member=facts.Member("worker", 0, 1), reason="killed")
    many = [HeardFact(lost.replace(position=(each, 0)), each, 0) for each in range(2, 200)]
    state = after(submitted(), *many)
    assert len(state.runs["clicks"].news) == MOST_NEWS
    state = after(ObjectSeen(REF, clicks(observedFact=190)), state=state)
    assert len(state.runs["clicks"].news) == 9, "what the object shows is told"


def test_reports_of_progress_take_no_place_from_facts_that_wait_to_be_told() -> None:
    lost = facts.MemberLost(
        job="clicks", member=facts.Member("worker", 0, 1), reason="killed", position=(1, 0)
    )
    reports = [
        facts.JobReported(
            job="clicks",
            epoch=0,
            committed=each,
            dead_lettered=0,
            total=9,
            samples_per_second=1,
            position=(each, 0),
        )
        for each in range(2, 200)
    ]
    state = after(submitted(), *(HeardFact(fact, at, 0) for at, fact in enumerate([lost, *reports], 2)))
    assert state.runs["clicks"].committed == 199
    assert [type(each.fact) for each in state.runs["clicks"].news] == [facts.JobSubmitted, facts.MemberLost]


def test_a_job_whose_object_is_being_deleted_without_our_finalizer_is_ended_at_once() -> None:
    leaving = clicks(held=False)
    about = msgspec.structs.replace(
        leaving.metadata, deletion_timestamp=datetime(2026, 1, 1, tzinfo=UTC), finalizers=["theirs"]
    )
    state = after(submitted(), ObjectSeen(REF, msgspec.structs.replace(leaving, metadata=about)))
    assert AskStop in [type(act) for act in acts(decide(state, BEGUN_S))]
    ended = facts.JobEnded(job="clicks", state="cancelled", position=(1, 0))
    state = after(HeardFact(ended, 2, 0), state=state)
    assert decide(state, BEGUN_S) == []


@pytest.mark.parametrize(
    ("former", "status", "how"),
    [
        ({"state": "Running", "committed": 1}, {"state": "Running", "committed": 1}, ""),
        ({"state": "Running", "committed": 1}, {"state": "Running", "committed": 2}, "progress"),
        ({"state": "Running", "committed": 1}, {"state": "Failed", "committed": 2}, "more"),
        ({"goodput": "3/s"}, {}, "progress"),
    ],
)
def test_progress_alone_need_not_be_written_at_once(former: dict, status: dict, how: str) -> None:
    assert differs(former, status) == how


def test_a_patch_takes_away_what_is_gone() -> None:
    former = {"goodput": "3/s", "plan": {"number": 1, "reason": "x"}, "members": [1, 2]}
    assert patch_of(former, {"plan": {"number": 2}, "members": [1]}) == {
        "goodput": None,
        "plan": {"number": 2, "reason": None},
        "members": [1],
    }


def test_changed_keys_are_named_as_the_object_spells_them() -> None:
    here = spec()
    assert changed_keys(here, here) == ()
    there = here.replace(
        depth=3,
        workers=here.workers.replace(max_count=3, memory_bytes=1 << 30),
        plan=here.plan.replace(tenant="other"),
        name="other",
    )
    assert changed_keys(here, there) == ("workers.max_count", "workers.memory", "depth")
    assert changed_keys(here, here.replace(checkpoint=None)) == ("checkpoint",)
