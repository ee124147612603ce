"""What members of this host wrote, a bounded piece at a time, for those who cannot read its files."""

from __future__ import annotations

import os
from pathlib import Path

from rover_bus.events.log_requests import MOST_BYTES, LogPiece, MemberLogReply, MemberLogRequest
from rover_bus.events.subjects import name
from rover_bus.node.local.layout import read_logs


def read_log_pieces(state_dir: str | os.PathLike[str], request: MemberLogRequest) -> MemberLogReply:
    """Return what the logs of the job's newest run here hold beyond what is known. Raises NameRefused, OSError.

    A log that is not known yet is named also while nothing is in it: a member that wrote nothing was there all the same.
    """
    member, _, incarnation = request.member.partition(".")
    logs = read_logs(state_dir, request.job, name(member, "member") if member else "")
    pieces: list[LogPiece] = []
    left = MOST_BYTES
    for log in logs:
        if incarnation and log.stem != request.member:
            continue
        if not left:
            return MemberLogReply(pieces=pieces, more=True)
        start = max(request.have.get(log.stem, 0), 0)
        data = _read(log, start, left)
        if data or log.stem not in request.have:
            pieces.append(LogPiece(log=log.stem, start=start, data=data))
            left -= len(data)
    return MemberLogReply(pieces=pieces, more=not left)


def _read(log: Path, start: int, most_bytes: int) -> bytes:
    try:
        with log.open("rb") as file:
            file.seek(min(start, os.fstat(file.fileno()).st_size))
            return file.read(most_bytes)
    except FileNotFoundError:  # its run was forgotten meanwhile
        return b""
