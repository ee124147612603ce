"""Logs of members, a bounded piece at a time: everything once, of the members that were asked for, and no other file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rover_bus.events.errors import NameRefused
from rover_bus.events.log_requests import MOST_BYTES, LogPiece, MemberLogRequest
from rover_bus.node.local.reading_logs import read_log_pieces


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    directory = tmp_path / "logs" / "ads.u1"
    directory.mkdir(parents=True)
    for log, size in (("worker-0.1", 10), ("worker-0.2", MOST_BYTES + 7), ("worker-1.1", 5), ("ps-0.1", 3)):
        (directory / f"{log}.log").write_bytes((log.encode() * size)[:size])
    (tmp_path / "secret.1.log").write_text("not a log of a job")
    return tmp_path


def read_all(root: Path, member: str = "") -> dict[str, bytes]:
    """Ask until there is no more; each answer is bounded."""
    found: dict[str, bytes] = {}
    more = True
    while more:
        have = {log: len(data) for log, data in found.items()}
        reply = read_log_pieces(root, MemberLogRequest(job="ads", member=member, have=have))
        assert sum(len(piece.data) for piece in reply.pieces) <= MOST_BYTES
        for piece in reply.pieces:
            assert piece.start == len(found.get(piece.log, b""))
            found[piece.log] = found.get(piece.log, b"") + piece.data
        more = reply.more
    return found


@pytest.mark.parametrize(
    ("member", "logs_of"),
    [
        ("", {"worker-0.1", "worker-0.2", "worker-1.1", "ps-0.1"}),
        ("worker-0", {"worker-0.1", "worker-0.2"}),
        ("worker-0.2", {"worker-0.2"}),
        ("worker-7", set()),
    ],
)
def test_every_byte_comes_once(logs: Path, member: str, logs_of: set[str]) -> None:
    found = read_all(logs, member)
    assert set(found) == logs_of
    for log, data in found.items():
        assert data == (logs / "logs" / "ads.u1" / f"{log}.log").read_bytes()


def test_what_a_log_gained_comes_with_the_next_question(logs: Path) -> None:
    log = logs / "logs" / "ads.u1" / "ps-0.1.log"
    with log.open("ab") as file:
        file.write(b"more")
    [piece] = read_log_pieces(logs, MemberLogRequest(job="ads", member="ps-0", have={"ps-0.1": 3})).pieces
    assert (piece.start, piece.data) == (3, b"more")


@pytest.mark.parametrize("job", ["..", "*", "ads.u1/..", "", "a/b/c"])
def test_a_job_is_a_name_and_no_path(logs: Path, job: str) -> None:
    with pytest.raises(NameRefused):
        read_log_pieces(logs, MemberLogRequest(job=job))


@pytest.mark.parametrize("member", ["*", "../../secret", "..", "?.1", "[a-z]*"])
def test_a_member_is_a_name_and_no_pattern(logs: Path, member: str) -> None:
    try:
        reply = read_log_pieces(logs, MemberLogRequest(job="ads", member=member))
    except NameRefused:
        return
    assert reply.pieces == []


@pytest.mark.parametrize("have", [-5, 0, 3, 10**15])
def test_a_place_that_is_none_brings_nothing_wrong(logs: Path, have: int) -> None:
    reply = read_log_pieces(logs, MemberLogRequest(job="ads", member="ps-0", have={"ps-0.1": have}))
    assert [piece.data for piece in reply.pieces] == ([] if have >= 3 else [b"ps-"])


def test_a_log_with_nothing_in_it_is_named_once(logs: Path) -> None:
    (logs / "logs" / "ads.u1" / "worker-3.1.log").touch()
    asked = MemberLogRequest(job="ads", member="worker-3")
    assert read_log_pieces(logs, asked).pieces == [LogPiece(log="worker-3.1", start=0, data=b"")]
    again = MemberLogRequest(job="ads", member="worker-3", have={"worker-3.1": 0})
    assert read_log_pieces(logs, again).pieces == []
