"""What a daemon is asked of the logs of its host's members, and its answer: a bounded piece at a time.

Asked by `rover logs` on `rover.daemon.<host>.log`; answered by node/questions.py.
"""

from __future__ import annotations

import msgspec

MOST_BYTES = 256 << 10  # of one answer


class MemberLogRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="log_asked.v1"):
    """What did the members of a job write, or one (`worker-0`) or an incarnation (`worker-0.2`)? `have`: bytes known, by log."""

    job: str
    member: str = ""
    have: dict[str, int] = {}


class LogPiece(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one log from `start` on. `log`: the incarnation that wrote it."""

    log: str
    start: int
    data: bytes


class MemberLogReply(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="log_read.v1"):
    """What there is beyond what was known. `more`: it is not all; `problem`: why nothing was read."""

    pieces: list[LogPiece] = []
    more: bool = False
    problem: str = ""
