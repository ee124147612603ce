"""What another hand stored on the subject of a fact hides nothing that was said before: the newest that is believed counts."""

from __future__ import annotations

import pytest
from told import told

from rover_bus.cli.submission import submit
from rover_bus.cli.views.hindrances import read_registered
from rover_bus.cli.views.results import read_card
from rover_bus.cli.views.settings import read_spec
from rover_bus.events import subjects, virtual_time
from rover_bus.events.codec import encode
from rover_bus.events.data_facts import DatasetRegistered
from rover_bus.events.errors import InputError, Refused
from rover_bus.events.facts import JobSubmitted
from rover_bus.events.host_facts import HostRegistered
from rover_bus.events.identity import HostCapacity, Member
from rover_bus.events.job import Dataset, DataSpec, JobSpec
from rover_bus.events.looks import last_fact
from rover_bus.events.memory_broker import MemoryBroker
from rover_bus.events.streams import FACTS

SPEC = JobSpec(name="ads", program=["x"], data=DataSpec(train="t"))
SUBMITTED = JobSubmitted(job="ads", uid="0000000000a1", spec=SPEC)
REGISTERED = DatasetRegistered(
    job="ads", member=Member("worker", 0, 1), dataset=Dataset(records=7, batch_size=2), position=(7, 1)
)
HERE = HostRegistered(host="h", daemon="d", capacity=HostCapacity(cores=1, memory_bytes=1))
FOREIGN = (b"", b"\x2a" * 35, encode(SUBMITTED.replace(job="other")), b"\xc1")


async def stored_and_spoilt():
    bus = MemoryBroker(seed=1).connect("people")
    for subject, (body, headers) in {
        subjects.job_fact("ads", "job.submitted"): (encode(SUBMITTED), {}),
        subjects.job_fact("ads", "dataset.registered"): told(REGISTERED, 7),
        subjects.host_fact("h", "registered"): (encode(HERE), {}),
    }.items():
        await bus.append(FACTS, subject, body, headers=headers)
        for foreign in FOREIGN:
            await bus.append(FACTS, subject, foreign)
    return bus


async def what_readers_find():
    bus = await stored_and_spoilt()
    data = await last_fact(bus, subjects.job_fact("ads", "dataset.registered"), DatasetRegistered)
    card = await read_card(bus, "ads")
    return card.uid, data.dataset.records, await read_spec(bus, "ads"), await read_registered(bus, ["h"])


def test_a_fact_is_found_behind_what_cannot_be_believed():
    uid, records, spec, registered = virtual_time.run(what_readers_find())
    assert (uid, records, spec, registered) == (SUBMITTED.uid, 7, SPEC, {"h": HERE})


async def a_job_that_no_person_submitted():
    bus = MemoryBroker(seed=1).connect("people")
    await bus.append(FACTS, subjects.job_fact("ads", "job.submitted"), FOREIGN[1])
    for ask in (read_card(bus, "ads"), read_spec(bus, "ads")):
        with pytest.raises(InputError, match="no job 'ads'"):
            await ask
    with pytest.raises(Refused, match="exists already: take another name"):
        await submit(bus, SPEC)


def test_a_name_that_is_spoilt_is_said_to_be_taken():
    virtual_time.run(a_job_that_no_person_submitted())
