"""What the JSON API answers. Fed by `cli`'s views through the port; feeds api.py, and openapi.py with its schemas.

Times are Unix milliseconds of the broker's clock, throughput is samples a second; what is not known is null.
"""

from __future__ import annotations

from typing import Any

import msgspec

Row = dict[str, Any]


class Shown(msgspec.Struct, kw_only=True, frozen=True):
    """Base of answers."""


class JobShown(Shown, frozen=True):
    """One job: what `rover jobs -o json` has of it, its present plan and its end. `sequence`: of the newest fact that is in it."""

    job: str
    sequence: int
    uid: str
    state: str
    reason: str
    workers: int
    servers: int
    epoch: int
    epochs: int
    committed: int
    total: int
    dead_lettered: int
    samples_per_second: float | None
    predicted: float | None  # of the plan that is carried out
    predicted_low_90: float | None
    predicted_high_90: float | None
    seconds_left: float | None  # at the present speed
    leader: str
    term: int
    submitted_ms: int
    ended_ms: int
    plan_waits: int | None  # the plan that waits for a person
    summary: Row = {}


class MemberShown(Shown, frozen=True):
    """One process of a job, as `rover members` lists it, with its last sample. Shares are of its window, in [0, 1]."""

    role: str
    index: int
    incarnation: int
    host: str
    pid: int
    leads: bool | None
    samples_per_second: float | None = None
    compute: float | None = None
    wait: float | None = None  # for leases and for the other workers of its group
    pull: float | None = None  # pulling, pushing and reading
    cores_used: float | None = None
    memory_bytes: int | None = None


class PlanShown(Shown, frozen=True):
    """One plan, as `rover plan list -o json` has it."""

    plan: int
    step: str
    change: str
    state: str
    why: str
    reason: str
    measured: float | None
    predicted: float | None
    after: float | None
    by: str
    person: str
    undone_by: int | None


class HostShown(Shown, frozen=True):
    """A host by its last sample."""

    host: str
    cores: float
    cores_used: float
    memory_bytes: int
    memory_used_bytes: int
    members: int


class ClusterShown(Shown, frozen=True):
    """What is there now. `sequence`: of the newest fact that is in any answer."""

    sequence: int
    release: str
    brain: bool
    hosts: list[HostShown]
    jobs: dict[str, int]  # by state


class EventShown(Shown, frozen=True):
    """One fact: what `rover events -o json` has of it, and the line that `rover events` prints."""

    sequence: int
    id: str
    subject: str
    kind: str
    job: str
    time_ms: int
    cause: str
    text: str
    body: Row


class StoryStep(Shown, frozen=True):
    """One fact of a story: how deep below its first cause, and how it is linked to the one before."""

    depth: int
    why: str
    event: EventShown


class Answered(Shown, frozen=True):
    """What became of a person's word."""

    job: str
    plan: int
    by: str
    became: str


class Word(Shown, frozen=True, forbid_unknown_fields=True):
    """What a person says with an approval or a rejection."""

    reason: str = ""


class Problem(Shown, frozen=True):
    """Why a request was not answered: a constant for programs, and a line for people."""

    code: str
    message: str
