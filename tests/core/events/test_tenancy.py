"""What the control account calls a tenant's jobs, and what it believes of what a tenant's account says."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from told import told

from rover_bus.events.bus import Stored
from rover_bus.events.errors import BadMessage, BusError, NotConnected
from rover_bus.events.facts import JobPauseRequested, JobSubmitted, PlanProposed, PlanWithheld
from rover_bus.events.host_facts import HostLeft, HostRegistered
from rover_bus.events.identity import HostCapacity, Member, Process
from rover_bus.events.intake import is_of, source_of
from rover_bus.events.job import DataSpec, JobSpec, PlanSpec
from rover_bus.events.profiles import HostProfile, WorkerProfile
from rover_bus.events.reading import read_fact
from rover_bus.events.subjects import host_profile, job_fact, member_profile, of_tenant, parse
from rover_bus.events.tenancy import TenantStores, bare, of_control
from rover_bus.node.tenants import seen_by


def stored(fact: JobSubmitted | JobPauseRequested, subject: str) -> Stored:
    body, headers = told(fact, 1)
    return Stored(1, subject, body, headers)


SUBMITTED = JobSubmitted(
    job="demo",
    uid="0123456789ab",
    spec=JobSpec(name="demo", program=["t"], data=DataSpec(train="t"), plan=PlanSpec(tenant="maps")),
)


def test_a_submission_is_of_the_tenant_in_whose_account_it_was_stored_whatever_it_says() -> None:
    fact = read_fact(stored(SUBMITTED, of_tenant("ads", job_fact("demo", "job.submitted"))))
    assert isinstance(fact, JobSubmitted)
    assert (fact.job, fact.spec.name, fact.spec.plan.tenant) == ("ads/demo", "ads/demo", "ads")


def test_a_body_cannot_name_another_tenants_job() -> None:
    forged = JobPauseRequested(job="maps/demo")
    for subject in (job_fact("demo", forged.kind()), of_tenant("ads", job_fact("demo", forged.kind()))):
        with pytest.raises(BadMessage):
            read_fact(stored(forged, subject))


def test_a_sample_is_of_the_job_on_whose_subject_it_came_and_hosts_are_no_tenants() -> None:
    sample = WorkerProfile(window_s=1.0, job="demo", member=Member("worker", 0, 1), samples=1, batches=1)
    host = HostProfile(
        window_s=1.0, host="h1", cores=1.0, cores_used=0.0, memory_bytes=1, memory_used_bytes=0
    )
    own, other = member_profile("demo", "worker", 0), member_profile("other", "worker", 0)
    cases = [
        (sample, own, True),
        (sample, of_tenant("ads", own), True),
        (sample, other, False),
        (host, host_profile("h1"), True),
        (host, host_profile("h2"), False),
        (host, of_tenant("ads", host_profile("h1")), False),
    ]
    for each, subject, expected in cases:
        at = parse(subject)
        assert at is not None
        assert is_of(each, at) == expected, subject


def test_a_name_goes_out_as_it_came_in() -> None:
    fact = JobPauseRequested(job="demo")
    assert bare(of_control(fact, "ads")) == fact
    assert of_control(fact, "") is fact
    assert bare(fact) is fact
    assert of_control(HostLeft(host="h1"), "ads") == HostLeft(host="h1")


def test_a_tenant_sees_of_a_host_its_own_members_alone() -> None:
    processes = [Process(member=Member("worker", n, 1), pid=n, host="h1") for n in range(3)]
    fact = HostRegistered(
        host="h1",
        capacity=HostCapacity(cores=2.0, memory_bytes=1),
        daemon="d",
        processes=processes,
        jobs=["demo", "ads/demo", "maps/demo"],
    )
    seen = seen_by("ads", fact)
    assert isinstance(seen, HostRegistered)
    assert (seen.jobs, seen.processes) == (["demo"], [processes[1]])
    assert seen_by("news", fact) == fact.replace(jobs=[], processes=[])


def test_a_tenant_whose_store_refuses_is_tried_patiently_once_and_then_once_a_fact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        monkeypatch.setattr("rover_bus.events.tenancy.AGAIN_S", 0.001)
        monkeypatch.setattr("rover_bus.events.tenancy.PATIENCE_S", 0.01)
        stores, attempts, problem = TenantStores(), list[str](), BusError("full")

        async def store() -> int:
            attempts.append("")
            if problem is not None:
                raise problem
            return 1

        fact = JobPauseRequested(job="ads/demo")
        assert not await stores.store(fact, store)
        assert len(attempts) == 10
        assert not await stores.store(fact, store)
        assert len(attempts) == 11
        problem = NotConnected("away")
        with pytest.raises(NotConnected):
            await stores.store(fact, store)
        problem = None  # type: ignore[assignment]
        assert await stores.store(fact, store)
        problem = BusError("full again")
        assert not await stores.store(fact, store)
        assert len(attempts) == 23

    asyncio.run(run())


OTHERS = [
    "ads/demo",
    "maps/secret",
    "loose",
]  # its own, another tenant's, and one of the control account itself


@pytest.mark.parametrize(
    ("fact", "names"),
    [
        (PlanProposed(job="ads/new", plan=1, workers=2, servers=1, released_by=OTHERS), "released_by"),
        (PlanWithheld(job="ads/new", constant="waits_for_room", waits_for=OTHERS), "waits_for"),
    ],
    ids=["proposed", "withheld"],
)
def test_a_plan_that_a_tenant_reads_names_no_job_of_another_tenant(
    fact: PlanProposed | PlanWithheld, names: str
) -> None:
    seen = bare(fact)
    assert seen.job == "new"
    assert getattr(seen, names) == ["demo", "a job of another tenant", "a job of another tenant"]
    own = msgspec.structs.replace(fact, job="new")
    assert bare(own) == own, "the control account's people read all names"


@pytest.mark.parametrize(
    ("in_control", "in_ads"),
    [
        ("ads/ROVER_FACTS:20", "ROVER_FACTS:20"),
        ("ROVER_FACTS:24", "default/ROVER_FACTS:24"),
        ("timer:settle of ads/ROVER_FACTS:20", "timer:settle of ROVER_FACTS:20"),
        ("plan:3", "plan:3"),
        ("", ""),
    ],
)
def test_a_cause_is_numbered_where_it_is_read_and_comes_back_as_it_was(in_control: str, in_ads: str) -> None:
    plan = PlanWithheld(job="ads/demo", reason="r", constant="c", cause=in_control)
    assert bare(plan).cause == in_ads
    assert of_control(bare(plan), "ads").cause == in_control


def test_a_tenant_reads_no_number_of_anothers_facts() -> None:
    plan = PlanWithheld(job="ads/demo", reason="r", constant="c", cause="maps/ROVER_FACTS:7")
    assert bare(plan).cause == "another-tenant"


def test_what_a_decider_names_as_a_cause_is_the_number_in_the_tenants_own_stream() -> None:
    copy = {"Nats-Stream-Source": "ROVER_FACTS:hash 20 > >"}
    subject = job_fact("demo", "plan.requested")
    assert source_of(Stored(24, of_tenant("ads", subject), b"", copy)) == "ads/ROVER_FACTS:20"
    assert source_of(Stored(24, subject, b"", {})) == "ROVER_FACTS:24"
