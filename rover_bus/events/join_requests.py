"""What a host asks that joins a stack, or a node's agent (auth/joining.py, auth/agents.py), and the answer.

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


class AgentJoinRequest(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="agent_join_asked.v1"
):
    """An agent of a node asks for its rights. `sealed`: the token of its pod and its keys, for the operators alone to read."""

    sealed: bytes


class HostJoinReply(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="host_joined.v1"):
    """`sealed`: what the host, or the agent, needs, for the asker alone to read; empty: refused, `code` and `problem` say why."""

    sealed: bytes = b""
    code: JoinCode = ""
    problem: str = ""
