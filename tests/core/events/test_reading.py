"""A stored fact is believed when its subject, its body and its headers say one thing; else every reader passes it over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from told import told

from rover_bus.cli.samples import sample
from rover_bus.events import facts, host_facts, log, subjects
from rover_bus.events.bus import Stored
from rover_bus.events.codec import encode
from rover_bus.events.errors import BadMessage
from rover_bus.events.facts import Fact
from rover_bus.events.identity import Exit, HostCapacity, Member
from rover_bus.events.job import DataSpec, JobSpec
from rover_bus.events.reading import read_fact

UID = "0000000000a1"
WORKER = Member("worker", 0, 1)
SPEC = JobSpec(name="ads", program=["x"], data=DataSpec(train="t"))
SUBMITTED = facts.JobSubmitted(job="ads", uid=UID, spec=SPEC)
EXITED = host_facts.HostExited(host="h", job="ads", member=WORKER, exit=Exit(reason="killed"))
HERE = host_facts.HostRegistered(host="h", daemon="d", capacity=HostCapacity(cores=1, memory_bytes=1))
QUOTA = host_facts.QuotaSet(tenant="t", cores=1.0)
ENDED = facts.JobEnded(job="ads", state="completed", position=(7, 4))


@pytest.mark.parametrize(
    ("subject", "fact"),
    [
        ("rover.job.ads.job.submitted", SUBMITTED),
        ("rover.host.h.exited", EXITED),
        ("rover.host.h.registered", HERE),
        ("rover.cluster.quota_set", QUOTA),
    ],
)
def test_what_people_and_hosts_state_is_believed_on_its_own_subject(subject: str, fact: Fact) -> None:
    assert read_fact(Stored(1, subject, encode(fact))) == fact


@pytest.mark.parametrize(
    ("subject", "fact", "why"),
    [
        ("rover.job.other.job.submitted", SUBMITTED, "of job 'ads'"),
        ("rover.job.ads.job.opened", SUBMITTED, "job.submitted.v1 on"),
        ("rover.job.ads.job.submitted", SUBMITTED.replace(spec=SPEC.replace(name="../ads")), "'../ads'"),
        ("rover.job.ads.job.submitted", SUBMITTED.replace(uid="not hex"), "malformed"),
        ("rover.job.-ads.job.submitted", SUBMITTED.replace(job="-ads"), "cannot be used"),
        ("rover.host.g.exited", EXITED, "of host 'h'"),
        ("rover.host.h.left", EXITED, "host.exited.v1 on"),
        ("rover.host.h.exited", EXITED.replace(job="../ads"), "cannot be used"),
        ("rover.host.h.quota_set", QUOTA, "cluster.quota_set.v1 on"),
        ("rover.job.ads.log", SUBMITTED, "no subject of a fact"),
        ("rover.job.ads.job.ended", ENDED, "does not come out of a log"),
        ("rover.job.ads.job.ended", ENDED.replace(position=None), "does not come out of a log"),
        (
            "rover.job.ads.members.unheard",
            facts.MembersUnheard(job="ads", host="h"),
            "does not come out of a log",
        ),
        (
            "rover.job.ads.plan.proposed",
            facts.PlanProposed(job="ads", plan=9, workers=1, servers=0, brain_term=3),
            "does not come out of a log",
        ),
    ],
)
def test_what_does_not_fit_its_subject_is_not_believed(subject: str, fact: Fact, why: str) -> None:
    with pytest.raises(BadMessage, match=why):
        read_fact(Stored(1, subject, encode(fact)))


def published(
    change: Callable[[dict[str, str]], None] = lambda _: None, body: bytes = b"", term: int = 1
) -> Stored:
    own, headers = told(ENDED, 7, term)
    change(headers)
    return Stored(1, "rover.job.ads.job.ended", body or own, headers)


def test_a_fact_out_of_a_log_is_believed_with_the_headers_of_its_place() -> None:
    assert read_fact(published()) == ENDED


@pytest.mark.parametrize(
    "forged",
    [
        published(lambda headers: headers.clear()),
        published(lambda headers: headers.update({"ce-id": "ads/1/1/7/5"})),
        published(lambda headers: headers.update({"ce-id": "other/1/1/7/4"})),
        published(lambda headers: headers.update({"ce-roverterm": "99"})),
        published(body=encode(ENDED.replace(position=(8, 4)))),
        published(body=encode(ENDED.replace(state="failed"))),
    ],
    ids=["no headers", "another place", "another job", "another term", "another position", "another body"],
)
def test_a_fact_out_of_a_log_is_not_believed_once_anything_of_it_was_changed(forged: Stored) -> None:
    with pytest.raises(BadMessage):
        read_fact(forged)


@pytest.mark.parametrize("kind", [*log.DECIDED, *log.TRANSLATED], ids=lambda kind: kind.tag())
def test_every_fact_that_a_master_publishes_is_read(kind: type[facts.JobFact]) -> None:
    """`plan.checked` names the Brain's term, and was taken for a fact of the Brain: every reader passed it over."""
    made = sample(kind).replace(job="ads", position=(7, 4))
    if hasattr(made, "uid"):
        made = made.replace(uid=UID)
    if hasattr(made, "brain_position"):  # a rule may be the Brain's
        made = made.replace(brain_position=None)
    body, headers = told(made, 7, 1)
    stored = Stored(1, subjects.job_fact("ads", kind.kind()), body, headers)
    assert read_fact(stored) == made
