"""What a master, and a tenant's person, ask of the keeper, and its answer (purging.py)."""

from __future__ import annotations

import msgspec


class PurgeRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="purge_asked.v1"):
    """Purge a subject of a stream below a sequence; `before` 0: all of it."""

    stream: str
    subject: str
    before: int = 0


class ForgetRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="forget_asked.v1"):
    """Forget the job of the subject. `uid`: of the run that has ended; `by`, `reason`: what `job.forgotten` is to say."""

    uid: str
    by: str = ""
    reason: str = ""


class PurgeReply(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="purged.v1"):
    """`problem`: why nothing was purged, in one line; empty: it is done."""

    problem: str = ""
