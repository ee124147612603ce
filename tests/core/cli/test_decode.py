"""`rover decode`: every body becomes one line of JSON, in the nats CLI's two forms, and the exit status stays 0."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rover_bus.cli.decode import MAX_BODY_BYTES, describe, run
from rover_bus.events.codec import encode
from rover_bus.events.facts import JobEnded, MasterElected
from rover_bus.events.identity import Member
from rover_bus.events.log import Committed, LogBatch, SnapshotChunk


def decode(stdin: bytes) -> list[Any]:
    sink = io.BytesIO()
    run(io.BufferedReader(io.BytesIO(stdin)), sink)  # type: ignore[type-var]
    return [json.loads(line, parse_constant=pytest.fail) for line in sink.getvalue().splitlines()]


def test_an_event_comes_out_as_its_map() -> None:
    [said] = decode(encode(MasterElected(job="a", term=3, holder="master-0.1")))
    assert said["type"] == "master.elected.v1"
    assert (said["job"], said["term"], said["holder"]) == ("a", 3, "master-0.1")


def test_a_packed_log_batch_comes_out_with_its_records() -> None:
    records = [
        Committed(worker=1, incarnation=2, request=3, tokens=[7], uptos=[9]),
        SnapshotChunk(snapshot=1, index=0, count=1, data=b"\x00" * 500),
    ]
    [said] = decode(encode(LogBatch(job="a", timeline=1, term=2, holder="h", number=1, records=records)))
    assert [record["type"] for record in said["records"]] == ["batches.committed", "snapshot.chunk"]
    assert said["records"][0]["tokens"] == [7]
    assert base64.b64decode(said["records"][1]["data"]) == b"\x00" * 500, "nothing is cut short"


def test_an_event_of_a_newer_release_is_shown_with_the_fields_we_do_not_know() -> None:
    [said] = decode(msgpack.packb({"type": "plan.applied.v9", "mood": "sunny"}))
    assert said == {"type": "plan.applied.v9", "mood": "sunny"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "empty"),
        (b"hello", "not msgpack"),
        (b"\xc1\xff", "not msgpack"),
        (b"\x81\xa4type", "not msgpack"),  # truncated
        (msgpack.packb([1, 2]), "list without a type"),
        (b'{"a": 1}', "json"),
        (b"\x00" * (MAX_BODY_BYTES + 1), "oversized"),
    ],
)
def test_foreign_bytes_become_one_object_that_says_what_they_are(body: bytes, says: str) -> None:
    [said] = decode(body)
    assert says in said["foreign"]
    assert said["size_bytes"] == len(body)


def test_a_body_nested_deeper_than_any_of_ours_is_cut_and_does_not_crash() -> None:
    body: Any = 1
    for _ in range(400):
        body = [body]
    [said] = decode(msgpack.packb({"type": "deep.v1", "body": body}))
    assert "..." in json.dumps(said)


def test_numbers_that_json_lacks_are_named() -> None:
    [said] = decode(msgpack.packb({"type": "x.v1", "values": [float("nan"), float("inf"), 1.5]}))
    assert said["values"] == ["nan", "inf", 1.5]


@given(st.binary(max_size=300))
def test_no_bytes_whatever_break_it(body: bytes) -> None:
    json.dumps(describe(body))
    assert len(decode(body)) <= 1 + body.count(b"\0")


def dumped(subject: str, body: bytes, **headers: list[str]) -> bytes:
    message = {
        "Subject": subject,
        "Reply": "",
        "Header": headers,
        "Data": base64.b64encode(body).decode(),
        "Sub": 1,
    }
    return json.dumps(message).encode()


def test_a_dump_of_nats_sub_is_decoded_message_by_message() -> None:
    event = encode(JobEnded(job="a", state="completed"))
    said = decode(dumped("rover.job.a.job.ended", event, Id=["1"]) + b"\0" + dumped("x", b"hey") + b"\0")
    assert [each["subject"] for each in said] == ["rover.job.a.job.ended", "x"]
    assert said[0]["headers"] == {"Id": ["1"]}
    assert said[0]["body"]["state"] == "completed"
    assert said[1]["body"]["starts_with"] == "hey"


def test_a_dump_is_answered_while_it_still_goes_on() -> None:
    command = [sys.executable, "-m", "rover_bus.cli.entry", "decode"]
    event = encode(MasterElected(job="a", term=1, holder=str(Member("master", 0, 1))))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for term in (1, 2):
            process.stdin.write(dumped(f"rover.{term}", event) + b"\0")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["subject"] == f"rover.{term}"
        process.stdin.close()
    assert process.returncode == 0


def test_the_command_starts_without_click_and_msgspec() -> None:
    script = (
        "import sys; sys.argv = ['rover', 'decode']; from rover_bus.cli.entry import main; main(); "
        "print(sorted({'click', 'msgspec', 'numpy', 'nats', 'asyncio', 'typing'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {script}"],
                          input=b"junk", capture_output=True, check=True)  # fmt: skip
    first, second = done.stdout.decode().splitlines()
    assert json.loads(first)["starts_with"] == "junk"
    assert second == "[]"
