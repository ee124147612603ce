"""What a seed draws: hosts, jobs, and what is done to them when. Pure; a change here changes what the seeds mean, and nothing else.

The counterpart, for real processes, of rover_bus/simulation/plan.py. Hosts, jobs and blows come from generators of their own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal, get_args

Process = Literal[
    "kill_worker",
    "kill_server",
    "kill_master",
    "kill_job",  # every process of a job at once
    "kill_daemon",
    "kill_brain",
    "kill_broker",
    "kill_up",  # what keeps the services alive; it is started again at once
    "pause_worker",
    "pause_server",
    "pause_master",
    "pause_daemon",
    "pause_brain",
    "pause_broker",
]
Memory = Literal[
    "flip_memory",  # bits of a stopped server's slots, once they have digests; then it is killed
    "cut_memory",
    "vanish_memory",
    "foreign_memory",
    "lose_memory",  # all that a job has staged on a host, and its servers with it
]
Storage = Literal["flip_storage", "cut_storage", "vanish_storage", "foreign_storage"]
Room = Literal["fill_memory", "fill_disk"]
Traffic = Literal[
    "foreign_leader", "foreign_presence", "foreign_routing", "foreign_fact", "foreign_host_fact"
]
Act = Literal[Process, Memory, Storage, Room, Traffic, "remove_logs", "lose_host"]
GROUPS: tuple[tuple[int, tuple[Act, ...]], ...] = (
    (5, get_args(Process)),
    (3, get_args(Memory)),
    (3, get_args(Storage)),
    (2, get_args(Traffic)),
    (1, get_args(Room)),
    (1, ("remove_logs",)),
)
# What makes a blow matter: damage is met when something is restored, a foreign key when somebody looks for the leader.
SEQUELS: dict[Act, tuple[Act, ...]] = {
    **dict.fromkeys(get_args(Storage), ("lose_memory", "lose_memory", "kill_job")),
    **dict.fromkeys(
        ("foreign_leader", "foreign_routing", "foreign_fact"), ("kill_job", "kill_master", "kill_worker")
    ),
    **dict.fromkeys(("foreign_host_fact", "foreign_presence"), ("kill_brain", "kill_master", "kill_daemon")),
    **dict.fromkeys(get_args(Room), ("kill_server", "kill_broker", "kill_master")),
    "remove_logs": ("kill_broker", "kill_daemon"),
    "kill_broker": ("kill_master", "kill_server"),
}
SEQUEL_S = 3.0
SPAN_S = 18.0


@dataclass(frozen=True)
class JobShape:
    """A job. `checkpoint`: lines of this table, none without; `integers`: its model is integers, compared to the last one."""

    name: str
    integers: bool
    rows: int
    epochs: int
    batch_size: int
    workers: int
    servers: int
    on_server_lost: str
    checkpoint: str

    @property
    def persists(self) -> bool:
        return "persist = true" in self.checkpoint


@dataclass(frozen=True)
class Blow:
    """Something happens at `at_s`, to a job or a host; `draw` decides the rest; it lasts `for_s`, or stays."""

    at_s: float
    act: Act
    job: int
    host: int
    draw: int
    for_s: float


@dataclass(frozen=True)
class History:
    """One history. memory_mib, disk_mib: of a small one a host, 0: the machine's own."""

    seed: int
    hosts: int
    memory_mib: int
    disk_mib: int
    jobs: tuple[JobShape, ...]
    blows: tuple[Blow, ...]


def draw(seed: int) -> History:
    """Draw a history from a seed."""
    chance = random.Random(f"{seed}/hosts")
    hosts = chance.choice((1, 1, 1, 2))
    jobs = _jobs(random.Random(f"{seed}/jobs"), hosts)
    return History(
        seed=seed,
        hosts=hosts,
        memory_mib=chance.choice((0, 0, 12, 24, 64)),
        disk_mib=chance.choice((0, 0, 96, 192)),
        jobs=jobs,
        blows=_blows(random.Random(f"{seed}/blows"), hosts, len(jobs)),
    )


def _jobs(chance: random.Random, hosts: int) -> tuple[JobShape, ...]:
    return tuple(_job(chance, f"job-{number}", hosts) for number in range(chance.choice((2, 2, 3))))


def _job(chance: random.Random, name: str, hosts: int) -> JobShape:
    persists, copies = chance.random() < 0.7, hosts > 1 and chance.random() < 0.5
    every = chance.choice(("300ms", "1s", "2s"))
    lines = f'every = "{every}"\npersist = {str(persists).lower()}\ncopies = {int(copies)}\n'
    takes_cuts = chance.random() < 0.85
    return JobShape(
        name=name,
        integers=chance.random() < 0.6,
        rows=chance.randint(4_000, 12_000),
        epochs=chance.choice((1, 2)),
        batch_size=chance.choice((16, 32, 64)),
        workers=chance.randint(1, 3),
        servers=chance.randint(1, 3),
        on_server_lost="restore" if takes_cuts else chance.choice(("restart", "fail")),
        checkpoint=lines if takes_cuts else "",
    )


def _blows(chance: random.Random, hosts: int, jobs: int) -> tuple[Blow, ...]:
    groups, weights = [acts for _, acts in GROUPS], [weight for weight, _ in GROUPS]
    if hosts > 1:
        groups, weights = [*groups, ("lose_host",)], [*weights, 2]

    def blow() -> Blow:
        [acts] = chance.choices(groups, weights)
        return Blow(
            at_s=chance.uniform(1.0, SPAN_S),
            act=chance.choice(acts),
            job=chance.randrange(jobs),
            host=chance.randrange(hosts),
            draw=chance.randrange(1 << 30),
            for_s=chance.uniform(0.3, 6.0),
        )

    blows = [blow() for _ in range(chance.randint(3, 9))]
    sequels = [_sequel(chance, each) for each in blows if each.act in SEQUELS and chance.random() < 0.6]
    return tuple(sorted([*blows, *sequels], key=lambda each: each.at_s))


def _sequel(chance: random.Random, blow: Blow) -> Blow:
    at_s, act = blow.at_s + chance.uniform(0.2, SEQUEL_S), chance.choice(SEQUELS[blow.act])
    return replace(blow, at_s=at_s, act=act, draw=chance.randrange(1 << 30))
