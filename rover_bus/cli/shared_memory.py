"""Whether the hosts of a stack have the shared memory that a job's checkpoints need at the least, asked before it is submitted.

What tables grow to is the program's affair. Known are the witness, which is as large as the data set from the first batch on, and
the model of a checkpoint that a job starts from. Fed by the job file and by daemons' facts on their hosts; feeds `rover submit`.
"""

from __future__ import annotations

from rover_bus.cli.views.hindrances import read_present, read_registered
from rover_bus.events.bus import Bus
from rover_bus.events.errors import NotEnoughMemory
from rover_bus.events.job import JobSpec

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
    """Return the shared memory of each host that is there, in bytes, as its daemon said when it started; 0: it said nothing."""
    hosts = (await read_present(bus)).hosts
    registered = await read_registered(bus, hosts)
    return {
        host: registered[host].capacity.shared_memory_bytes if host in registered else 0 for host in hosts
    }


def _mib(size_bytes: int) -> str:
    return f"{-(-size_bytes // (1 << 20)):,} MiB"
