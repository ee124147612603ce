"""A picture takes each fact in once: rows, plans, processes and counts say together what single commands would read."""

from __future__ import annotations

import asyncio

from told import told as published

from rover_bus.cli.commands.top import draw_members
from rover_bus.cli.views.picture import RATE_MEMORY_S, Picture
from rover_bus.events import facts, host_facts, subjects
from rover_bus.events.bus import Stored
from rover_bus.events.codec import encode
from rover_bus.events.data_facts import LedgerRewound
from rover_bus.events.fact import Fact, JobFact
from rover_bus.events.identity import DesiredMember, Exit, Member, Process
from rover_bus.events.job import DataSpec, JobSpec
from rover_bus.events.profiles import HostProfile, ProcessSample, WorkerProfile

FIRST, SECOND = Member("worker", 0, 1), Member("worker", 1, 1)
SPEC = JobSpec(name="a", program=["python"], data=DataSpec(train="t.csv", epochs=2))
LIFE: list[Fact] = [
    facts.JobSubmitted(job="a", spec=SPEC, uid="0000000000a1"),
    facts.PlanProposed(job="a", plan=1, workers=2, servers=1, predicted=90.0),
    facts.MembersDesired(
        job="a",
        plan=1,
        members=[DesiredMember(member=each, host="h", command=["x"]) for each in (FIRST, SECOND)],
    ),
    host_facts.HostStarted(host="h", job="a", process=Process(member=FIRST, pid=7, host="h")),
    host_facts.HostStarted(host="h", job="a", process=Process(member=SECOND, pid=8, host="h")),
    facts.PlanApplied(job="a", plan=1, workers=2, servers=1),
    facts.JobReported(job="a", epoch=0, committed=40, dead_lettered=1, total=100, samples_per_second=20.0),
    facts.MemberLost(job="a", member=SECOND, reason="killed"),
    facts.JobPaused(job="a"),
]


class Told:
    """A picture, and what it is told, in the order of a stream."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.picture = Picture(lambda: self.now_s)
        self.at = 0

    def take(self, *happened: Fact) -> None:
        for fact in happened:
            self.at += 1
            if isinstance(fact, JobFact):
                where, (body, headers) = subjects.job_fact(fact.job, fact.kind()), published(fact, self.at)
            else:
                assert isinstance(fact, host_facts.HostFact)
                where, body, headers = subjects.host_fact(fact.host, fact.kind()), encode(fact), {}
            self.picture.take_fact(Stored(self.at, where, body, headers, time_ms=1000 * self.at))

    def sample(self, member: Member, samples: int, memory_bytes: int = 0) -> None:
        profile = WorkerProfile(
            job="a",
            member=member,
            samples=samples,
            batches=1,
            window_s=2.0,
            cores_used=0.5,
            memory_bytes=memory_bytes,
        )
        where = subjects.member_profile("a", "worker", member.index)
        self.picture.take_sample(Stored(1, where, encode(profile)))

    def host(self, *processes: ProcessSample) -> None:
        profile = HostProfile(
            host="h",
            window_s=2.0,
            cores=2.0,
            cores_used=1.0,
            memory_bytes=1 << 30,
            memory_used_bytes=1 << 29,
            processes=list(processes),
        )
        self.picture.take_sample(Stored(2, subjects.host_profile("h"), encode(profile)))


def test_one_pass_over_the_facts_gives_row_plans_processes_and_counts() -> None:
    told = Told()
    told.take(*LIFE)
    known = told.picture.jobs["a"]
    assert (known.state, known.row.committed, known.row.workers, known.row.epochs) == ("paused", 40, 2, 2)
    assert [(view.number, view.state) for view in known.plans.by_number.values()] == [(1, "applied")]
    assert [row["pid"] for row in known.members.rows()] == [7]
    assert known.occurrences.members == {"worker": 2, "ps": 0}
    assert (known.occurrences.lost["worker"], known.occurrences.plans["applied"]) == (1, 1)
    assert (told.picture.sequence, told.picture.refused) == (len(LIFE), 0)


def test_a_job_that_is_forgotten_is_gone_and_a_new_one_of_its_name_begins_from_nothing() -> None:
    told = Told()
    told.take(
        *LIFE, facts.JobEnded(job="a", state="completed"), facts.JobForgotten(job="a", uid="0000000000a1")
    )
    assert told.picture.jobs == {}
    told.take(facts.JobReported(job="a", epoch=0, committed=1, dead_lettered=0, total=2))
    assert told.picture.jobs == {}
    told.take(facts.JobSubmitted(job="a", spec=SPEC, uid="0000000000a2"))
    assert told.picture.jobs["a"].row.committed == 0


def test_a_job_is_as_fast_as_its_workers_were_lately_and_one_that_ended_is_not_fast() -> None:
    told = Told()
    told.take(*LIFE[:1])
    told.sample(FIRST, 100)
    told.now_s = RATE_MEMORY_S / 2
    told.sample(SECOND, 50)
    assert told.picture.rate("a") == 75.0
    told.now_s += RATE_MEMORY_S / 2 + 1
    assert told.picture.rate("a") == 25.0
    told.take(facts.JobEnded(job="a", state="completed"))
    told.sample(FIRST, 100)
    assert told.picture.rate("a") == 0.0


def test_what_follows_facts_is_woken_by_each_and_finds_it_at_hand() -> None:
    async def run() -> list[int]:
        told = Told()
        told.take(*LIFE[:2])
        waiting = asyncio.create_task(told.picture.beyond(2))
        await asyncio.sleep(0)
        assert not waiting.done()
        told.take(LedgerRewound(job="a", generation=1, epoch=0, committed_batches=0, reason="lost"))
        async with asyncio.timeout(5):
            await waiting
        assert told.picture.jobs["a"].occurrences.rewinds == 1
        return [each.stored.sequence for each in told.picture.recent]

    assert asyncio.run(run()) == [1, 2, 3]


def test_a_number_that_is_used_again_after_a_power_cut_hides_no_fact() -> None:
    told = Told()
    told.take(*LIFE[:4])
    told.at = 2
    told.take(facts.JobReported(job="a", epoch=0, committed=7, dead_lettered=0, total=100))
    assert (told.picture.sequence, [each.stored.sequence for each in told.picture.recent]) == (3, [3])
    assert told.picture.jobs["a"].row.committed == 7


def test_a_member_of_a_job_that_ends_is_known_by_its_host_alone() -> None:
    told = Told()
    told.take(
        *LIFE[:5], host_facts.HostExited(host="h", job="a", member=FIRST, exit=Exit(reason="completed"))
    )
    assert [row["pid"] for row in told.picture.jobs["a"].members.rows()] == [8]


def test_members_that_no_host_measures_are_shown_by_their_own_word() -> None:
    """As in pods; where a host says something of a member, that counts."""
    told = Told()
    told.take(*LIFE[:6])
    told.sample(FIRST, 10, memory_bytes=3 << 20)
    told.sample(SECOND, 10, memory_bytes=5 << 20)
    told.host(ProcessSample(job="a", member=FIRST, pid=7, cores_used=0.75, memory_bytes=9 << 20))
    shown = {str(each.member): each.memory_bytes >> 20 for each in told.picture.processes()["a"]}
    assert shown == {"worker-0.1": 9, "worker-1.1": 5}
    columns = [list(column.cells) for column in draw_members(told.picture).columns]
    rows = list(zip(*columns, strict=True))[1:]
    assert rows == [("h", "a", "worker-0.1", "7", "0.75", "9"), ("h", "a", "worker-1.1", "-", "0.50", "5")]
