"""What a node daemon is told of the host that it runs on.

Made by service.py from the machine and the operator's settings, read by daemon.py. Apart, because it is what the two share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rover_bus.events.bus import Stored
from rover_bus.events.fact import Fact
from rover_bus.events.log_requests import MemberLogReply, MemberLogRequest
from rover_bus.events.reading import read_fact
from rover_bus.events.settings import DEFAULTS, Settings
from rover_bus.node.port import Incarnation

# What becomes of members when their daemon ends: they leave, or run on without it, or with the next one under the same name.
Departure = Literal["drain", "leave", "hand over"]


def no_credential(_: Incarnation) -> str:
    """Members share what their environment names."""
    return ""


def no_log(_: MemberLogRequest) -> MemberLogReply:
    """A host that keeps no logs."""
    return MemberLogReply()


@dataclass(frozen=True, slots=True)
class Host:
    """What a daemon is: its host's name, its own incarnation, what its operator set, and what each member may do by."""

    name: str
    daemon: str
    settings: Settings = DEFAULTS
    credential_of: Callable[[Incarnation], str] = no_credential
    read_log: Callable[[MemberLogRequest], MemberLogReply] = no_log  # of members here; called in threads
    learn_tenant: Callable[[bytes], None] = lambda _: None  # of a tenant that there is: its accounts' keys
    read: Callable[[Stored], Fact] = (
        read_fact  # what is stored, checked: many daemons of one process share it
    )
