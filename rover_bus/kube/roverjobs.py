"""A RoverJob as an API server returns it, and where: what is read of the kind that is ours.

Fed by watching.py through its Kind; read by the decider of objects. Apart from object.py, which knows manifests and no API.
"""

from __future__ import annotations

from typing import Any

from rover_bus.kube.kinds import Kind, Metadata, Object
from rover_bus.kube.object import GROUP, PLURAL, VERSION

FINALIZER = f"{GROUP}/job"  # of an object whose job may run: taken off when the job's end is known


class RoverJob(Object, frozen=True, kw_only=True):
    """`spec` and `status` as they are: the converter of job files reads the one, conditions.py writes the other."""

    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}

    @property
    def is_deleted(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def is_held(self) -> bool:
        """Whether our finalizer keeps it."""
        return FINALIZER in self.metadata.finalizers

    @property
    def is_suspended(self) -> bool:
        return self.spec.get("suspend") is True

    @property
    def observed(self) -> int:
        """The newest fact that its status shows: what is newer has not been shown yet."""
        return whole(self.status.get("observedFact"))


def whole(value: Any) -> int:
    """Return what should be a whole number, 0 for anything else."""
    return value if isinstance(value, int) else 0


def uid_of(metadata: Metadata) -> str:
    """Return the uid of the run that an object means: each object is one run, however often it is handed in."""
    return metadata.uid.replace("-", "")[:16]


ROVER_JOB = Kind(f"apis/{GROUP}/{VERSION}", PLURAL, RoverJob)
