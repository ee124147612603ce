"""What a seed draws: the shape of a job, the weather on its network, which process dies when. All chance of a history starts here.

Feeds cluster.py and history.py. Drawn from one generator, so that a seed names a history for ever (as long as this file stands:
a change here changes what the seeds mean, and nothing else).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rover_bus.events.memory_links import Faults

Act = Literal[
    "kill_worker",
    "kill_leader",
    "kill_standby",
    "kill_daemon",
    "kill_brain",
    "restart_broker",
    "partition",
    "preempt",
    "move_slots",  # asked for: a share of a server's slots, spread over the others
    "scale",  # planned by hand: another number of servers
    "kill_server",
    "kill_all",  # every process of the job at once
    "lose_memory",  # what a server had staged is gone
    "lose_all_memory",  # every process of the job, and all that was staged
    "damage_storage",  # the newest `for_s` checkpoints on storage; `who` decides how
    "move_workers",  # to another host, `for_s` of them; `who` says whether they train until their successors are there
    "power_cut",  # not drawn: the tail of the log may be lost with it (P21)
]


@dataclass(frozen=True)
class Blow:
    """Something happens at `at_s`; `who` picks among those alive, `for_s` is how long a partition lasts."""

    at_s: float
    act: Act
    who: float = 0.0
    for_s: float = 0.0


@dataclass(frozen=True)
class Plan:
    """One history, before it is lived."""

    seed: int
    records: int
    batch_size: int
    epochs: int
    workers: int
    servers: int
    batch_s: float  # what a batch takes to compute, on average
    target_s: float
    faults: Faults
    drop: float  # worker-to-server traffic
    double: float
    delay_s: float
    in_flight: int
    blows: tuple[Blow, ...] = ()
    poison: tuple[int, ...] = ()  # batches on which user code raises, in every epoch
    bad_rows: tuple[int, ...] = ()  # positions whose rows cannot be used
    snapshot_every_batches: int = 40
    cut_every_s: float = 0.0  # 0: the job takes no cuts
    stored: bool = False  # cuts go to storage
    sample_s: float = 0.0  # above 0 workers publish samples, and the Brain has windows of twice that
    most_workers: int = 64
    late_s: tuple[float, ...] = ()  # by server index: the first process of each is so slow to start
    room_bytes: int = 0  # that a server finds free; 0: not known
    synchronous: bool = False  # not drawn: workers have a barrier between them in each step


def chance_of(seed: int, what: str) -> random.Random:
    """A generator of its own for every use, so that one more draw here does not change what happens there."""
    return random.Random(f"{seed}/{what}")


def draw(seed: int) -> Plan:
    """Draw a history from a seed."""
    chance = random.Random(seed)
    batch_size = chance.choice((1, 4, 7, 16))
    batches = chance.randint(3, 60)
    records = max(1, batches * batch_size - chance.randrange(batch_size))
    workers = chance.randint(1, 5)
    batch_s = chance.choice((0.02, 0.05, 0.2))
    epochs = chance.randint(1, 3)
    expected_s = 3.0 + epochs * batches * batch_s / workers
    rough = chance.random()
    return Plan(
        seed=seed,
        records=records,
        batch_size=batch_size,
        epochs=epochs,
        workers=workers,
        servers=chance.randint(1, 3),
        batch_s=batch_s,
        target_s=chance.choice((0.2, 0.5, 2.0)),
        faults=Faults(
            delay_s=(0.0, 0.02 * rough),
            ack_delay_s=(0.0, 0.03 * rough),
            drop=0.01 * rough,
            duplicate=0.05 * rough,
            reorder=0.05 * rough,
            append_lost=0.01 * rough,
            ack_lost=0.01 * rough,
        ),
        drop=0.05 * chance.random(),
        double=0.1 * chance.random(),
        delay_s=0.02 * chance.random(),
        in_flight=chance.choice((1, 1, 1, 3)),
        blows=tuple(sorted(_all_blows(chance, seed, expected_s), key=lambda blow: blow.at_s)),
        cut_every_s=random.Random(f"{seed}/cuts").choice((0.0, 0.2, 0.5, 2.0)),
        stored=_is_stored(seed),
        late_s=_late(seed),
        room_bytes=random.Random(f"{seed}/room").choice((0, 1 << 10, 1 << 14)),
        poison=_some(chance, batches, 0.15, 1),
        bad_rows=_some(chance, records, 0.3, 5),
    )


def _all_blows(chance: random.Random, seed: int, expected_s: float) -> Iterator[Blow]:
    yield from _blows(chance, expected_s)
    for draw_some in (_moves, _losses, _damage, _journeys):
        yield from draw_some(seed, expected_s)


def _blows(chance: random.Random, expected_s: float) -> tuple[Blow, ...]:
    acts: list[Act] = [
        "kill_worker",
        "kill_worker",
        "kill_leader",
        "kill_standby",
        "kill_daemon",
        "kill_brain",
        "restart_broker",
        "partition",
        "preempt",
    ]
    blows = [
        Blow(chance.uniform(0.5, expected_s), chance.choice(acts), chance.random(), chance.uniform(0.2, 6.0))
        for _ in range(chance.randint(0, 6))
    ]
    return tuple(sorted(blows, key=lambda blow: blow.at_s))


def _moves(seed: int, expected_s: float) -> tuple[Blow, ...]:
    """Servers change in every other history; drawn apart, so that the rest of a seed's history is what it was without."""
    chance = random.Random(f"{seed}/moves")
    if chance.random() < 0.5:
        return ()
    acts: list[Act] = ["move_slots", "move_slots", "scale"]
    return tuple(
        Blow(chance.uniform(0.5, expected_s), chance.choice(acts), chance.random(), chance.random())
        for _ in range(chance.randint(1, 4))
    )


def _losses(seed: int, expected_s: float) -> tuple[Blow, ...]:
    """Draw what happens to servers, from a generator of its own: other draws stay what they were."""
    chance = random.Random(f"{seed}/servers")
    acts: list[Act] = ["kill_server", "kill_server", "kill_server", "kill_server", "kill_all", "lose_memory"]
    return tuple(
        Blow(chance.uniform(0.5, expected_s), chance.choice(acts), chance.random())
        for _ in range(chance.choice((0, 0, 1, 1, 2, 4)))
    )


def _journeys(seed: int, expected_s: float) -> tuple[Blow, ...]:
    """Workers go to another host, and back, in every third history; what is struck meanwhile is drawn as in the others."""
    chance = random.Random(f"{seed}/journeys")
    if chance.random() < 2 / 3:
        return ()
    return tuple(
        Blow(chance.uniform(0.5, expected_s), "move_workers", chance.random(), chance.random())
        for _ in range(chance.randint(1, 4))
    )


def _is_stored(seed: int) -> bool:
    return random.Random(f"{seed}/stored").random() < 0.3


def _late(seed: int) -> tuple[float, ...]:
    """Servers start one by one in every third history: training begins with the first of them."""
    chance = random.Random(f"{seed}/late")
    if chance.random() < 2 / 3:
        return ()
    return tuple(chance.choice((0.0, 0.0, 1.5, 3.0, 8.0)) * chance.random() for _ in range(3))


def _damage(seed: int, expected_s: float) -> tuple[Blow, ...]:
    """Draw what happens to storage, where there is one: the newest checkpoints are damaged, then all memory is lost."""
    chance = random.Random(f"{seed}/damage")
    if not _is_stored(seed):
        return ()
    blows: list[Blow] = []
    for _ in range(chance.choice((0, 1, 1, 2))):
        at_s = chance.uniform(0.5, expected_s)
        blows.append(Blow(at_s, "damage_storage", chance.random(), chance.choice((1, 2, 2, 3, 9))))
        blows.append(Blow(at_s + chance.uniform(0.0, 0.5), "lose_all_memory"))
    return tuple(blows)


def _some(chance: random.Random, count: int, probability: float, most: int) -> tuple[int, ...]:
    if chance.random() > probability:
        return ()
    return tuple(sorted(chance.sample(range(count), min(count, chance.randint(1, most)))))
