"""Whether the hosts of a stack have the shared memory that a job's checkpoints need at the least, asked before it is submitted.

What tables grow to is the program's affair. Known are the witness, which is as large as the data set from the first batch on, and
the model of a checkpoint that a job starts from. Fed by the job file and by daemons' facts on their hosts; feeds `rover submit`.
"""

from __future__ import annotations

from rover_bus.cli.views.hindrances import read_present
from rover_bus.events.bus import Bus, Stored
from rover_bus.events.errors import BadMessage, NotEnoughMemory
from rover_bus.events.facts import HostRegistered
from rover_bus.events.job import JobSpec
from rover_bus.events.reading import read_fact
from rover_bus.events.streams import FACTS
from rover_bus.events.subjects import host_fact

WITNESS_BYTES = 4  # a sample: an int32 at its position
MOST_DELTAS = 1.5  # a stored checkpoint may be larger than its state by its deltas (flash.chain.MAX_SHARE)


def state_bytes(spec: JobSpec, records: int, stored_bytes: int = 0, stored_samples: int = 0) -> int:
    """Return what the servers of a job hold at the least.

    stored_bytes: of the checkpoint that it starts from; stored_samples: of the job whose checkpoint that is.
    """
    witness = WITNESS_BYTES * records * spec.data.epochs if spec.data.witness else 0
    return witness + max(0, int(stored_bytes / MOST_DELTAS) - WITNESS_BYTES * stored_samples)


def require_shared_memory(spec: JobSpec, least_state_bytes: int, hosts: dict[str, int]) -> None:
    """Raise NotEnoughMemory, with both sizes and the way out, where all hosts together have too little.

    hosts: bytes of shared memory of each; 0: unknown.
    """
    from rover_bus.flash.packing import PACKING_SHARE
    from rover_bus.ps.flash_memory import HEADROOM

    if spec.checkpoint is None or not hosts or not all(hosts.values()):
        return
    wanted = int(spec.checkpoint.slots * least_state_bytes * (1 + HEADROOM) * (1 + PACKING_SHARE))
    there = sum(hosts.values())
    if wanted > there:
        raise NotEnoughMemory(
            f"the checkpoints of {spec.name} need {_mib(wanted)} of shared memory at the least, {', '.join(sorted(hosts))} "
            f"{'has' if len(hosts) == 1 else 'have'} {_mib(there)}: enlarge it (docker run --shm-size), set data.witness = false, "
            "or leave [checkpoint] out",
            wanted,
        )


async def read_shared_memory(bus: Bus) -> dict[str, int]:
    """Return the shared memory of each host that is there, in bytes, as its daemon said when it started."""
    found = {}
    for host in (await read_present(bus)).hosts:
        stored = await bus.last(FACTS, host_fact(host, HostRegistered.kind()))
        found[host] = _shared_memory_of(stored) if stored else 0
    return found


def _mib(size_bytes: int) -> str:
    return f"{-(-size_bytes // (1 << 20)):,} MiB"


def _shared_memory_of(stored: Stored) -> int:
    """What a host says that it has; 0, as of a host that says nothing, where what is stored cannot be believed."""
    try:
        fact = read_fact(stored)
    except BadMessage:
        return 0
    return fact.capacity.shared_memory_bytes if isinstance(fact, HostRegistered) else 0
