"""Every error of rover_bus: one root, below it the policy (retry or not) and the blame (ours or the peer's).

Raised everywhere, turned into one clear line and an exit code by `cli`, and into a wire form by services.
It is apart from the rest because every room needs it and it needs none.
"""

from __future__ import annotations

from typing import Any


class RoverError(Exception):
    """Root of all errors. The message tells the user what happened and what to do next.

    `code` is a stable constant for programs; `exit_code` is what `rover` exits with (documented in docs/cli.md).
    """

    code = "error"
    exit_code = 1
    retry = False

    def wire(self) -> dict[str, Any]:
        """Return the form that crosses the bus: code, message, whether a retry can help."""
        return {"code": self.code, "message": str(self), "retry": self.retry}


class PermanentError(RoverError):
    """Repeating the same call cannot help."""

    code = "permanent"


class TemporaryError(RoverError):
    """The same call may succeed after `delay_s` seconds."""

    code = "temporary"
    retry = True

    def __init__(self, message: str, delay_s: float = 1.0) -> None:
        super().__init__(message)
        self.delay_s = delay_s

    def wire(self) -> dict[str, Any]:
        return {**super().wire(), "delay_s": self.delay_s}


class InputError(PermanentError):
    """The user's input cannot be used: a file, a job file, an argument."""

    code = "bad_input"
    exit_code = 2


class NameRefused(InputError):
    """A name that no subject can hold."""

    code = "bad_name"


class BadMessage(PermanentError):
    """Bytes from a peer that are not what they should be: truncated, oversized, foreign, or of an unknown major version."""

    code = "bad_message"


class UnknownVersion(BadMessage):
    """A known event type in a major version that this release cannot read (S27)."""

    code = "unknown_version"


class TooLarge(BadMessage):
    """A message that a peer must not take in: what it would have to store of it would fit no message of the broker."""

    code = "too_large"
    exit_code = 2


class Refused(PermanentError):
    """A peer understood the request and refuses it; `code` says why (stale, differs, exists, ...)."""

    code = "refused"
    exit_code = 3

    def __init__(self, message: str, code: str = "refused") -> None:
        super().__init__(message)
        self.code = code


class BusError(TemporaryError):
    """The broker did not do what was asked of it."""

    code = "bus"
    exit_code = 4


class BrokerUnreachable(BusError):
    """No broker answers at the given address."""

    code = "broker_unreachable"


class NotConnected(BusError):
    """The connection to the broker is down just now; the adapter is reconnecting."""

    code = "not_connected"


class AccessDenied(PermanentError):
    """The broker or a server refused the secret, or the rights of these credentials."""

    code = "access_denied"
    exit_code = 5


class NoResponders(BusError):
    """No service serves this subject now: the service is gone or not yet there."""

    code = "no_responders"


class BusTimeout(BusError):
    """No answer in time. Whether the effect happened is unknown: repeat the same bytes."""

    code = "bus_timeout"


class WrongSequence(BusError):
    """The log has grown since: look at its tail (protocol P16, JetStream error 10071)."""

    code = "wrong_sequence"
    retry = False


MAKE_ROOM = (
    "To free space: `rover forget JOB` removes an ended job (`rover doctor` names the oldest), "
    "`rover up --max-store` raises the limit; then everything goes on"
)


class StreamFull(BusError):
    """The stream or its disk is full: nothing was stored. Free space, then the same append will pass (P21)."""

    code = "stream_full"


class NotEnoughMemory(RoverError):
    """A table, a staging area or a member does not fit its limit. `wanted_bytes`: what would be enough in all, 0 where unknown."""

    code = "not_enough_memory"
    exit_code = 6

    def __init__(self, message: str, wanted_bytes: int = 0) -> None:
        super().__init__(message)
        self.wanted_bytes = wanted_bytes
