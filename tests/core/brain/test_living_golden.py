"""Golden scripts of the Brain that lives with its jobs: every path of a plan's life, as people would read it.

ROVER_REWRITE_GOLDEN=1 pytest tests/core/brain/test_living_golden.py
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from life_of_jobs import Life

from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.events import facts, host_facts
from rover_bus.events.identity import HostCapacity, Member
from rover_bus.events.job import DataSpec, JobSpec, PlanSpec, RoleSpec, StopSpec, WorkersSpec
from rover_bus.events.profiles import HostProfile

HERE = Path(__file__).parent
GIB = 1 << 30


Story = Callable[[], Any]


@functools.cache
def lived(story: Story) -> Life:
    """Return the whole life of a story, lived once."""
    life: Life = story()
    return life


def step(workers: int) -> float:
    """The measured input-bound job: 25 steps a second a worker, until two cores are used up."""
    return 128 * {1: 25.0, 2: 49.0, 3: 75.0, 4: 98.0, 5: 120.0, 6: 137.0}.get(workers, 140.0)


def saturating(workers: int) -> float:
    """A job whose one server is what more workers wait for: 1 / throughput = a / workers + b."""
    return 1.0 / (1 / (3600.0 * workers) + 1 / 36000.0)


def grows_from_one_worker() -> Any:
    life = Life()
    life.submit("j", step)
    life.wait(120)
    return life


def takes_back_what_does_not_pay() -> Any:
    """S16: throughput falls after workers were added."""
    life = Life()
    life.submit("j", lambda w: 128 * (25.0 * w if w <= 3 else 40.0))
    life.wait(240)
    return life


def judges_a_persons_trial() -> Any:
    """Storage serves four readers: a fifth worker that a person tries does not pay; what he merely asks for stays."""
    life = Life()
    life.submit("j", lambda w: 3200.0 * min(w, 4), max_workers=4)
    life.wait(60)
    for trial, workers in ((True, 5), (False, 3)):
        life.notice(facts.PlanRequested(job="j", workers=workers, trial=trial, beyond_limits=True, by="ann"))
        life.wait(30)
    return life


def keeps_what_the_user_fixed() -> Any:
    """S21."""
    life = Life()
    life.submit("j", step, workers=3)
    life.wait(60)
    return life


def waits_for_a_person() -> Any:
    life = Life()
    life.submit("j", step, plan={"mode": "approve"})
    life.wait(20)
    plan = next(p for p in life.found(facts.PlanProposed) if p.plan == 2)
    life.apply(plan, by="ann")
    life.wait(14)
    life.notice(facts.PlanRefused(job="j", plan=3, constant="rejected", reason="bob said no"))
    life.wait(60)
    return life


def asks_again_when_nobody_answers() -> Any:
    """A plan that waits is computed anew when its members changed, or when it is old and what it promises is not true any more."""
    life = Life()
    busy = [1.0]
    job = life.submit("j", lambda w: step(w) * busy[0], plan={"mode": "approve"})
    life.wait(20)
    job.members = [m if m.role == "ps" else Member("worker", m.index, 2) for m in job.members]
    life.replace_members("j")
    life.wait(30)
    busy[0] = 0.6
    life.wait(120)
    return life


def heeds_what_people_say_of_the_cluster() -> Any:
    """Quotas and the cluster's mode are facts: they come before what the Brain was started with, and a new one knows them."""
    life = Life(cores=8.0, quotas={"t": Budget(1.0, GIB)})
    life.submit("j", step, plan={"tenant": "t"})
    life.notice(host_facts.QuotaSet(tenant="t", cores=0.8, by="ann"))
    life.wait(60)
    life.notice(host_facts.QuotaSet(tenant="t", by="ann"))
    life.notice(host_facts.ClusterModeSet(mode="observe", by="bob"))
    life.take_over()
    life.wait(60)
    life.said.append(f"mode {life.brain.state.mode}, quotas {life.brain.state.quotas}")
    return life


def only_observes() -> Any:
    life = Life(mode="observe")
    life.submit("j", step)
    life.wait(60)
    return life


def stays_within_a_quota() -> Any:
    """S22: named, and never passed."""
    life = Life(cores=8.0, quotas={"t": Budget(1.3, GIB)})
    life.submit("j", step, plan={"tenant": "t"})
    life.wait(90)
    life.submit("k", step, workers=9, cores=1.0, plan={"tenant": "t"})
    life.wait(10)
    return life


def makes_room_for_a_higher_job() -> Any:
    life = Life(cores=4.0)
    life.submit("low", step, workers=2, cores=1.0)
    life.wait(30)
    life.submit("high", step, workers=3, cores=1.0, priority=5)
    life.wait(30)
    life.end("high")
    life.wait(30)
    return life


def goes_back_to_what_it_was_before_it_made_room() -> Any:
    """Shrunk twice, by two jobs of higher priority, never paused: when both are gone it is again what its user fixed."""
    life = Life(cores=4.0)
    life.submit("low", step, workers=5, cores=0.5)
    life.wait(20)
    life.submit("high", step, workers=3, cores=0.5, priority=5)
    life.wait(20)
    life.submit("higher", step, workers=1, cores=0.5, priority=6)
    life.wait(20)
    life.end("higher")
    life.wait(20)
    life.end("high")
    life.wait(20)
    return life


def goes_back_in_one_step_although_its_size_is_open() -> Any:
    life = Life(cores=2.4)
    life.submit("low", step, cores=0.4, max_workers=4)
    life.wait(160)
    life.submit("high", step, workers=3, cores=0.4, priority=5)
    life.wait(40)
    life.end("high")
    life.wait(20)
    return life


def _two_jobs_on_two_hosts() -> Life:
    """Of two cores each; the second host is `i`."""
    life = Life(cores=2.0)
    life.notice(
        host_facts.HostRegistered(
            host="i", daemon="e", capacity=HostCapacity(cores=2.0, memory_bytes=GIB, cores_bind=True)
        )
    )
    life.submit("low", step, workers=5, cores=0.5)
    life.submit("high", step, workers=2, cores=0.5, priority=5)
    return life


def _three_hosts(cores: float = 4.0) -> Life:
    life = Life(cores=cores)
    for host in ("i", "k"):
        capacity = HostCapacity(cores=cores, memory_bytes=GIB, cores_bind=True)
        life.notice(host_facts.HostRegistered(host=host, daemon=host, capacity=capacity))
    return life


def leaves_a_slow_host_and_places_the_next_job_elsewhere() -> Any:
    """Host `i` slows: it is named, the job's workers leave it, a second job is placed elsewhere. It is used again much later."""
    life = _three_hosts()
    life.submit("one", step, workers=6, cores=0.5)
    life.wait(30)
    life.slow_hosts["i"] = 0.5
    life.wait(40)
    life.submit("two", step, workers=4, cores=0.5)
    life.wait(8)
    life.said.append(f"one runs on {sorted(set(life.jobs['one'].where.values()))}")
    life.said.append(f"two runs on {sorted(set(life.jobs['two'].where.values()))}")
    life.slow_hosts.clear()
    life.wait(5000)
    life.submit("three", step, workers=6, cores=0.1)
    life.wait(1)
    life.said.append(f"three runs on {sorted(set(life.jobs['three'].where.values()))}")
    return life


def leaves_no_host_where_it_would_not_pay() -> Any:
    """The same, 10 % slow; then slow while the others are full, and left once they are not."""
    life = _three_hosts()
    life.submit("one", step, workers=6, cores=0.5)
    life.wait(30)
    life.slow_hosts["i"] = 0.9
    life.wait(60)
    life.submit("full", step, workers=16, cores=0.5)
    life.wait(10)
    life.slow_hosts["i"] = 0.6
    life.wait(60)
    life.end("full")
    life.wait(20)
    return life


def blames_no_host_for_a_job_that_slows_itself() -> Any:
    """All of it runs on one host, so that only its past is there to compare with: it is moved once, and then left alone."""
    life, pace = Life(cores=4.0), [1.0]
    life.submit("j", lambda w: step(w) * pace[0], workers=3, cores=0.5)
    life.wait(30)
    life.notice(
        host_facts.HostRegistered(
            host="i", daemon="i", capacity=HostCapacity(cores=4.0, memory_bytes=GIB, cores_bind=True)
        )
    )
    pace[0] = 0.5
    life.wait(300)
    life.said.append(f"slow hosts: {life.brain.state.slow_hosts}")
    return life


def shrinks_when_a_host_is_lost_and_goes_back_when_it_is_heard_again() -> Any:
    """The master starts the lost members on the host that is left, where there is not room for all."""
    life = _two_jobs_on_two_hosts()
    life.wait(20)
    life.notice(facts.MembersDisplaced(job="low", host="i", reason="silent"))
    life.replace_members("low")
    life.wait(30)
    life.observe(
        HostProfile(window_s=2.0, host="i", cores=2.0, cores_used=0.0, memory_bytes=GIB, memory_used_bytes=0)
    )
    life.wait(30)
    return life


def shrinks_nobody_for_a_process_that_hung_on_a_living_host() -> Any:
    """The job that lost it takes the host for lost; its samples go on. One that falls silent later is lost, and others shrink."""
    life = _two_jobs_on_two_hosts()
    sample = HostProfile(
        window_s=5.0, host="i", cores=2.0, cores_used=0.0, memory_bytes=GIB, memory_used_bytes=0
    )
    for _ in range(4):
        life.wait(5)
        life.observe(sample)
    for _ in range(2):
        life.wait(1)
        life.notice(facts.MembersDisplaced(job="low", host="i", reason="silent"))
        life.wait(4)
        life.said.append(f"{life.now:6.1f} the host is heard")
        life.observe(sample)
    life.notice(facts.MembersDisplaced(job="low", host="i", reason="silent"))
    life.said.append(f"{life.now:6.1f} and never again")
    life.wait(8)
    life.take_over()
    life.wait(14)
    return life


def tells_a_job_that_a_host_of_its_is_not_heard() -> Any:
    """First the standby's host, which nobody else would miss; then, before the job could say where its masters are, the leader's.
    The last host that is heard stands in for both, then nobody. A host that is heard again is told of anew when it is silent again.
    """
    life = Life(cores=4.0)
    for host, cores in (("i", 3.0), ("k", 2.0)):
        capacity = HostCapacity(cores=cores, memory_bytes=GIB, cores_bind=True)
        life.notice(host_facts.HostRegistered(host=host, daemon=host, capacity=capacity))
    life.submit("j", step, workers=2)

    def heard(hosts: str, seconds: int) -> None:
        life.said.append(f"{life.now:6.1f} heard: {hosts or 'nobody'}")
        for second in range(seconds):
            for host in hosts if second % 5 == 0 else "":
                sample = HostProfile(
                    window_s=5.0, host=host, cores=2.0, cores_used=0.0, memory_bytes=GIB, memory_used_bytes=0
                )
                life.observe(sample)
            life.wait(1)

    life.jobs["j"].size, life.host_speaks = (
        None,
        False,
    )  # nobody trains: all that is heard is what is heard here
    for hosts in ("hik", "hk", "k", "", "i", "hik", "hk"):
        heard(hosts, 20)
    life.take_over()
    heard("", 40)  # who was never heard by this Brain may take no samples
    return life


def misses_a_host_that_only_a_former_brain_knew() -> Any:
    """It registered, said how often it samples, and was gone before this Brain began. One that takes no samples is not missed."""
    life = Life(cores=4.0)
    for host, sample_s in (("i", 5.0), ("k", 0.0)):
        capacity = HostCapacity(cores=2.0, memory_bytes=GIB, cores_bind=True)
        life.notice(host_facts.HostRegistered(host=host, daemon=host, capacity=capacity, sample_s=sample_s))
    life.submit("j", step, workers=2)
    life.take_over()
    life.wait(20)
    return life


def makes_room_for_one_more_of_the_same_priority() -> Any:
    """A full cluster: the second job gets its least by the first one's shrinking; the third waits, and is told for what."""
    life = Life(cores=2.3)
    life.submit("first", step, cores=0.5)
    life.wait(60)
    life.submit("second", step, cores=0.5)
    life.wait(60)
    life.submit("third", step, workers=3, cores=0.5)
    life.wait(20)
    return life


def finds_a_straggler_among_two() -> Any:
    """S18: one of two workers becomes five times slower; found within 15 s, replaced when it lasts."""
    life = Life()
    job = life.submit("j", step, workers=2)
    life.wait(40)
    job.slow[1] = 0.2
    life.wait(100)
    return life


def relieves_memory_before_the_kill() -> Any:
    """S10: a table grows towards its limit: one incident, a larger limit, no kill."""
    life = Life()
    job = life.submit("j", step, workers=2, server_memory_bytes=GIB // 2, total=1_200_000)
    job.server_bytes, job.grows_by = 0.2 * GIB, 800.0
    life.wait(170)
    life.said.append(f"killed: {job.killed}, uses {job.server_bytes / GIB:.2f} GiB")
    return life


def lets_the_risk_win() -> Any:
    """S25: two jobs share memory, one is about to run out of it: it goes first, the scores are recorded."""
    life = Life(cores=8.0, memory_bytes=int(1.7 * GIB))
    job = life.submit("grows", step, workers=2, server_memory_bytes=GIB // 2, total=2_000_000)
    job.server_bytes, job.grows_by = 0.2 * GIB, 800.0
    other = life.submit("other", step, workers=2, server_memory_bytes=GIB // 2)
    other.server_bytes = 0.1 * GIB
    life.wait(20)
    life.submit("third", step, server_memory_bytes=GIB // 2)
    life.wait(60)
    return life


def shares_a_full_cluster_with_the_next_run_of_its_family() -> Any:
    """The second run competes for what the first one holds: with the family's model, in the round that its arrival begins."""
    life = Life(cores=4.0)
    life.submit("one", saturating, cores=0.5, max_workers=16, total=40_000_000, input_share=0.0)
    life.wait(150)
    life.submit("two", saturating, cores=0.5, max_workers=16, total=40_000_000, input_share=0.0)
    life.wait(60)
    life.end("one")
    life.wait(90)
    return life


def sees_only_the_kill_without_relief() -> Any:
    """The same job with relief off."""
    life = Life()
    job = life.submit(
        "j", step, workers=2, server_memory_bytes=GIB // 2, total=1_200_000, plan={"relief": False}
    )
    job.server_bytes, job.grows_by = 0.2 * GIB, 800.0
    life.wait(170)
    life.said.append(f"killed: {job.killed}, uses {job.server_bytes / GIB:.2f} GiB")
    return life


def is_away_for_a_minute() -> Any:
    """S26: its next plan names the place in its log from which it went on."""
    life = Life()
    life.submit("j", step)
    life.wait(15)
    life.brain_away = True
    life.wait(60)
    life.take_over()
    life.wait(40)
    plans = [
        f"plan {p.plan} resumed_from={p.resumed_from} term={p.brain_term}"
        for p in life.found(facts.PlanProposed)
    ]
    life.said += plans
    return life


def gives_running_workers_the_cores_that_they_use_up() -> Any:
    """Core shares change on running members: doubled while that pays, taken back when it does not."""
    life = Life(cores=16.0)
    job = life.submit("j", step, workers=2, cores=1.0, max_cores=8.0, input_share=0.0)
    job.needs_cores = 2.6
    life.wait(240)
    return life


def gives_half_as_much_again_where_twice_finds_no_room() -> Any:
    """Two workers use up half a core each, may have a whole one, and share two cores with their server; then these are full."""
    life = Life(cores=2.0)
    job = life.submit("j", step, workers=2, cores=0.5, max_cores=1.0, input_share=0.0)
    job.needs_cores = 1.5
    life.wait(60)
    return life


def says_that_the_quota_has_no_room_for_a_second_worker() -> Any:
    """It cannot be probed, so nothing is known of it but that: a person who asks why it stays small must be told."""
    life = Life(cores=4.0, quotas={"ads": Budget(0.9, float(64 * GIB))})
    life.submit("j", step, cores=0.4, max_workers=3, plan={"tenant": "ads"})
    life.wait(60)
    return life


def says_that_cores_are_used_up_and_none_are_free() -> Any:
    life = Life(cores=1.2)
    job = life.submit("j", step, workers=2, cores=0.5, max_cores=1.0, input_share=0.0)
    job.needs_cores = 1.5
    life.wait(60)
    return life


def takes_back_cores_that_bring_nothing() -> Any:
    """Workers that keep every core busy and are not faster for it (they spin): one try, taken back, not tried again."""
    life = Life(cores=16.0)
    job = life.submit("j", step, workers=2, cores=1.0, max_cores=8.0, input_share=0.0)
    job.spins = True
    life.wait(120)
    return life


def adds_a_server_when_the_only_one_is_busy() -> Any:
    """Servers are varied once they hold the workers back; what does not pay is taken back."""
    life = Life(cores=4.0)
    job = life.submit("j", lambda w: 4000.0 * w, servers=0, max_workers=8, input_share=0.0)
    job.a_server = 9000.0
    life.wait(300)
    return life


def keeps_the_servers_whose_rollout_failed() -> Any:
    """S14: the new server never starts: what is there is held, and it is not asked for again at once."""
    life = Life(cores=4.0)
    job = life.submit("j", lambda w: 4000.0 * w, servers=0, max_workers=4, input_share=0.0)
    job.a_server, job.rollouts_fail = 9000.0, True
    life.wait(120)
    return life


def blames_no_size_for_what_slows_them_all() -> Any:
    """The host becomes busy after the probes: every size is slower, and the calm past of a smaller one does not look better."""
    life = Life()
    busy = [1.0]
    life.submit("j", lambda w: step(w) * busy[0], max_workers=3)
    life.wait(40)
    for _ in range(40):
        busy[0] = max(busy[0] * 0.96, 0.3)
        life.wait(4)
    return life


def moves_the_hot_slots_of_one_server() -> Any:
    """S12: one server is hot, the others idle: its slots move, nobody is scaled up; asked again only after a while."""
    life = Life(cores=8.0)
    job = life.submit("j", step, workers=2, servers=3)
    life.wait(20)
    job.server_cores = {1: 0.97}
    life.wait(50)
    job.server_cores = {0: 0.97, 1: 0.97, 2: 0.95}
    life.wait(40)
    return life


def cools_servers_that_are_all_hot() -> Any:
    """Every server is hot, so no slot has a better place: one server more, then fewer workers; what does not pay is taken back."""
    life = Life(cores=8.0)
    job = life.submit("j", lambda w: 4000.0 * w, workers=4, servers=0, total=4_000_000)
    job.a_server = 8500.0
    job.input_share = 0.5
    life.wait(200)
    return life


def stops_at_its_target() -> Any:
    life = Life()
    job = life.submit("j", step, workers=2, stop=StopSpec(loss=0.4))
    for second in range(160):
        job.loss = 1 / (0.01 * (second + 1) + 2.0) + 0.1
        life.wait(1)
    return life


def starts_where_a_similar_job_ended() -> Any:
    life = Life()
    life.submit("one", step, labels={"user": "ann"})
    life.wait(60)
    life.end("one")
    life.submit("two", step, labels={"user": "ann"})
    life.wait(40)
    return life


def takes_back_a_probe_downwards_that_is_followed_by_unrest() -> Any:
    """Three workers on a full host are probed at two; then the machine becomes noisy, and no size can be told from another."""
    life, noise = Life(cores=2.0), [1.0]
    life.submit("one", step, labels={"user": "ann", "family": "former"}, max_workers=3)
    life.wait(60)
    life.end("one")
    plan = {"cooldown_s": 60.0}
    life.submit(
        "two", lambda w: step(w) * noise[0], labels={"user": "ann"}, max_workers=3, plan=plan, input_share=0.0
    )
    for at in range(60):
        life.wait(4)
        two = life.brain.state.jobs["two"]
        if two.probe is not None:
            noise[0] = (1.0, 0.3)[at % 2]
    return life


def waits_until_a_new_worker_is_live() -> Any:
    """A change whose members never come is taken back."""
    life = Life()
    job = life.submit("j", step)
    life.wait(8)
    job.obeys = False
    life.wait(4)
    job.obeys = True
    plan = next(p for p in life.found(facts.PlanProposed) if p.plan == 2)
    life.apply(plan)
    job.live_at = 1e9
    job.members = job.members[:2]
    life.wait(90)
    return life


def takes_back_what_cannot_start() -> Any:
    """At the platform's word, by its reason; what is said of another run, or of a member that is there, changes nothing."""
    life = Life()
    job = life.submit("j", step)
    life.wait(8)
    job.obeys = False
    life.wait(4)
    plan = next(p for p in life.found(facts.PlanProposed) if p.plan == 2)
    life.apply(plan)
    job.live_at = 1e9
    said = {"host": "h", "job": "j", "reason": "Unschedulable", "why": "0/1 nodes are available"}
    life.notice(host_facts.HostMemberStalled(**said, uid="another", member=Member("worker", 1, 1)))
    life.notice(host_facts.HostMemberStalled(**said, uid=f"{1:012x}", member=Member("worker", 7, 1)))
    job.obeys = True
    life.notice(host_facts.HostMemberStalled(**said, uid=f"{1:012x}", member=Member("worker", 1, 1)))
    life.wait(4)
    return life


def relieves_memory_before_there_is_a_forecast() -> Any:
    """A young server would be killed before its fourth sample, the least that a forecast needs: its use alone must do."""
    life = Life()
    job = life.submit("j", step, workers=2, server_memory_bytes=GIB, total=1_000_000)
    job.server_bytes, job.grows_by = 0.62 * GIB, 0.12 * GIB / 25_000
    life.wait(40)
    assert not job.killed
    return life


def leaves_a_full_server_that_does_not_grow() -> Any:
    life = Life()
    job = life.submit("j", step, workers=2, server_memory_bytes=GIB, total=1_000_000)
    job.server_bytes = 0.9 * GIB
    life.wait(40)
    return life


def is_patient_where_members_start_slowly() -> Any:
    """A plan is not judged before its members arrived: the first ones took two minutes, and the next one takes three."""
    life = Life()
    job = life.submit("j", step)
    job.live_at = 120.0
    life.wait(124)
    job.starts_s = 180.0
    life.wait(250)
    return life


def learns_while_its_last_worker_is_on_its_way() -> Any:
    """Three workers of four train for a minute before the last one comes: two sizes are known once it is there."""
    life = Life(cores=8.0)
    spec = JobSpec(
        name="j",
        program=["train"],
        data=DataSpec(train="t", batch_size=100),
        workers=WorkersSpec(start=4, max_count=16, cores=0.5),
        servers=RoleSpec(count=1),
        plan=PlanSpec(window_s=4.0),
    )
    job = life.hand_in(spec, step)
    job.late, job.live_at = 1, 60.0
    life.wait(75)
    return life


def counts_its_patience_from_the_answer_of_a_person() -> Any:
    """Ann says yes after two minutes, and the new worker takes ten seconds: the plan is as young as her answer."""
    life = Life()
    job = life.submit("j", step, plan={"mode": "approve"})
    life.wait(130)
    job.starts_s = 10.0
    life.apply(next(p for p in life.found(facts.PlanProposed) if p.plan == 2), by="ann")
    life.wait(30)
    return life


def ends_a_job_that_waits_for_room() -> Any:
    """A job that was never planned has no master; cancelled, it gets one and nothing else, so that the job can end."""
    life = Life(cores=2.0)
    life.submit("first", step, workers=1, cores=1.0)
    life.wait(2)
    life.submit("j", step, workers=2, cores=8.0)
    life.wait(2)
    life.notice(facts.JobStopRequested(job="j", mode="cancel", by="ann"))
    life.wait(2)
    return life


STORIES: tuple[Story, ...] = (
    ends_a_job_that_waits_for_room,
    grows_from_one_worker,
    takes_back_what_does_not_pay,
    judges_a_persons_trial,
    keeps_what_the_user_fixed,
    waits_for_a_person,
    asks_again_when_nobody_answers,
    heeds_what_people_say_of_the_cluster,
    only_observes,
    stays_within_a_quota,
    makes_room_for_a_higher_job,
    goes_back_to_what_it_was_before_it_made_room,
    goes_back_in_one_step_although_its_size_is_open,
    shrinks_when_a_host_is_lost_and_goes_back_when_it_is_heard_again,
    shrinks_nobody_for_a_process_that_hung_on_a_living_host,
    tells_a_job_that_a_host_of_its_is_not_heard,
    misses_a_host_that_only_a_former_brain_knew,
    makes_room_for_one_more_of_the_same_priority,
    finds_a_straggler_among_two,
    relieves_memory_before_the_kill,
    lets_the_risk_win,
    shares_a_full_cluster_with_the_next_run_of_its_family,
    sees_only_the_kill_without_relief,
    is_away_for_a_minute,
    gives_running_workers_the_cores_that_they_use_up,
    gives_half_as_much_again_where_twice_finds_no_room,
    says_that_cores_are_used_up_and_none_are_free,
    says_that_the_quota_has_no_room_for_a_second_worker,
    takes_back_cores_that_bring_nothing,
    adds_a_server_when_the_only_one_is_busy,
    keeps_the_servers_whose_rollout_failed,
    blames_no_size_for_what_slows_them_all,
    moves_the_hot_slots_of_one_server,
    cools_servers_that_are_all_hot,
    stops_at_its_target,
    starts_where_a_similar_job_ended,
    takes_back_a_probe_downwards_that_is_followed_by_unrest,
    waits_until_a_new_worker_is_live,
    takes_back_what_cannot_start,
    relieves_memory_before_there_is_a_forecast,
    leaves_a_full_server_that_does_not_grow,
    leaves_a_slow_host_and_places_the_next_job_elsewhere,
    leaves_no_host_where_it_would_not_pay,
    blames_no_host_for_a_job_that_slows_itself,
    is_patient_where_members_start_slowly,
    learns_while_its_last_worker_is_on_its_way,
    counts_its_patience_from_the_answer_of_a_person,
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_life_is_told_as_it_was_and_its_log_gives_the_same_state(story: Story) -> None:
    path = HERE / "golden" / f"life_{story.__name__}.txt"
    life = lived(story)
    told = (
        "\n".join([*life.said, f"the log of {len(life.log)} records gives the same state: {life.same()}"])
        + "\n"
    )
    if os.environ.get("ROVER_REWRITE_GOLDEN"):
        path.write_text(told)
    assert told == path.read_text()
    assert life.same()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_no_prediction_lies_outside_its_own_interval(story: Story) -> None:
    outside = [
        (plan.plan, plan.predicted_low_90, plan.predicted, plan.predicted_high_90)
        for plan in lived(story).found(facts.PlanProposed)
        if plan.predicted_high_90
        and not 0 <= plan.predicted_low_90 <= plan.predicted <= plan.predicted_high_90
    ]
    assert not outside
