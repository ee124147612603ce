"""Lines of logs, put together from pieces: each once, whole, by the member that wrote it."""

from __future__ import annotations

from rover_bus.cli.views.member_lines import MemberLines
from rover_bus.events.log_requests import LogPiece, MemberLogReply


def reply(*pieces: tuple[str, int, bytes]) -> MemberLogReply:
    return MemberLogReply(pieces=[LogPiece(log=log, start=start, data=data) for log, start, data in pieces])


def test_a_line_that_comes_in_two_pieces_is_printed_once_and_whole() -> None:
    lines: list[str] = []
    written = MemberLines("ads", "", lines.append)
    written.take("h1", reply(("worker-0.1", 0, b"one\ntw"), ("ps-0.1", 0, b"served\n")))
    written.take("h1", reply(("worker-0.1", 6, b"o\nthree")))
    assert lines == ["worker-0.1 | one", "ps-0.1 | served", "worker-0.1 | two"]
    written.end()
    assert lines[-1] == "worker-0.1 | three"


def test_a_piece_that_comes_again_or_too_early_is_not_printed() -> None:
    lines: list[str] = []
    written = MemberLines("ads", "", lines.append)
    for _ in range(2):
        written.take("h1", reply(("worker-0.1", 0, b"one\n"), ("worker-0.1", 8, b"far\n")))
    assert lines == ["worker-0.1 | one"]
    assert written.asks("h1").have == {"worker-0.1": 4}


def test_hosts_are_kept_apart_and_foreign_bytes_are_shown() -> None:
    lines: list[str] = []
    written = MemberLines("ads", "worker-0", lines.append)
    assert not written.found
    for host in ("h1", "h2"):
        written.take(host, reply(("worker-0.1", 0, b"\xff from " + host.encode() + b"\n")))
    assert lines == ["worker-0.1 | \ufffd from h1", "worker-0.1 | \ufffd from h2"]
    assert written.asks("h2").have == {"worker-0.1": 10}
    assert written.asks("h3").have == {}


def test_a_member_that_wrote_nothing_was_there() -> None:
    lines: list[str] = []
    written = MemberLines("ads", "worker-0", lines.append)
    written.take("h1", reply(("worker-0.1", 0, b"")))
    written.end()
    assert written.found
    assert lines == []
