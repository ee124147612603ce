"""What a right and a role are, and how a broker is told of them: the words of the table in roles.py.

Apart from it, because the table grows by a line for each right, and this does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rover_bus.events.credentials import INBOX

Action = Literal["publish", "subscribe", "request", "stream API"]
Account = Literal["control", "tenant", "members", "observers"]
_Process = Literal[
    "brain", "daemon", "agent", "master", "worker", "ps", "spare", "sidecar", "operator", "registrar", "web"
]
_Asker = Literal["observer", "joiner", "applicant", "submitter", "viewer"]
RoleName = Literal[_Process, _Asker]

# What stands in a right for what a token's tags say; as names, so that the grammar takes them.
JOB, HOST = "TAG-JOB", "TAG-HOST"
_TAGS = {JOB: "job", HOST: "host"}
USER = "ITS-OWN-KEY"  # what stands for the user's public key
ANSWER_S = 120  # a lease request is held for a heartbeat before it is answered; the longest a job file can say is shorter


@dataclass(frozen=True, slots=True)
class Right:
    """One subject that a role may use, and what for. `JOB`, `HOST` and `USER` in it are the user's own."""

    action: Action
    subject: str
    purpose: str


@dataclass(frozen=True, slots=True)
class Role:
    """What users of one kind may do. `answers`: whether they may answer what they are asked; `tags`: what a token must name."""

    name: RoleName
    account: Account
    about: str
    rights: tuple[Right, ...]
    answers: bool = False

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that the rights are filled in by."""
        used = {token for right in self.rights for token in right.subject.split(".")}
        return tuple(tag for token, tag in _TAGS.items() if token in used)

    def permissions(self, job: str = JOB) -> dict[str, Any]:
        """Return the rights as a signing key's template has them, of one job if it is named.

        Each user may listen on an inbox of its own, and no other.
        """
        named = [(right.action, _template(filled(right.subject, job, HOST, USER))) for right in self.rights]
        asks = [subject for action, subject in named if action != "subscribe"]
        hears = [subject for action, subject in named if action == "subscribe"]
        inbox = f"{INBOX}.{{{{subject()}}}}.>"
        made: dict[str, Any] = {
            "pub": {"allow": sorted(asks) or [inbox]},  # an empty list would allow everything
            "sub": {"allow": sorted([*hears, inbox])},
        }
        if self.answers:
            made["resp"] = {"max": 1, "ttl": ANSWER_S * 1_000_000_000}
        return made


def _template(subject: str) -> str:
    named = {USER: "{{subject()}}"} | {token: f"{{{{tag({tag})}}}}" for token, tag in _TAGS.items()}
    return ".".join(named.get(token, token) for token in subject.split("."))


def filled(subject: str, job: str = "", host: str = "", user: str = "") -> str:
    """Return the subject that a right gives to a user with these tags and this key."""
    named = {JOB: job, HOST: host, USER: user}
    return ".".join(named.get(token, token) for token in subject.split("."))
