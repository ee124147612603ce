"""Checkpoints as the facts of a stack tell them: which are ready, and where.

Fed by the FACTS stream, and by a storage where a stack has lost its facts of a job; feeds `rover submit --from-checkpoint`. All
else that lies in storage is `rover checkpoint`'s affair.
"""

from __future__ import annotations

from rover_bus.cli.views.history import read_facts, read_job
from rover_bus.events import subjects
from rover_bus.events.bus import Bus
from rover_bus.events.checkpoint_facts import CheckpointReady
from rover_bus.events.errors import InputError, RoverError
from rover_bus.events.job import StartFrom
from rover_bus.events.units import number_in


async def find_origin(bus: Bus, origin: str, storage: str) -> StartFrom:
    """Return the ready checkpoint that `JOB` or `JOB:CUT` names. Raises InputError saying which there are.

    storage: where it is looked for when the stack does not know the job; only among those of the same tenant.
    """
    full, _, number = origin.partition(":")
    tenant, job = subjects.split_job(full)
    if job != full and tenant != bus.tenant:
        raise InputError(
            f"{full} is of the tenant {tenant}, and a job of {bus.tenant} begins with a model of its own tenant alone"
        )
    if number and number_in(number) < 0:
        raise InputError(f"{origin!r} names no checkpoint: write JOB, or JOB:CUT with the number of a cut")
    ready = await read_ready(bus, job)
    if not ready:
        try:
            return _find_stored(storage, subjects.qualified(bus.tenant, job), job, number)
        except RoverError as error:
            await read_job(bus, job)  # one that is not known is named with those that are
            raise InputError(
                f"job {job!r} has no checkpoint in storage (was [checkpoint] in its job file?), and {error}"
            ) from None
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


def _find_stored(storage: str, full: str, job: str, number: str) -> StartFrom:
    """Return a checkpoint of a job that no fact tells of. Raises NoCheckpoint, StorageFailed."""
    from rover_bus.flash.location import parse_location
    from rover_bus.flash.storage import find_cut, find_run, survey

    run = find_run(parse_location(storage), full)
    ready, _ = survey(run)
    if not ready:
        raise InputError(f"no checkpoint in {run.path} can be read: `rover checkpoint verify` says why")
    found = find_cut(ready, int(number)).manifest if number else ready[0].manifest
    return StartFrom(
        job=job,
        uid=run.uid,
        timeline=found.timeline,
        generation=found.generation,
        cut=found.cut,
        path=str(run.path),
    )


async def read_ready(bus: Bus, job: str) -> dict[int, CheckpointReady]:
    """Return the checkpoints of a job that became ready, by cut."""
    kind = CheckpointReady.kind()
    return {
        happened.fact.cut: happened.fact
        async for happened in read_facts(bus, [subjects.job_facts(job, kind)])
        if isinstance(happened.fact, CheckpointReady)
    }
