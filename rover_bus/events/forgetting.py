"""Forgetting an ended job: everything that the broker holds of it goes, in an order that any interruption leaves repeatable.

Used by `rover forget`, by the Brain's retention, and by the keeper (purging.py) for a tenant's people, who may purge nothing.
First what is large goes (the log, then facts). Then one small fact is stored, `job.forgotten`, which stays in place of all of
them: daemons that are away remove their files when they are back. Last goes what says that the job was there. A store that is
full is no obstacle: what is purged first makes room for the fact.
"""

from __future__ import annotations

from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.events.checkpoint_facts import CHECKPOINT_FACTS
from rover_bus.events.codec import decode, encode
from rover_bus.events.envelope import Envelope
from rover_bus.events.errors import BusError
from rover_bus.events.facts import FACTS as FACT_TYPES
from rover_bus.events.facts import JobEnded, JobFact, JobForgotten, JobSubmitted
from rover_bus.events.purge_requests import ForgetRequest, PurgeReply
from rover_bus.events.served import served
from rover_bus.events.streams import FACTS, LEADERS, LOG, PROFILES, ROUTING

ANSWER_S = 60.0  # each kind of fact is purged by itself, and the keeper does one thing after the other

LAST = (JobSubmitted, JobEnded, JobForgotten)  # by these a forgetting that was interrupted is found again
FIRST = tuple(
    each for each in (*FACT_TYPES, *CHECKPOINT_FACTS) if issubclass(each, JobFact) and each not in LAST
)


async def ask_to_forget(bus: Bus, job: str, uid: str, *, by: str, reason: str) -> None:
    """Have an ended job of one's own tenant forgotten by the keeper, which may purge. Raises BusError."""
    request = ForgetRequest(uid=uid, by=by, reason=reason)
    subject, body = subjects.keeper(job, "forget"), encode(request)
    answer = await served(lambda: bus.request(subject, body, timeout_s=ANSWER_S))
    if problem := decode(answer.body, PurgeReply).problem:
        raise BusError(f"{job} was not forgotten: {problem}")


async def forget_job(bus: Bus, job: str, uid: str, *, by: str, reason: str) -> None:
    """Purge an ended job from the broker. The caller has seen that it ended. Raises BusError; may be repeated."""
    await bus.purge(LOG, subjects.job_log(job))
    for kind in FIRST:
        await bus.purge(FACTS, subjects.job_facts(job, kind.kind()))
    fact = JobForgotten(job=job, uid=uid, by=by, reason=reason)
    headers = Envelope(id=f"{job}/forgotten.{uid}", type=fact.tag(), source=by, job=job).headers()
    sequence = await bus.append(
        FACTS,
        subjects.job_fact(job, fact.kind()),
        encode(fact),
        headers=headers,
    )
    await bus.purge(FACTS, subjects.job_facts(job), before=sequence)
    await bus.purge(PROFILES, subjects.member_profiles(job))
    for bucket in (ROUTING, LEADERS):
        await bus.delete(bucket, job)
