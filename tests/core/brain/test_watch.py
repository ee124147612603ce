"""What counts in a window, and what does not: samples from before a change, a life's warm-up, workers that say nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.granting import grant
from rover_bus.brain.log import WindowClosed
from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.brain.watch import JobSamples
from rover_bus.brain.wishes import Wish
from rover_bus.events.facts import JobReported, Size
from rover_bus.events.identity import HostCapacity, Member
from rover_bus.events.job import DataSpec, JobSpec, PlanSpec, WorkersSpec
from rover_bus.events.profiles import HostProfile, ProcessSample, ServerProfile, WorkerProfile

SPEC = JobSpec(name="j", program=["t"], data=DataSpec(train="t"), plan=PlanSpec(window_s=4.0))
WORKERS = [Member("worker", 0, 1), Member("worker", 1, 1)]


def job(members: list[Member]) -> KnownJob:
    return KnownJob("u", SPEC, members=members)


def sample(member: Member, samples: int, window_s: float = 2.0, **more: Any) -> WorkerProfile:
    return WorkerProfile(
        window_s=window_s, job="j", member=member, samples=samples, batches=1, read_s=0.5, **more
    )


def heard(watch: JobSamples, member: Member, *at: float, samples: int = 200, **more: Any) -> None:
    for second in at:
        watch.observe(sample(member, samples, **more), second)


def using(cores: float, *members: Member) -> HostProfile:
    """What a host says of these members of the job."""
    return HostProfile(
        window_s=2.0,
        host="h",
        cores=2.0,
        cores_used=1.0,
        memory_bytes=1,
        memory_used_bytes=1,
        processes=[
            ProcessSample(job="j", member=each, pid=1, cores_used=cores, memory_bytes=9) for each in members
        ],
    )


def closed(watch: JobSamples, members: list[Member], at: float) -> WindowClosed | None:
    return watch.close("j", job(members), at)


def test_a_window_holds_the_rates_of_every_worker_that_was_wanted() -> None:
    watch = JobSamples()
    watch.restart("j", 0.0)
    for member in WORKERS:
        heard(watch, member, 0.5, 2.5, 4.0)
    window = closed(watch, WORKERS, 4.0)
    assert window is not None
    assert window.clean
    assert [(worker.index, worker.rate) for worker in window.workers] == [(0, 100.0), (1, 100.0)]
    assert window.batch_s == 2.0, "each sample is of one batch"


def test_a_worker_that_trains_until_its_successor_comes_counts_and_is_not_its_successors_pace() -> None:
    watch = JobSamples()
    watch.restart("j", 0.0)
    for member in WORKERS:
        heard(watch, member, 0.5, 2.5, 4.0, 6.0, 8.0)
    known = job([WORKERS[0], Member("worker", 1, 2)])
    known.former = [(WORKERS[1], "h")]
    window = watch.close("j", known, 8.0)
    assert window is not None
    assert not window.clean
    assert [
        (worker.incarnation, worker.rate, worker.pace < 0, worker.own < 0) for worker in window.workers
    ] == [
        (1, 100.0, False, False),
        (1, 100.0, True, True),
    ]


@pytest.mark.parametrize(("grows", "total"), [(False, 1000), (True, 0)])
def test_what_a_stream_has_assigned_so_far_is_no_total(grows: bool, total: int) -> None:
    watch = JobSamples()
    watch.restart("j", 0.0)
    heard(watch, WORKERS[0], 0.5, 2.5, 4.0)
    report = JobReported(
        job="j", epoch=0, committed=999, dead_lettered=0, total=1000, total_grows=grows, position=(7, 0)
    )
    watch.report(report, 4.0)
    window = closed(watch, WORKERS[:1], 4.0)
    assert window is not None
    assert (window.committed, window.total) == (999, total)


def test_the_first_sample_of_a_life_is_its_warm_up_and_does_not_count() -> None:
    watch = JobSamples()
    watch.restart("j", 0.0)
    heard(watch, WORKERS[0], 2.0, samples=9999)
    heard(watch, WORKERS[0], 4.0)
    window = closed(watch, WORKERS[:1], 4.0)
    assert window is not None
    assert window.workers[0].rate == 100.0


def test_a_sample_that_began_before_a_change_says_nothing_about_the_time_after_it() -> None:
    watch = JobSamples()
    watch.restart("j", 0.0)
    heard(watch, WORKERS[0], 1.0, 3.0)
    watch.restart("j", 4.5)
    heard(watch, WORKERS[0], 5.0, samples=9999)  # covers 3 to 5
    heard(watch, WORKERS[0], 7.0, 9.0)
    window = closed(watch, WORKERS[:1], 9.0)
    assert window is not None
    assert window.workers[0].rate == 100.0


def test_a_window_waits_for_the_silent_and_is_then_closed_as_unclean() -> None:
    watch = JobSamples()
    watch.restart("j", 0.0)
    heard(watch, WORKERS[0], 0.5, 2.5, 4.5, 6.5)
    heard(watch, WORKERS[1], 0.5)  # its first word, and no other
    assert closed(watch, WORKERS, 5.0) is None
    window = closed(watch, WORKERS, 8.0)
    assert window is not None
    assert not window.clean
    assert [worker.index for worker in window.workers] == [0]


def test_who_waits_for_leases_is_not_slow() -> None:
    watch = JobSamples()
    watch.restart("j", 0.0)
    heard(watch, WORKERS[0], 0.5, 2.5, 4.0, samples=50, wait_s=1.5)
    window = closed(watch, WORKERS[:1], 4.0)
    assert window is not None
    assert (window.workers[0].rate, window.workers[0].pace) == (25.0, 100.0)


def test_a_servers_own_word_on_its_tables_comes_before_what_its_host_sees_of_the_process() -> None:
    watch = JobSamples()
    watch.restart("j", 0.0)
    heard(watch, WORKERS[0], 0.5, 2.5, 4.5)
    server = Member("ps", 0, 1)
    watch.observe_host(using(1.4, server), 4.5)
    watch.observe_server(
        ServerProfile(window_s=2.0, job="j", member=server, pulls=1, pushes=1, ignored=0, busy_s=1.8)
    )
    window = closed(watch, WORKERS[:1], 5.0)
    assert window is not None
    assert window.server_cores == {"ps-0": 0.9}
    assert window.server_bytes == {"ps-0": 9}


def test_what_members_say_that_they_use_counts_until_their_host_says_it() -> None:
    watch = JobSamples()
    server = Member("ps", 0, 1)

    def closed_with(host_cores: float | None) -> tuple[dict[str, int], dict[str, float]]:
        watch.restart("j", 0.0)
        heard(watch, WORKERS[0], 0.5, 2.5, 4.5, cores_used=0.5, memory_bytes=5)
        if host_cores is not None:
            watch.observe_host(using(host_cores, server, WORKERS[0]), 4.5)
        watch.observe_server(
            ServerProfile(
                window_s=2.0,
                job="j",
                member=server,
                pulls=1,
                pushes=1,
                ignored=0,
                cores_used=0.25,
                memory_bytes=7,
            )
        )
        window = closed(watch, WORKERS[:1], 5.0)
        assert window is not None
        return window.server_bytes, window.cores_used

    assert closed_with(None) == ({"ps-0": 7}, {"worker": 0.5, "ps": 0.25})
    closed_with(0.75)  # in which the worker's own word came first
    assert closed_with(0.75) == ({"ps-0": 9}, {"worker": 0.75, "ps": 0.75})
    assert closed_with(None) == ({}, {}), "a host that falls silent is missed, and not stood in for"


def test_what_members_use_in_bursts_is_kept_where_it_was_measured() -> None:
    watch = JobSamples()

    def closed_with(*host_peaks: float) -> dict[str, float]:
        watch.restart("j", 0.0)
        heard(watch, WORKERS[0], 0.5, 2.5, 4.5, cores_used=0.5, memory_bytes=5, cores_peak=1.5)
        for peak in host_peaks:
            said = using(0.75, WORKERS[0])
            processes = [msgspec.structs.replace(each, cores_peak=peak) for each in said.processes]
            watch.observe_host(msgspec.structs.replace(said, processes=processes), 4.5)
        window = closed(watch, WORKERS[:1], 5.0)
        assert window is not None
        return window.cores_peak

    assert closed_with() == {"worker": 1.5}, "by its own word, in a pod"
    closed_with(2.5)  # in which the worker's own word came first
    assert closed_with(2.5, 3.5) == {"worker": 3.0}
    assert closed_with(0.0) == {}, "a host without control groups: cores bind nothing there"


def test_what_a_server_needs_is_what_it_says_that_it_uses_and_that_its_next_cuts_take() -> None:
    """No host knows the latter, and what it sees is of another moment."""
    watch = JobSamples()
    watch.restart("j", 0.0)
    heard(watch, WORKERS[0], 0.5, 2.5, 4.5)
    server = Member("ps", 0, 1)
    watch.observe_host(using(1.4, server), 4.5)
    said = ServerProfile(
        window_s=2.0, job="j", member=server, pulls=1, pushes=1, ignored=0, memory_bytes=7, unstaged_bytes=20
    )
    watch.observe_server(said)
    window = closed(watch, WORKERS[:1], 5.0)
    assert window is not None
    assert (window.server_bytes, window.server_needs) == ({"ps-0": 9}, {"ps-0": 27})


@given(
    cores=st.floats(1.0, 16.0),
    sizes=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=5),
    wanted=st.integers(1, 12),
    priority=st.integers(0, 3),
)
def test_what_is_granted_never_exceeds_the_cluster_once_the_named_shrinks_are_done(
    cores: float, sizes: list[tuple[int, int]], wanted: int, priority: int
) -> None:
    state = BrainState(hosts={"h": HostCapacity(cores=cores, memory_bytes=1 << 30)})
    for number, (workers, level) in enumerate(sizes):
        spec = SPEC.replace(name=f"j{number}", priority=level, workers=WorkersSpec(cores=1.0))
        held = Size(workers=workers, servers=1, worker_cores=1.0)
        state.jobs[f"j{number}"] = KnownJob("u", spec, plan=1, held=held)
    state.jobs["new"] = KnownJob("u", SPEC.replace(name="new", priority=priority))
    wish = Wish(size=Size(workers=wanted, servers=1, worker_cores=1.0), step="start", constant="cold_start")
    given_ = grant("new", wish, state, {})
    if given_.size is None:
        return
    used = state.jobs["new"].charge(given_.size).cores
    for name, known in state.jobs.items():
        if known.held is not None:
            size = given_.shrinks[name][0] if name in given_.shrinks else known.held
            below, equal = known.spec.priority < priority, known.spec.priority == priority
            assert below or name not in given_.shrinks or (equal and size.workers >= 1)
            assert size.servers == known.held.servers
            used += known.charge(size).cores
    assert given_.size.workers >= 1
    assert used <= cores + 1e-6


def test_a_tenants_quota_is_named_when_it_stands_in_the_way() -> None:
    state = BrainState(hosts={"h": HostCapacity(cores=64.0, memory_bytes=1 << 30)})
    state.jobs["a"] = KnownJob("u", SPEC.replace(plan=PlanSpec(tenant="t")))
    wish = Wish(size=Size(workers=4, servers=1, worker_cores=1.0), step="start", constant="cold_start")
    small = grant("a", wish, state, {"t": Budget(0.5, 1e12)})
    assert small.size is None
    assert small.left is not None
    assert small.left.constant == "quota_exceeded"
    part = grant("a", wish, state, {"t": Budget(2.5, 1e12)})
    assert part.size is not None
    assert part.size.workers == 2


@pytest.mark.parametrize("record", ["job", "state"])
def test_what_a_job_is_survives_its_snapshot(record: str) -> None:
    import msgspec

    state = BrainState(jobs={"j": job(WORKERS)}) if record == "state" else job(WORKERS)
    body = msgspec.msgpack.encode(state)
    assert msgspec.msgpack.encode(msgspec.msgpack.decode(body, type=type(state))) == body


def host_sample(host: str, window_s: float) -> HostProfile:
    return HostProfile(
        window_s=window_s, host=host, cores=2.0, cores_used=0.0, memory_bytes=1, memory_used_bytes=0
    )


def test_a_host_is_silent_when_two_of_its_samples_are_missing() -> None:
    watch = JobSamples()
    watch.observe_host(host_sample("h", 1.0), 1.0)
    assert not watch.is_silent("h", 11.0, {})  # its first sample covers less than the others
    watch.observe_host(host_sample("h", 2.0), 6.0)
    assert not watch.is_silent("h", 10.0, {})
    assert watch.is_silent("h", 10.1, {})


def test_a_host_that_was_never_heard_is_waited_for() -> None:
    watch = JobSamples()
    assert not watch.is_silent("h", 50.0, {})
    assert not watch.is_silent("h", 60.0, {})
    assert watch.is_silent("h", 60.1, {})


def test_no_host_is_silent_while_nobody_can_be_heard_nor_for_what_was_missed_then() -> None:
    watch = JobSamples()
    watch.observe_host(host_sample("h", 5.0), 1.0)
    watch.lose_bus()
    assert not watch.is_silent("h", 60.0, {})
    watch.regain_bus(60.5)
    assert not watch.unheard(61.0, {"h": 5.0})
    assert not watch.is_silent("h", 61.0, {})
    assert watch.is_silent("h", 72.0, {})


def test_a_host_that_said_how_often_it_samples_is_missed_though_it_was_never_heard() -> None:
    watch = JobSamples()
    assert watch.unheard(50.0, {"h": 5.0}) == []
    assert watch.unheard(65.0, {"h": 5.0}) == []
    assert watch.unheard(65.1, {"h": 5.0}) == ["h"]
    assert watch.unheard(999.0, {}) == []  # one that did not say so may take none


def test_a_host_that_is_expected_counts_from_its_last_word_and_not_while_nobody_can_be_heard() -> None:
    watch = JobSamples()
    watch.unheard(0.0, {"h": 5.0})
    watch.expect_again("h", 10.0)
    assert watch.unheard(25.0, {"h": 5.0}) == []
    watch.lose_bus()
    assert watch.unheard(60.0, {"h": 5.0}) == []
    watch.regain_bus(60.0)
    assert watch.unheard(75.0, {"h": 5.0}) == []
    assert watch.unheard(75.1, {"h": 5.0}) == ["h"]
    watch.observe_host(host_sample("h", 5.0), 76.0)
    assert watch.unheard(77.0, {"h": 5.0}) == []
    watch.forget_host("h")
    assert watch.unheard(99.0, {}) == []


def test_a_host_that_samples_seldom_is_not_missed_after_its_first_sample() -> None:
    """It comes a second after the daemon's start and covers as much; the next one comes when the daemon said."""
    watch = JobSamples()
    watch.observe_host(host_sample("h", 1.0), 1.0)
    assert watch.unheard(181.0, {"h": 60.0}) == []
    assert not watch.is_silent("h", 121.0, {"h": 60.0})
    assert watch.unheard(181.1, {"h": 60.0}) == ["h"]
    assert watch.is_silent("h", 121.1, {"h": 60.0})
