"""What members say of themselves, in the form in which hosts say it: in pods, which no host measures, it is all that is known."""

from __future__ import annotations

from rover_bus.events.profiles import ProcessSample, ServerProfile, WorkerProfile

UNKNOWN_PID = 0


def own_word(sample: WorkerProfile | ServerProfile) -> ProcessSample | None:
    """Return what a member says that it uses; None where it says nothing of it."""
    if not sample.memory_bytes:
        return None
    return ProcessSample(
        job=sample.job,
        member=sample.member,
        pid=UNKNOWN_PID,
        cores_used=sample.cores_used,
        memory_bytes=sample.memory_bytes,
    )
