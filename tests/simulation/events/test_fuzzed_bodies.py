"""100,000 fuzzed bodies on everything that reads the bus: no crash, all counted, and the job goes on (issue "Bad input").

Bodies are mutated real ones, truncated, spliced, oversized, foreign and random; and well-formed requests with one hostile value,
because a decoder stops only what is malformed.
"""

from __future__ import annotations

import asyncio
import random
import struct

import msgpack
import msgspec
import pytest

from rover_bus.cli.decode import describe
from rover_bus.events import subjects
from rover_bus.events.codec import MAX_BODY_BYTES, decode, decode_any, encode, type_of
from rover_bus.events.errors import BadMessage
from rover_bus.events.facts import JobStopRequested, JobSubmitted, MasterElected, PlanProposed
from rover_bus.events.host_facts import HostExited
from rover_bus.events.identity import Exit, Member
from rover_bus.events.job import Dataset, DataSpec, JobSpec
from rover_bus.events.log import Committed, Granted, LogBatch
from rover_bus.events.requests import (
    METHODS,
    ElectRequest,
    FailureRequest,
    FinishedRequest,
    HeartbeatRequest,
    JoinRequest,
    LeaseReply,
    LeaseRequest,
    LeaveRequest,
    Progress,
    RefusedReply,
    RegisterRequest,
    SkippedRow,
)
from rover_bus.master.phases import name_of

SEED = 20
DECODED, ASKED, HOSTILE, FACTS_SENT = 60_000, 25_000, 15_000, 5_000
WHO = {"member": Member("worker", 0, 1), "timeline": 0x0123456789AB, "generation": 0}
PROGRESS = Progress(tokens=[1], uptos=[2], servers=[], skipped=[SkippedRow(3, 3, 4, "bad")], skipped_file="f")
REQUESTS = [
    JoinRequest(member=WHO["member"], nonce="n", host="h", addresses=["tcp:a:1"]),
    RegisterRequest(**WHO, dataset=Dataset(records=1000, batch_size=10)),
    LeaseRequest(
        **WHO,
        request=1,
        wanted=2,
        rate=3.0,
        progress=PROGRESS,
        held=[1, 2],
        high_water={"p": 4},
        sealed=["p"],
    ),
    HeartbeatRequest(**WHO, request=1, progress=PROGRESS, held=[1], statistics={"a": 1.0}),
    LeaveRequest(**WHO, progress=PROGRESS),
    FailureRequest(**WHO, token=1, exception="E", message="m", fingerprint="E@1", progress=PROGRESS),
    ElectRequest(**WHO, task="evaluate", done=True, values={"auc": 0.5}),
    FinishedRequest(**{**WHO, "member": Member("ps", 0, 1)}, path="p", statistics={"pushes": 1.0}),
]
SPEC = JobSpec(name="j", program=["x"], data=DataSpec(train="t"))
FACTS_OF_OTHERS = [
    JobSubmitted(job="j", spec=SPEC, uid="0123456789ab"),
    PlanProposed(job="j", plan=3, workers=2, servers=0, hosts=["h"]),
    JobStopRequested(job="k", mode="drain"),
    HostExited(host="h", job="j", member=Member("worker", 7, 3), exit=Exit(reason="killed")),
]
RECORDS = [
    MasterElected(term=1, holder="m"),
    Granted(worker=0, incarnation=1, request=1, first_token=1, firsts=[0], counts=[2]),
    Committed(worker=0, incarnation=1, request=1, tokens=[1], uptos=[2]),
]
BATCH = LogBatch(job="j", timeline=1, term=1, holder="m", number=1, records=RECORDS)
REAL = [encode(event) for event in (*REQUESTS, *FACTS_OF_OTHERS, BATCH)]
NUMBERS = [0, -1, 1 << 40, -(1 << 63), (1 << 64) - 1, 1e308, float("nan"), float("inf"), True, None]
VALUES = [*NUMBERS, "", "x" * 300, "../..", b"\0", [], [[]], {}, {"a": 1}, [-1], ["a"], [1 << 62], [0] * 300]


def fuzz(chance: random.Random) -> bytes:
    """One body that nobody should have sent."""
    body = bytearray(chance.choice(REAL))
    match chance.randrange(8):
        case 0:
            return bytes(body[: chance.randrange(len(body))])
        case 1:
            for _ in range(chance.randint(1, 8)):
                body[chance.randrange(len(body))] = chance.randrange(256)
        case 2:
            at = chance.randrange(len(body))
            body[at:at] = chance.randbytes(chance.randint(1, 9))
        case 3:
            other = chance.choice(REAL)
            return bytes(body[: chance.randrange(len(body))] + other[chance.randrange(len(other)) :])
        case 4:
            return chance.randbytes(chance.randrange(200))
        case 5:
            return chance.choice(
                [
                    b"",
                    b"{}",
                    b'{"type": "lease.v1"}',
                    b"\xc1",
                    b"\x80",
                    b"\x91" * 5000,
                    b"\xdf\xff\xff\xff\xff",
                ]
            )
        case 6:
            return msgpack.packb(
                {"type": chance.choice(["lease.v2", "lease.v1", "log.batch.v9", "?", 7]), "x": 1}
            )
        case 7:
            return struct.pack(">BI", 0xC6, 0xFFFFFFF0) + bytes(body)
    return bytes(body)


def hostile(chance: random.Random, request) -> bytes:
    """A request in due form but for one value somewhere in it."""
    plain = msgpack.unpackb(encode(request))
    place: dict | list = plain
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = chance.choice([k for k in keys if k != "type"])
        if not isinstance(place[key], dict | list) or not place[key] or chance.random() < 0.3:
            break
        place = place[key]
    alike = [value for value in VALUES if type(value) is type(place[key])]
    place[key] = chance.choice(alike if chance.random() < 0.8 else VALUES)
    return msgpack.packb(plain)


def present_request(chance: random.Random, state):
    """A request that worker 0 could send now: admitted, with the tokens it holds."""
    life, holder = state.seats.admitted.get("worker-0"), state.ledger.holders.get(0)
    request = chance.choice(REQUESTS)
    if life is None or holder is None or isinstance(request, JoinRequest):
        return request
    tokens = list(holder.leases)[:2]
    fields = {"member": life.member, "generation": state.generation}
    if hasattr(request, "progress"):
        uptos = [holder.leases[token].first + 1 for token in tokens]
        fields["progress"] = msgspec.structs.replace(PROGRESS, tokens=tokens, uptos=uptos)
    if hasattr(request, "request"):
        fields["request"] = min(holder.request, 1 << 62) + chance.randrange(2)
    return msgspec.structs.replace(request, **fields)


def test_the_decoder_refuses_every_body_by_name_or_reads_it():
    chance = random.Random(SEED)
    read = sum(is_event(fuzz(chance)) for _ in range(DECODED))
    assert 0 < read < DECODED // 2


def test_what_is_shown_to_people_shows_every_body():
    chance = random.Random(SEED + 1)
    for _ in range(DECODED // 10):
        body = fuzz(chance)
        shown = describe(body)
        assert isinstance(shown.get("foreign", shown.get("type")), str)


@pytest.mark.parametrize("read", [decode_any, lambda body: decode(body, LeaseRequest)])
def test_an_oversized_body_is_refused_unread(read):
    with pytest.raises(BadMessage, match="at most"):
        read(b"\x00" * (MAX_BODY_BYTES + 1)) if read is not decode_any else decode(
            b"\x00" * (MAX_BODY_BYTES + 1), LogBatch
        )
    assert type_of(b"\x00" * (MAX_BODY_BYTES + 1)) == ""


def is_event(body: bytes) -> bool:
    try:
        decode_any(body)
    except BadMessage:
        return False
    return True


def is_request(method: str, body: bytes) -> bool:
    try:
        decode(body, METHODS[method])
    except BadMessage:
        return False
    return True


async def bombard(it, send, count):
    """Send in gusts, so that the master's loop turns in between."""
    for number in range(count):
        await send()
        if number % 500 == 499:
            await asyncio.sleep(0.3)
    await asyncio.sleep(1.0)


async def still_serves(it, worker):
    """The job goes on as if nothing had been."""
    reply = await worker.lease(wanted=1)
    assert isinstance(reply, LeaseReply)
    assert reply.outcome in ("granted", "wait")
    assert not it.ends
    assert it.shells["m0"].leading


def test_a_master_answers_or_refuses_every_fuzzed_request_and_counts_them(stage):
    async def scenario(it):
        chance = random.Random(SEED + 2)
        await it.begin()
        shell = it.master("m0")
        worker = await it.worker(1)
        intruder = it.broker.connect("intruder")
        malformed = 0

        async def send():
            nonlocal malformed
            method, body = chance.choice(list(METHODS)), fuzz(chance)
            malformed += not is_request(method, body)
            await intruder.publish(subjects.rpc("j", 1, method), body)

        await bombard(it, send, ASKED)
        assert shell.bad_messages == malformed > ASKED // 2
        answer = await it.ask_raw(intruder, "lease", b"\xc1")
        assert isinstance(answer, RefusedReply)
        assert answer.code == "bad_message"
        await still_serves(it, worker)

    stage(scenario, workers=2, records=100_000, leases={"heartbeat_s": 86_400.0})


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_well_formed_requests_with_a_hostile_value_break_no_master_and_no_replay(stage, seed):
    async def scenario(it):
        chance = random.Random(SEED + seed)
        await it.begin()
        it.master("m0")
        worker, victim = await it.worker(1), await it.worker(0)
        for _ in range(3):
            await victim.lease(held=[1, 2, 3])
        intruder = it.broker.connect("intruder")

        decided = 0

        async def send():
            nonlocal decided
            state = it.deciders["m0"].state
            if name_of(state.phase) == "training" and "worker-0" not in state.seats.admitted:
                await it.worker(0, state.seats.wanted["worker-0"].member.incarnation)
            request = present_request(chance, state)
            method = str(request.__struct_config__.tag).rsplit(".", 1)[0]
            body = hostile(chance, request)
            decided += is_request(method, body)
            await intruder.publish(subjects.rpc("j", 1, method), body)
            await asyncio.sleep(0.01)

        await bombard(it, send, HOSTILE // 3)
        assert decided > HOSTILE // 10
        if it.tasks["m0"].done():
            it.tasks["m0"].result()  # raises what broke it
        assert not it.ends
        assert it.shells["m0"].leading
        state = it.deciders["m0"].state
        if name_of(state.phase) == "training":
            await worker.lease(wanted=1)
        before = it.deciders["m0"].dump()
        it.kill("m0")
        it.master("m1")
        await it.leads("m1")
        after = it.deciders["m1"]
        after.state.term, after.state.counts.masters_elected = 1, 1
        assert after.dump() == before

    stage(
        scenario,
        workers=2,
        records=100_000,
        leases={"heartbeat_s": 86_400.0, "relaunches": 10**6, "failures_per_batch": 50},
    )


def test_fuzzed_facts_are_skipped_and_counted(stage):
    async def scenario(it):
        chance = random.Random(SEED + 3)
        await it.begin()
        shell = it.master("m0")
        worker = await it.worker(0)
        intruder = it.broker.connect("intruder")
        malformed = 0
        places = [subjects.job_fact("j", "plan.proposed"), subjects.host_fact("h", "exited")]

        async def send():
            nonlocal malformed
            body = fuzz(chance)
            if not is_event(
                body
            ):  # who may publish a fact in due form may command: rights are the broker's affair
                malformed += 1
                await intruder.publish(chance.choice(places), body)

        await bombard(it, send, FACTS_SENT)
        assert shell.bad_messages == malformed > FACTS_SENT // 3
        await still_serves(it, worker)

    stage(scenario, records=100_000, leases={"heartbeat_s": 86_400.0})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"not ours",
        encode(REQUESTS[2]),
        encode(BATCH)[:-3],
        msgpack.packb({"type": "log.batch.v2"}),
    ],
)
def test_nobody_leads_from_a_log_with_a_foreign_body_and_says_so_in_one_line(stage, body):
    async def scenario(it):
        await it.begin()
        it.master("m0")
        await it.worker()
        it.master("m1")
        await asyncio.sleep(1.0)
        intruder = it.broker.connect("intruder")
        sequence = await intruder.append("ROVER_LOG", subjects.job_log("j"), body)
        await it.until(lambda: "m1" in it.ends)  # the standby at once, although its turn may never come
        await it.publish(JobStopRequested(job="j", mode="drain"))
        await it.until(lambda: "m0" in it.ends)  # the leader when it next appends
        for name in ("m0", "m1"):
            line = str(it.ends[name])
            assert it.ends[name].code == "log_damaged"
            assert "\n" not in line
            assert f"nats stream rmm ROVER_LOG {sequence}" in line
        del it.broker.streams["ROVER_LOG"].messages[sequence]
        it.broker.streams["ROVER_LOG"].subjects[subjects.job_log("j")].remove(sequence)
        it.master("m2")
        await it.leads("m2")

    stage(scenario)


def test_a_log_whose_batches_do_not_fit_each_other_is_refused_by_name(stage):
    async def scenario(it):
        foreign = LogBatch(job="j", timeline=1, term=1, holder="x", number=1, records=RECORDS)
        await it.broker.connect("x").append("ROVER_LOG", subjects.job_log("j"), encode(foreign))
        it.master("m0")
        await it.until(lambda: "m0" in it.ends)
        return it.ends["m0"]

    end = stage(scenario)
    assert end.code == "log_damaged"
    assert "does not follow" in str(end)
