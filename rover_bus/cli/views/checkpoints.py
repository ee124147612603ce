"""Checkpoints as the facts of a stack tell them: which are ready, and where.

Fed by the FACTS stream; feeds `rover submit --from-checkpoint`. What lies in storage alone is `rover checkpoint`'s affair.
"""

from __future__ import annotations

from rover_bus.cli.views.history import read_facts, read_job
from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.events.checkpoint_facts import CheckpointReady
from rover_bus.events.errors import InputError
from rover_bus.events.job import StartFrom
from rover_bus.events.units import number_in


async def find_origin(bus: Bus, origin: str) -> StartFrom:
    """Return the ready checkpoint that `JOB` or `JOB:CUT` names. Raises InputError saying which there are."""
    full, _, number = origin.partition(":")
    tenant, job = subjects.split_job(full)
    if job != full and tenant != bus.tenant:
        raise InputError(
            f"{full} is of the tenant {tenant}, and a job of {bus.tenant} begins with a model of its own tenant alone"
        )
    if number and number_in(number) < 0:
        raise InputError(f"{origin!r} names no checkpoint: write JOB, or JOB:CUT with the number of a cut")
    await read_job(bus, job)
    ready = await read_ready(bus, job)
    if not ready:
        raise InputError(f"job {job!r} has no checkpoint in storage: was [checkpoint] in its job file?")
    found = ready.get(int(number)) if number else ready[max(ready)]
    if found is None:
        raise InputError(
            f"cut {number} of {job!r} is not ready: there are {', '.join(map(str, sorted(ready)))}"
        )
    return StartFrom(
        job=job,
        uid=found.uid,
        timeline=found.timeline,
        generation=found.generation,
        cut=found.cut,
        path=found.path,
    )


async def read_ready(bus: Bus, job: str) -> dict[int, CheckpointReady]:
    """Return the checkpoints of a job that became ready, by cut."""
    kind = CheckpointReady.kind()
    return {
        happened.fact.cut: happened.fact
        async for happened in read_facts(bus, [subjects.job_facts(job, kind)])
        if isinstance(happened.fact, CheckpointReady)
    }
