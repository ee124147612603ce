"""The speed of the Brain that runs: `BrainDecider` itself over a cluster of its own making, in this process, on one core.

    python -m bench.brain [--jobs 4000] [--windows 200] [--profiles 100000] [--growth] [--plot growth.png] [--json]

So many jobs of 8 to 40 workers and 2 to 8 servers, each measured at four sizes, on four hosts a job; a family for twenty jobs.
The state is what the Brain's log would have left. Seconds are of the processor.
`first look`: all models are fitted, all fronts made, what pays is carried out: a Brain that has just begun. `round`: all jobs
sized together while most fronts stand; `fresh fronts`: the same from fitted models with no front made yet. Each is carried out as
a row of inputs, the longest of which is printed; before each, what has lasted is set aside from collections, as the service does
each minute (`cli/collecting`). `idle`: a tick with nothing new. `window`: what a tick with one job's window takes more, in a
cluster of 100 jobs, each of a family of its own. `profiles`: workers' samples from bytes, decoded and taken in, a second of the
processor; the bus is not among it. `restart`: from the bytes of a snapshot to a decider that answers. `--growth` times 1,000 to
40,000 jobs and fits the exponents of the cost of a round and of fresh fronts (1 is linear); `--plot` draws the former.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import time
from itertools import cycle, islice
from pathlib import Path

import click
import numpy as np

from rover_bus.brain.decider import BrainDecider
from rover_bus.brain.state import BrainState, KnownJob, TriedSize
from rover_bus.brain.totals import keep_totals
from rover_bus.cli.collecting import none_full, set_aside
from rover_bus.events.codec import decode_any, encode
from rover_bus.events.facts import Size
from rover_bus.events.identity import HostCapacity, Member
from rover_bus.events.inputs import Continued, Input, Sampled, Ticked
from rover_bus.events.job import DataSpec, JobSpec, RoleSpec, WorkersSpec
from rover_bus.events.profiles import WorkerProfile

GIB = 1 << 30
BATCH, JOBS_A_FAMILY, HOSTS_A_JOB = 512, 20, 4
TYPICAL = np.array(
    [1 / 512, 0.1, 0.02, 0.05 / 512, 0.05]
)  # seconds a unit of each term of the asynchronous form


def speed(terms: np.ndarray, size: Size) -> float:
    """Samples a second of a size."""
    a, b, c, d, e = terms
    w, p = size.workers, size.servers
    seconds = a * BATCH / size.worker_cores + b * w / (p * size.server_cores) + c * w / p + d * BATCH / p + e
    return float(w * BATCH / seconds)


def known_job(number: int, family: str, rng: np.random.Generator) -> KnownJob:
    """One job that is open: settled long ago, measured at what it holds and at three sizes beside."""
    terms = TYPICAL * rng.lognormal(0, 0.6, 5)
    workers, servers = int(rng.integers(8, 41)), int(rng.integers(2, 9))
    held = Size(
        workers=workers,
        servers=servers,
        worker_cores=float(rng.choice([2, 4])),
        server_cores=float(rng.choice([2, 4])),
        worker_memory_bytes=2 * GIB,
        server_memory_bytes=8 * GIB,
    )
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


def cluster(jobs: int, families: int = 0) -> BrainState:
    """So many jobs, their members dealt out over all hosts in turn. `families`: of them; 0: one for twenty jobs."""
    rng, state = np.random.default_rng(1), BrainState(timeline=1, clock_s=1000.0)
    each = HostCapacity(cores=32.0, memory_bytes=128 * GIB)
    state.hosts = dict.fromkeys((f"n{i}" for i in range(HOSTS_A_JOB * jobs)), each)
    hosts, families = cycle(state.hosts), families or jobs // JOBS_A_FAMILY or 1
    for number in range(jobs):
        job = known_job(number, f"f{number % families}", rng)
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


def rounds(jobs: int, families: int = 0) -> tuple[BrainDecider, dict[str, float]]:
    """Time a first look and rounds over a cluster of so many jobs."""
    decider = BrainDecider(1)
    decider.state = cluster(jobs, families)
    keep_totals(decider.state)
    looks = list[list[float]]()
    for at, fresh_fronts in ((0, False), (40, False), (80, False), (120, True), (160, False)):
        if fresh_fronts:
            decider.models._fronts.clear()
        set_aside(full=False)
        with none_full():
            looks.append(look(decider, 2000.0 + at))
    first, _, standing, fresh, _ = looks
    idle = [sum(look(decider, 2161.0 + at)) for at in range(5)]
    found: dict[str, float] = {
        "jobs": jobs,
        "members": sum(len(job.members) for job in decider.state.jobs.values()),
        "hosts": len(decider.state.hosts),
    }
    for name, taken in (("first_look", first), ("round", standing), ("fresh_fronts", fresh)):
        found[f"{name}_s"] = sum(taken)
        found[f"{name}_inputs"] = len(taken)
        found[f"{name}_longest_ms"] = 1e3 * max(taken)
    return decider, found | {"idle_ms": 1e3 * statistics.median(idle)}


def windows(decider: BrainDecider, count: int) -> dict[str, float]:
    """Time looks in which one job's window closes, beside looks in which none does."""
    at_s, taken, idle, rng = 3000.0, list[float](), list[float](), np.random.default_rng(2)
    for name, job in islice(cycle(decider.state.jobs.items()), count):
        at_s += 100.0
        decider.watch.restart(name, at_s - job.window_s - 0.2)
        workers = sum(member.role == "worker" for member in job.members)
        for _ in range(2):
            for member in job.members:
                if member.role == "worker":
                    rate = job.throughput / workers * float(rng.lognormal(0, 0.02))
                    sample = profile_of(name, member, 0.6 * job.window_s, rate)
                    decider.decide(Sampled(sample), at_s - 1.0)
        look(decider, at_s - 0.5)  # a round that is due is not this window's
        idle.append(sum(look(decider, at_s - 0.4)))
        before = job.windows
        taken.append(sum(look(decider, at_s)))
        assert job.windows == before + 1, "its window closes in this look"
    usual = statistics.median(idle)
    more = sorted(1e3 * (each - usual) for each in taken)
    return {"windows": count, "mean_ms": statistics.fmean(more), "p99_ms": more[int(0.99 * len(more))]}


def profile_of(job: str, member: Member, window_s: float, samples_per_s: float = 640.0) -> WorkerProfile:
    """A worker's sample of so many seconds."""
    return WorkerProfile(
        window_s=window_s,
        job=job,
        member=member,
        samples=round(samples_per_s * window_s),
        batches=5,
        read_s=0.2,
        compute_s=2.0,
        pull_s=0.6,
    )


def profiles(decider: BrainDecider, count: int) -> dict[str, float]:
    """Take in samples of workers, from bytes."""
    members = (
        (name, m) for name, job in decider.state.jobs.items() for m in job.members if m.role == "worker"
    )
    bodies = [encode(profile_of(name, member, 4.0)) for name, member in islice(cycle(members), count)]
    began = time.process_time()
    for body in bodies:
        sample = decode_any(body)
        assert isinstance(sample, WorkerProfile)
        decider.decide(Sampled(sample), 4000.0)
    taken = time.process_time() - began
    return {"profiles": count, "a_second": count / taken, "core_at_30000": 30_000 * taken / count}


def restart(decider: BrainDecider) -> dict[str, float]:
    """From a snapshot's bytes to a decider whose first tick is decided."""
    body = decider.dump()
    began = time.process_time()
    successor = BrainDecider(2)
    successor.restore(body)
    restored = time.process_time() - began
    successor.decide(Ticked(), 1.0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    ready = time.process_time() - began
    return {
        "snapshot_mib": len(body) / 2**20,
        "restored_s": restored,
        "first_answer_s": ready,
        "peak_mib": peak,
    }


def draw_growth(found: list[dict[str, float]], path: Path) -> None:
    """Draw the time of a round against the number of jobs, beside a line through the first in proportion."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    jobs, seconds = [each["jobs"] for each in found], [each["round_s"] for each in found]
    figure, axes = pyplot.subplots(figsize=(6, 4))
    axes.loglog(jobs, seconds, "o-", label="a round of the live Brain, standing fronts")
    axes.loglog(jobs, [seconds[0] * n / jobs[0] for n in jobs], "--", color="grey", label="linear")
    axes.set(xlabel="jobs", ylabel="seconds, one core")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


@click.command(help=__doc__)
@click.option("--jobs", default=4000, show_default=True)
@click.option("--windows", "count", default=200, show_default=True)
@click.option("--profiles", "samples", default=100_000, show_default=True)
@click.option("--growth", is_flag=True, help="Time 1,000 to 40,000 jobs as well.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the growth into this file (PNG, SVG).")
@click.option("--json", "as_json", is_flag=True, help="Print one last line of JSON.")
def main(jobs: int, count: int, samples: int, growth: bool, plot: Path | None, as_json: bool) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    decider, found = rounds(jobs)
    result: dict[str, object] = {
        "rounds": found,
        "windows": windows(rounds(100, families=100)[0], count),
        "profiles": profiles(decider, samples),
        "restart": restart(decider),
    }
    if growth or plot:
        several = [rounds(number)[1] for number in (1_000, 2_000, 4_000, 10_000, 20_000, 40_000)]
        result |= {"growth": several}
        for part in ("round_s", "fresh_fronts_s"):
            sizes, times = np.log([r["jobs"] for r in several]), np.log([r[part] for r in several])
            result[f"growth_exponent_{part}"] = float(np.polyfit(sizes, times, 1)[0])
        if plot:
            draw_growth(several, plot)
    for part, figures in result.items():
        for row in figures if isinstance(figures, list) else [figures]:
            cells = row.items() if isinstance(row, dict) else [("", row)]
            print(f"{part:<10}", "  ".join(f"{name} {value:.6g}" for name, value in cells))
    if as_json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
