"""The speed of the Brain's decider itself, in this process: a round of all jobs, and a look with nothing new.

    python -m bench.decider [--jobs 200] [--json]

So many jobs of 8 to 32 workers and 2 to 8 servers, each measured at four sizes, on four hosts a job; 200 families. The state is
what the Brain's log would have left. Seconds are of the processor. The first look fits all models and carries out what pays; the
round that is timed is one after that, when most fronts stand.
"""

from __future__ import annotations

import json
import time
from itertools import cycle

import click
import numpy as np

from rover_bus.brain.decider import BrainDecider
from rover_bus.brain.state import BrainState, KnownJob, TriedSize
from rover_bus.brain.totals import keep_totals
from rover_bus.events.facts import Size
from rover_bus.events.identity import HostCapacity, Member
from rover_bus.events.inputs import Continued, Input, Ticked
from rover_bus.events.job import DataSpec, JobSpec, RoleSpec, WorkersSpec

GIB = 1 << 30
BATCH, FAMILIES, HOSTS_A_JOB = 512, 200, 4
TYPICAL = np.array(
    [1 / 512, 0.1, 0.02, 0.05 / 512, 0.05]
)  # seconds a unit of each term of the asynchronous form


def speed(terms: np.ndarray, size: Size) -> float:
    """Samples a second of a size."""
    a, b, c, d, e = terms
    w, p = size.workers, size.servers
    seconds = a * BATCH / size.worker_cores + b * w / (p * size.server_cores) + c * w / p + d * BATCH / p + e
    return float(w * BATCH / seconds)


def known_job(number: int, rng: np.random.Generator) -> KnownJob:
    """One job that is open: settled long ago, measured at what it holds and at three sizes beside."""
    terms = TYPICAL * rng.lognormal(0, 0.6, 5)
    workers, servers = int(rng.integers(8, 33)), int(rng.integers(2, 9))
    held = Size(
        workers=workers,
        servers=servers,
        worker_cores=float(rng.choice([2, 4])),
        server_cores=float(rng.choice([2, 4])),
        worker_memory_bytes=2 * GIB,
        server_memory_bytes=8 * GIB,
    )
    family = f"f{number % FAMILIES}"
    spec = JobSpec(
        name=f"j{number}",
        program=[family],
        data=DataSpec(train=family, batch_size=BATCH),
        workers=WorkersSpec(max_count=64, cores=1.0, max_cores=8.0),
        servers=RoleSpec(max_count=16, cores=1.0, max_cores=8.0),
    )
    job = KnownJob(f"{number:012x}", spec, plan=3, held=held, clock_s=1000.0, settled_s=0.0, cores_bind=True)
    fewer_cores = held.replace(worker_cores=held.worker_cores / 2)
    sizes = [held.replace(workers=workers // 2), held, held.replace(servers=servers // 2), fewer_cores]
    job.tried = [
        TriedSize(
            size=size,
            weight=3.0,
            mean=speed(terms, size) * float(rng.lognormal(0, 0.02)),
            worker_cores=0.9 * size.worker_cores,
            server_cores=0.7 * size.server_cores,
        )
        for size in sizes
    ]
    job.recent = [job.tried[1].mean] * 3
    job.total, job.committed = 10_000_000_000, 1_000_000
    job.members = [Member("worker", i, 1) for i in range(workers)] + [
        Member("ps", i, 1) for i in range(servers)
    ]
    return job


def cluster(jobs: int) -> BrainState:
    """So many jobs, their members dealt out over all hosts in turn."""
    rng, state = np.random.default_rng(1), BrainState(timeline=1, clock_s=1000.0)
    each = HostCapacity(cores=32.0, memory_bytes=128 * GIB)
    state.hosts = dict.fromkeys((f"n{i}" for i in range(HOSTS_A_JOB * jobs)), each)
    hosts = cycle(state.hosts)
    for number in range(jobs):
        job = known_job(number, rng)
        state.jobs[job.spec.name] = job
        job.where = {member.name: next(hosts) for member in job.members}
        job.hosts = list(dict.fromkeys(job.where.values()))
        assert job.held is not None
        charge = job.charge(job.held)
        for member in job.members:
            worker = member.role == "worker"
            cores = charge.worker_cores if worker else charge.server_cores
            size_bytes = charge.worker_memory_bytes if worker else charge.server_memory_bytes
            for load in (job.load, state.host_load):
                had = load.get(job.where[member.name], (0.0, 0.0))
                load[job.where[member.name]] = had[0] + cores, had[1] + size_bytes
    return state


def look(decider: BrainDecider, at_s: float) -> list[float]:
    """Processor time of each input of one look, to its end."""
    taken = list[float]()
    unfinished: Input | None = Ticked()
    while unfinished is not None:
        began = time.process_time()
        decision = decider.decide(unfinished, at_s)
        taken.append(time.process_time() - began)
        unfinished = Continued() if decision.unfinished else None
    return taken


@click.command(help=__doc__)
@click.option("--jobs", default=200)
@click.option("--json", "as_json", is_flag=True)
def main(jobs: int, as_json: bool) -> None:
    decider = BrainDecider(1)
    decider.state = cluster(jobs)
    keep_totals(decider.state)
    looks = [look(decider, 2000.0 + at) for at in (0, 40, 80, 81, 82)]
    found = {
        "jobs": jobs,
        "members": sum(len(job.members) for job in decider.state.jobs.values()),
        "hosts": len(decider.state.hosts),
        "first_look_s": round(sum(looks[0]), 3),
        "first_look_inputs": len(looks[0]),
        "longest_of_them_ms": round(1e3 * max(looks[0]), 1),
        "round_s": round(sum(looks[2]), 3),
        "round_inputs": len(looks[2]),
        "longest_of_its_ms": round(1e3 * max(looks[2]), 1),
        "idle_look_ms": round(1e3 * sum(looks[4]), 2),
    }
    for name, value in found.items():
        print(f"{name:<18} {value}")
    if as_json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
