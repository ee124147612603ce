"""Metrics: names follow the rules, every family is rendered with a zero where nothing happened, and series stay bounded."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from told import told as published

from rover_bus.cli import figures
from rover_bus.cli.figures import Surroundings, figures_of
from rover_bus.cli.views.hindrances import Present
from rover_bus.cli.views.picture import Picture
from rover_bus.events import facts, host_facts, subjects
from rover_bus.events.bus import Stored
from rover_bus.events.codec import encode
from rover_bus.events.fact import JobFact
from rover_bus.events.identity import DesiredMember, Member, Process
from rover_bus.events.job import DataSpec, JobSpec
from rover_bus.events.nats_jetstream import StoreUsage
from rover_bus.events.profiles import REACTION_BOUNDS_S, HostProfile, ProcessSample, WorkerProfile
from rover_bus.kube.reactions import Reactions
from rover_bus.web.families import FAMILIES, OWN
from rover_bus.web.port import Figure
from rover_bus.web.rendering import Rendering
from rover_bus.web.server import ROUTE_NAMES

sys.path.insert(0, str(Path(__file__).parents[3] / "docs"))
MOST_SERIES = 6000
JOBS, WORKERS, SERVERS = 100, 14, 6
HOSTS = [f"h{n}" for n in range(10)]


class World:
    """A picture of many jobs, told by facts as a stream has them."""

    def __init__(self) -> None:
        self.picture, self.at = Picture(), 0

    def take(self, fact) -> None:
        self.at += 1
        if isinstance(fact, JobFact):
            where, (body, headers) = subjects.job_fact(fact.job, fact.kind()), published(fact, self.at)
        else:
            where, body, headers = subjects.host_fact(fact.host, fact.kind()), encode(fact), {}
        self.picture.take_fact(Stored(self.at, where, body, headers, time_ms=1000))

    def begin(self, job: str) -> list[Member]:
        spec = JobSpec(name=job, program=["python"], data=DataSpec(train="t.csv"))
        members = [Member("worker", n, 1) for n in range(WORKERS)] + [
            Member("ps", n, 1) for n in range(SERVERS)
        ]
        desired = [DesiredMember(member=each, host="h0", command=["x"]) for each in members]
        self.take(facts.JobSubmitted(job=job, spec=spec, uid="0000000000a1"))
        self.take(facts.PlanProposed(job=job, plan=1, workers=WORKERS, servers=SERVERS, predicted=9.0))
        self.take(facts.MembersDesired(job=job, plan=1, members=desired))
        self.take(facts.PlanApplied(job=job, plan=1, workers=WORKERS, servers=SERVERS))
        return members

    def go_on(self, job: str, members: list[Member], step: int) -> None:
        """What happens again and again while a job trains: restarts, reports, samples."""
        for each in members:
            again = Member(each.role, each.index, step + 1)
            self.take(facts.MemberLost(job=job, member=each, reason="killed"))
            host = HOSTS[each.index % len(HOSTS)]
            self.take(
                host_facts.HostStarted(host=host, job=job, process=Process(member=again, pid=step, host=host))
            )
            sample = WorkerProfile(job=job, member=again, samples=10, batches=1, window_s=1.0, compute_s=0.5)
            self.picture.take_sample(
                Stored(1, subjects.member_profile(job, "worker", each.index), encode(sample))
            )
        self.take(
            facts.JobReported(
                job=job, epoch=0, committed=step, dead_lettered=0, total=1000, samples_per_second=5.0
            )
        )


@pytest.fixture(scope="module")
def world() -> World:
    made = World()
    for number in range(JOBS):
        job = f"job-{number}"
        made.go_on(job, made.begin(job), 1)
    return made


def around() -> Surroundings:
    sizes = dict.fromkeys(("ROVER_LOG", "ROVER_FACTS", "ROVER_PROFILES"), 1)
    return Surroundings(Present(hosts=set(HOSTS), brain=True), True, sizes, 2000)


def sample_hosts(world: World) -> None:
    """A sample of each host, with all processes that run there."""
    by_host: dict[str, list[ProcessSample]] = {host: [] for host in HOSTS}
    for job, known in world.picture.jobs.items():
        for process in known.members.running.values():
            sample = ProcessSample(job=job, member=process.member, pid=1, cores_used=0.5, memory_bytes=100)
            by_host[process.host].append(sample)
    for host, processes in by_host.items():
        profile = HostProfile(
            host=host,
            cores=8,
            cores_used=1,
            memory_bytes=1 << 30,
            memory_used_bytes=1,
            window_s=1,
            processes=processes,
        )
        world.picture.take_sample(Stored(1, subjects.host_profile(host), encode(profile)))


def series(text: bytes) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    families = text_string_to_metric_families(text.decode())
    return [(each.name, tuple(sorted(each.labels.items()))) for family in families for each in family.samples]


def test_names_have_the_prefix_base_units_and_a_word_and_no_label_grows_with_time() -> None:
    for family in (*FAMILIES, *OWN):
        assert re.fullmatch(r"rover_[a-z_]+", family.name)
        assert (family.kind == "counter") == family.name.endswith("_total")
        assert not re.search(r"_(ms|minutes|mib|kb|percent|millis)(_|$)", family.name)
        assert family.about.endswith(".")
        assert set(family.labels) <= {
            "job",
            "role",
            "host",
            "state",
            "stream",
            "tenant",
            "outcome",
            "activity",
            "route",
            "status",
            "release",
            "le",
        }
    names = [family.name for family in (*FAMILIES, *OWN)]
    assert len(names) == len(set(names))


def test_an_operators_reactions_are_a_histogram_also_before_any(world: World) -> None:
    def shown() -> dict[str, float]:
        text = Rendering(ROUTE_NAMES, "1").render(figures_of(world.picture, around())).decode()
        families = {each.name: each for each in text_string_to_metric_families(text)}
        family = families["rover_operator_reaction_seconds"]
        assert family.type == "histogram"
        return {each.labels.get("le", each.name.rpartition("_")[2]): each.value for each in family.samples}

    before = shown()
    assert set(before.values()) == {0.0}
    assert [*before] == [*map(str, REACTION_BOUNDS_S), "+Inf", "count", "sum"]
    reactions = Reactions()
    for seconds in (0.004, 0.005, 0.2, 11.0):
        reactions.note(seconds)
    sample = encode(reactions.profile("abc", 5.0))
    world.picture.take_sample(Stored(1, subjects.operator_profile("abc"), sample))
    after = shown()
    assert [after[bound] for bound in ("0.005", "0.01", "0.25", "10.0", "+Inf")] == [2, 2, 3, 3, 4]
    assert after["count"] == 4
    assert after["sum"] == pytest.approx(11.209)


def test_a_hundred_jobs_of_twenty_members_make_few_series(world: World) -> None:
    """What rendering them takes is measured by `python -m bench.page`."""
    sample_hosts(world)
    found = series(Rendering(ROUTE_NAMES, "1").render(figures_of(world.picture, around())))
    assert len(found) == len(set(found)) <= MOST_SERIES


def test_series_are_as_many_after_restarts_samples_and_ended_jobs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample_hosts(world)
    rendering = Rendering(ROUTE_NAMES, "1")
    before = set(series(rendering.render(figures_of(world.picture, around()))))
    for step in range(2, 6):
        for number in range(10):
            job = f"job-{number}"
            members = [process.member for process in world.picture.jobs[job].members.running.values()]
            world.go_on(job, members, step)
    sample_hosts(world)
    assert set(series(rendering.render(figures_of(world.picture, around())))) == before
    world.take(facts.JobEnded(job="job-0", state="completed"))
    later = around()
    later.now_ms = int(1000 * (figures.GONE_AFTER_S + 2))
    after = set(series(rendering.render(figures_of(world.picture, later))))
    assert {dict(labels).get("job") for _, labels in before - after} == {"job-0"}
    assert not after - before


def test_every_family_has_a_series_as_soon_as_there_is_a_job_and_a_host(world: World) -> None:
    sample_hosts(world)
    counted = Counter(figure.family for figure in figures_of(world.picture, around()))
    own = {family.name for family in OWN} | {"rover_build_info"}
    assert {family.name for family in (*FAMILIES, *OWN)} - counted.keys() == own


def test_a_job_that_has_done_nothing_yet_has_zeros() -> None:
    world = World()
    world.begin("new")
    found = {(each.family, each.labels): each.value for each in figures_of(world.picture, around())}
    assert found["rover_job_lost_members_total", ("new", "worker")] == 0
    assert found["rover_job_plans_total", ("new", "rolled_back")] == 0
    assert found["rover_job_state", ("new", "failed")] == 0
    assert found["rover_job_desired_members", ("new", "worker")] == WORKERS


@pytest.mark.parametrize("figure", [Figure("rover_unknown", (), 1), Figure("rover_jobs", (), 1)])
def test_what_no_page_of_the_documentation_has_is_an_error_and_no_series(figure: Figure) -> None:
    with pytest.raises(KeyError):
        Rendering((), "1").render([figure])


def test_pages_and_the_openapi_document_are_as_the_tables_say() -> None:
    import make_http

    assert make_http.main(["--check"]) == 0


def test_the_store_has_zeros_before_it_was_looked_at_and_then_each_account_beside_the_sum() -> None:
    def stores(there: Surroundings) -> dict[tuple[str, tuple[str, ...]], float]:
        all_of_them = figures_of(World().picture, there)
        return {(each.family, each.labels): each.value for each in all_of_them if "_store_" in each.family}

    assert stores(around()) == {
        ("rover_store_bytes", ()): 0,
        ("rover_store_limit_bytes", ()): 0,
        ("rover_tenant_store_bytes", ("default",)): 0,
        ("rover_tenant_store_limit_bytes", ("default",)): 0,
    }
    looked = around()
    looked.store_limit_bytes, looked.stores = 100, {"default": StoreUsage(40, 0), "ads": StoreUsage(7, 10)}
    found = stores(looked)
    assert found["rover_store_bytes", ()] == 47
    assert found["rover_store_limit_bytes", ()] == 100
    assert found["rover_tenant_store_bytes", ("ads",)] == 7
    assert found["rover_tenant_store_limit_bytes", ("ads",)] == 10
