"""A stranger that no host has as much memory for as its user asks begins with what servers here use of what is asked for."""

from __future__ import annotations

import pytest
from brain_states import GIB, cluster, round_of, runs, size, waits

from rover_bus.brain.decider import BrainDecider
from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.decisions.plans import Allocation
from rover_bus.brain.decisions.warm_start import JobTraits, PastJob, usual_memory_share
from rover_bus.brain.granting import grant_best
from rover_bus.brain.settling import settle
from rover_bus.brain.sizing import MORE_THAN_USED, MOST_BYTES, first_size
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.state import BrainState, Change, KnownJob
from rover_bus.brain.wishes import Wish
from rover_bus.events import facts
from rover_bus.events.facts import PlanProposed
from rover_bus.events.identity import Member
from rover_bus.events.inputs import Observed, TookOver
from rover_bus.events.job import PlanSpec

ASKED = 230 * GIB  # a server
# Of twenty families that used a fifth, as if two more had used all of it: 0.23, in the next step up.
LEARNED = 1 / 4
USUAL = MORE_THAN_USED * LEARNED * ASKED


def past(
    family: str, used: int = 46 * GIB, asked: int = ASKED, dataset: str = "d", completed: bool = True
) -> PastJob:
    return PastJob(
        job=family,
        traits=JobTraits(family=family, dataset=dataset),
        final=Allocation(workers=1, servers=1),
        ended_at_s=0.0,
        completed=completed,
        tables_bytes=used,
        asked_bytes=asked,
    )


FIFTHS = [past(f"f{i}") for i in range(20)]


def state_of(history: list[PastJob], hosts: str = "hi", gib: int = 100, **plan: object) -> BrainState:
    """A stranger that asks for two servers of 230 GiB, its number of servers fixed, beside a job that runs."""
    new = waits("new")
    servers = new.spec.servers.replace(count=2, memory_bytes=ASKED)
    new.spec = new.spec.replace(
        servers=servers,
        plan=PlanSpec(**plan),  # type: ignore[arg-type]
        on_server_lost="restore",
    )
    state = cluster(runs("other", size(2)), new, hosts=hosts, memory_bytes=gib * GIB)
    state.past = history
    return state


def start(state: BrainState, quotas: dict[str, Budget] | None = None) -> tuple[facts.Size | None, str]:
    wish = Wish(size=size(4, 2, server_bytes=ASKED), step="start", constant="x", detail="first")
    granted, wish = grant_best("new", wish, state, quotas or {})
    return granted.size, wish.detail if granted.left is None else granted.left.detail


def test_a_share_is_a_mean_over_families_in_steps_and_moves_from_one_as_more_are_seen() -> None:
    assert usual_memory_share(FIFTHS) == LEARNED
    assert usual_memory_share(FIFTHS[:3]) == 1 / 2, "as if two more had used all of it: 0.38"
    assert usual_memory_share(FIFTHS[:1] * 9) == 1.0, "a family counts once"
    last = [past(f"f{i}", used=used) for used in (46 * GIB, ASKED // 2) for i in range(20)]
    assert usual_memory_share(last) == 2 / 3, "by its last run"
    assert usual_memory_share([past("f", dataset=name) for name in "abcd"]) == 1 / 2


def test_a_share_tells_of_no_single_family() -> None:
    """One family alone could be read off another tenant's start, to the byte."""
    assert usual_memory_share([]) == 1.0
    assert usual_memory_share(FIFTHS[:2]) == 1.0
    shares = {usual_memory_share([past(f"f{i}", used=gib * GIB) for i in range(20)]) for gib in range(1, 99)}
    assert len(shares) <= 5, "in steps"


def test_a_share_knows_only_what_was_measured_and_is_never_extreme() -> None:
    unknown = [past("f", used=0), past("g", asked=0), past("h", completed=False)]
    assert usual_memory_share([*FIFTHS[:2], *unknown]) == 1.0
    assert usual_memory_share([past(f"f{i}", used=3 * ASKED) for i in range(9)]) == 1.0
    toys = [past(f"f{i}", used=GIB // 16, asked=8 * GIB) for i in range(20)]
    assert usual_memory_share(toys) == 1 / 8, "jobs that hardly store anything say little of one that does"


@pytest.mark.parametrize("hosts", ["hi", "hijklm"], ids=["sum too small", "in many pieces"])
def test_a_stranger_that_no_host_has_room_for_begins_with_what_servers_here_use(hosts: str) -> None:
    got, said = start(state_of(FIFTHS, hosts=hosts))
    assert got is not None
    assert got.shape == size(4, 2, server_bytes=got.server_memory_bytes).shape, "with all of its workers"
    assert got.server_memory_bytes == pytest.approx(USUAL, rel=1e-6)
    assert said.startswith("first; ")
    assert "172 GiB for its servers instead of 460" in said


def test_where_hosts_have_room_it_begins_as_its_user_asks() -> None:
    got, said = start(state_of(FIFTHS, gib=240))
    assert got is not None
    assert (got.server_memory_bytes, said) == (ASKED, "first")


def test_fewer_workers_rather_than_less_memory() -> None:
    """What a server has too little of kills it; workers come as room does."""
    state = state_of(FIFTHS, hosts="hijk", gib=240)  # each has room for two such workers
    wish = Wish(size=size(9, 2, cores=3.0, server_bytes=ASKED), step="start", constant="x", detail="first")
    granted, _ = grant_best("new", wish, state, {})
    assert granted.size is not None
    assert granted.size.server_memory_bytes == ASKED
    assert granted.size.workers < 9


@pytest.mark.parametrize("hosts", ["hijklm", "hijklmnop"], ids=["sum too small", "in many pieces"])
def test_where_even_that_is_too_much_its_servers_share_it(hosts: str) -> None:
    state = state_of(FIFTHS, hosts=hosts, gib=60)
    spec = state.jobs["new"].spec
    state.jobs["new"].spec = spec.replace(servers=spec.servers.replace(count=0, start=2))
    got, _ = start(state)
    assert got is not None
    assert got.servers == 4
    assert got.server_memory_bytes == pytest.approx(USUAL / 2, rel=1e-6)


def test_all_of_its_memory_on_more_servers_rather_than_less() -> None:
    state = state_of(FIFTHS, hosts="hijklmno", gib=120)
    spec = state.jobs["new"].spec
    state.jobs["new"].spec = spec.replace(servers=spec.servers.replace(count=0, start=2))
    got, said = start(state)
    assert got is not None
    assert (got.workers, got.servers, got.server_memory_bytes, said) == (4, 4, ASKED // 2, "first")


@pytest.mark.parametrize(
    ("history", "plan"), [([], {}), (FIFTHS, {"relief": False})], ids=["nothing learned", "limits stay"]
)
def test_it_waits_where_too_little_is_known_or_would_stay(
    history: list[PastJob], plan: dict[str, object]
) -> None:
    got, said = start(state_of(history, hosts="hijk", gib=120, **plan))
    assert got is None
    assert "230 GiB a server" in said


def test_it_waits_where_too_little_would_end_it() -> None:
    """A server that is killed takes its part of the model with it, and such a job ends then."""
    state = state_of(FIFTHS, hosts="hijk", gib=120)
    state.jobs["new"].spec = state.jobs["new"].spec.replace(on_server_lost="fail")
    assert start(state)[0] is None


@pytest.mark.parametrize("completed", [True, False], ids=["used all of it", "failed"])
def test_a_family_is_known_by_its_own_runs(completed: bool) -> None:
    """What others used says nothing of it; nor is one that failed tried with so little again."""
    own = past("train", used=ASKED, dataset="t", completed=completed)
    assert start(state_of([*FIFTHS, own], hosts="hijk", gib=120))[0] is None


def test_it_waits_for_room_that_others_make_already() -> None:
    """In the next round that room is not there yet: to begin with less then would waste what they gave up."""
    other, new = runs("other", size(8).replace(worker_memory_bytes=20 * GIB)), waits("new")
    servers = new.spec.servers.replace(count=2, memory_bytes=50 * GIB)
    new.spec = new.spec.replace(servers=servers, on_server_lost="restore")
    state = cluster(other, new, memory_bytes=250 * GIB)
    state.past = FIFTHS
    wish = Wish(size=size(1, 2, server_bytes=50 * GIB), step="start", constant="x")
    granted, _ = grant_best("new", wish, state, {})
    assert granted.size == wish.size
    assert set(granted.shrinks) == {"other"}
    smaller, _, _ = granted.shrinks["other"]
    assert other.held is not None
    other.change = Change(plan=4, step="scale", before=other.held, after=smaller, predicted=0.0, since_s=0.0)
    granted, _ = grant_best("new", wish, state, {})
    assert granted.size is None
    assert granted.waits_for == ["other"]


@pytest.mark.parametrize("hosts", ["hi", "hijk"])
def test_a_job_that_goes_on_keeps_what_it_had(hosts: str) -> None:
    state = state_of(FIFTHS, hosts=hosts, gib=120)
    state.jobs["new"].released = size(4, 2, server_bytes=ASKED)
    assert start(state)[0] is None


def test_a_cluster_whose_sum_has_too_little_memory_starts_it_too() -> None:
    """Two hosts of 180 GiB: they have less in all than 460, so that it was refused for good."""
    got, said = start(state_of(FIFTHS, gib=180))
    assert got is not None
    assert got.server_memory_bytes == pytest.approx(USUAL, rel=1e-6)
    assert "instead of 460" in said
    got, said = start(state_of([], gib=180))
    assert got is None
    assert "460 GiB" in said


def test_a_quota_of_memory_starts_it_with_what_servers_here_use() -> None:
    def within(gib: int) -> facts.Size | None:
        state = state_of(FIFTHS, hosts="hijk", gib=240, tenant="ads")
        return start(state, {"ads": Budget(32.0, gib * GIB)})[0]

    assert within(480) == size(4, 2, server_bytes=ASKED)
    less = within(200)
    assert less is not None
    assert less.server_memory_bytes < ASKED // 2
    assert within(100) is None


def test_what_no_cluster_of_this_size_could_hold_is_cut_by_memory_before_workers() -> None:
    """From the job to its plan: the first size is cut to what there is at all, before it asks for room."""
    state = state_of(FIFTHS, hosts="hijk", gib=60)
    job = state.jobs["new"]
    job.spec = job.spec.replace(
        workers=job.spec.workers.replace(start=8),
        servers=job.spec.servers.replace(count=4, memory_bytes=115 * GIB),
    )
    first, decision, _ = first_size(job.spec, state)
    assert (first.workers, first.servers) == (8, 4)
    assert first.server_memory_bytes == pytest.approx(USUAL / 2, rel=1e-6)
    assert "172 GiB for its servers instead of 460" in decision.detail
    state.jobs.pop("other")
    wish = round_of(state)["new"]
    assert isinstance(wish, Wish)
    [plan] = settle("new", job, state, StandingModels(state), wish)
    assert isinstance(plan, PlanProposed)
    assert (plan.workers, plan.servers) == (8, 4)
    assert "172 GiB for its servers instead of 460" in plan.reason
    state.past = []
    assert first_size(job.spec, state)[0].workers == 1, "servers of 115 GiB leave room for no more"


def test_a_ring_that_says_what_memory_its_servers_would_have_has_none() -> None:
    ring = waits("ring")
    workers = ring.spec.workers.replace(cores=10.0, max_count=2)
    servers = ring.spec.servers.replace(start=2, max_count=0, memory_bytes=ASKED)
    ring.spec = ring.spec.replace(workers=workers, servers=servers, on_server_lost="restore")
    state = cluster(runs("other", size(2)), ring, hosts="hijk")
    state.past = FIFTHS
    first = first_size(ring.spec, state)[0]
    assert (first.workers, first.servers) == (1, 0)
    granted, _ = grant_best("ring", Wish(size=first, step="start", constant="x"), state, {})
    assert granted.left is not None, "no host has ten cores"


def test_cores_that_are_missing_are_not_mended_by_memory() -> None:
    state = state_of(FIFTHS, gib=240)
    wish = Wish(size=size(4, 2, cores=9.0, server_bytes=ASKED), step="start", constant="x", detail="first")
    granted, _ = grant_best("new", wish, state, {"": Budget(4.0, 1 << 50)})
    assert granted.size is None


def ended(**servers: object) -> PastJob:
    brain = BrainDecider(1)
    brain.decide(TookOver("b", 1), 0.0)
    job = waits("j")
    spec = job.spec.replace(servers=job.spec.servers.replace(**{"memory_bytes": ASKED, **servers}))
    brain.decide(Observed(facts.JobSubmitted(job="j", spec=spec, uid="u"), "x"), 0.0)
    known: KnownJob = brain.state.jobs["j"]
    known.held = facts.Size(workers=1, servers=3, server_memory_bytes=ASKED)
    known.members = [Member("ps", index, 1) for index in range(3)]
    brain.decide(Observed(facts.JobEnded(job="j", state="completed"), "x"), 1.0)
    return brain.state.past[0]


@pytest.mark.parametrize(
    ("servers", "asked"),
    [
        ({"count": 2}, 2 * ASKED),
        ({"start": 1}, ASKED),
        ({}, 0),
        ({"count": 9, "memory_bytes": 1 << 62}, MOST_BYTES),
    ],
    ids=["fixed", "asked", "open", "more than a log can write"],
)
def test_what_a_user_asked_for_its_servers_is_remembered(servers: dict[str, object], asked: int) -> None:
    """Of a job whose size no plan ever chose as well: its memory was measured all the same."""
    assert ended(**servers).asked_bytes == asked
