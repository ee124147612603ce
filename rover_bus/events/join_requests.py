"""What a host asks that joins a stack, and the answer (auth/joining.py).

The subject names the user that asks, `rover.registrar.<user>.join`, and the broker sees to it that it is the asker's own.
"""

from __future__ import annotations

from typing import Literal

import msgspec

JoinCode = Literal["", "access_denied", "host_exists", "bad_input", "not_now"]


class HostJoinRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="host_join_asked.v1"):
    """A host asks to join. `user`: the public key that its daemon will sign by; `seal`: the key that the answer is sealed to."""

    host: str
    user: str
    seal: bytes


class HostJoinReply(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="host_joined.v1"):
    """`sealed`: what the host needs, for the asker alone to read; empty: refused, `code` and `problem` say why."""

    sealed: bytes = b""
    code: JoinCode = ""
    problem: str = ""
