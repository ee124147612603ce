"""Which member this process is: the ROVER_* variables that a platform sets for its members.

Read once by `job.join`. Without ROVER_JOB a program runs standalone; with it but without ROVER_INCARNATION no daemon started the
process for us: it joins as an external worker, in a free place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rover_bus.client.worker import ANY_PLACE
from rover_bus.events import subjects
from rover_bus.events.errors import InputError
from rover_bus.events.identity import Member


@dataclass(frozen=True)
class Environment:
    """What the platform says. `spec_file` and `summary_file` are for runs of a job file in one process (`rover run --plain`);
    `job_file` is the one that a person names for a program that runs alone. `loaded_file`: where the platform wants to read what
    was loaded when this worker joined, for spares of the job; `spares_at`: whose daemon is told it instead, of the run `uid`.
    `member_dir`: where it leaves a credential that replaces the first. `cores`: what its member was given (`own_cores`).

    `grace_s`: how long a drain tries to reach servers and master that do not answer; to be kept below the platform's own grace.
    """

    job: str = ""
    member: Member = ANY_PLACE
    host: str = ""
    url: str = ""
    secret_file: str = ""
    credential: str = field(default="", repr=False)
    state_dir: str = ""
    spec_file: str = ""
    job_file: str = ""
    summary_file: str = ""
    loaded_file: str = ""
    spares_at: str = ""
    uid: str = ""
    member_dir: str = ""
    cores: str = ""
    grace_s: float = 5.0

    @property
    def external(self) -> bool:
        return self.member.incarnation == 0

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Environment:
        """Take the variables. Raises InputError, one line, for what cannot be."""
        found = cls(**{name: variables.get(f"ROVER_{name.upper()}", "") for name in _TEXTS})  # type: ignore[arg-type]
        if not found.job:
            return found
        found = replace(found, grace_s=_seconds(variables, "ROVER_GRACE_S", cls.grace_s))
        role = variables.get("ROVER_ROLE", "worker")
        if role != "worker":
            raise InputError(f"ROVER_ROLE is {role!r}: a training program is a worker")
        if not found.url:
            raise InputError(
                f"ROVER_JOB is {found.job!r}, but ROVER_URL names no broker: set both, or neither"
            )
        try:
            index = int(variables.get("ROVER_INDEX", "-1"))
            incarnation = int(variables.get("ROVER_INCARNATION", "0"))
        except ValueError as error:
            raise InputError(f"ROVER_INDEX and ROVER_INCARNATION must be integers: {error}") from None
        subjects.name(found.job, "job")
        return replace(found, member=Member("worker", index, incarnation)) if incarnation else found


def _seconds(variables: Mapping[str, str], name: str, default: float) -> float:
    text = variables.get(name) or str(default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise InputError(f"{name} is {text!r}: it must be a number of seconds, like {default:g}")
    return seconds


_TEXTS = (
    "job",
    "host",
    "url",
    "secret_file",
    "credential",
    "state_dir",
    "spec_file",
    "job_file",
    "summary_file",
    "loaded_file",
    "spares_at",
    "uid",
    "member_dir",
    "cores",
)
