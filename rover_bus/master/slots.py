"""Arithmetic of slots: the owner of each, run-length or one by one; what a request to move them comes to. Pure, no log, no clock.

Asked by `rollout`. A goal is a whole map (owner of each of the 4096 slots), never a difference, so that any successor can
carry it out from any point (protocol P18).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

SLOTS = 4096
Owners = list[tuple[int, int, int]]  # (server index, first slot, end slot)
Ranges = list[tuple[int, int]]  # [first, end)
LEVEL = 0.1  # of the mean: closer than this is level


def expand(owners: Iterable[tuple[int, int, int]]) -> list[int]:
    """Return the owner of each slot, -1 for none."""
    by_slot = [-1] * SLOTS
    for index, first, end in owners:
        by_slot[first:end] = [index] * (end - first)
    return by_slot


def compress(by_slot: Sequence[int]) -> Owners:
    """Return the run-length form of `expand`."""
    owners: Owners = []
    for slot, index in enumerate(by_slot):
        if owners and owners[-1][0] == index and owners[-1][2] == slot:
            owners[-1] = (index, owners[-1][1], slot + 1)
        else:
            owners.append((index, slot, slot + 1))
    return owners


def share_out(servers: Sequence[int]) -> Owners:
    """Return even shares, one stretch each, for these servers in turn; nothing without any."""
    bounds = [SLOTS * at // len(servers) for at in range(len(servers) + 1)] if servers else []
    return [(index, bounds[at], bounds[at + 1]) for at, index in enumerate(servers)]


def stand_in(goal: Owners, there: Sequence[int]) -> Owners:
    """Return a map in which the servers that are there have what the goal gives them, and even parts of what it gives to others."""
    by_slot = expand(goal)
    for index, first, end in goal:
        for at, other in enumerate(there if index not in there else ()):
            start, stop = (first + (end - first) * each // len(there) for each in (at, at + 1))
            by_slot[start:stop] = [other] * (stop - start)
    return compress(by_slot)


def ranges(slots: Iterable[int]) -> Ranges:
    """Return ascending slots as [first, end) ranges."""
    found: Ranges = []
    for slot in slots:
        if found and found[-1][1] == slot:
            found[-1] = (found[-1][0], slot + 1)
        else:
            found.append((slot, slot + 1))
    return found


def members_of(slots: Iterable[tuple[int, int]]) -> list[int]:
    """Return the slots of some ranges, one by one."""
    return [slot for first, end in slots for slot in range(first, end)]


def counts(by_slot: Sequence[int]) -> dict[int, int]:
    """Return how many slots each server owns."""
    held: dict[int, int] = {}
    for index in by_slot:
        held[index] = held.get(index, 0) + 1
    return held


def even_out(by_slot: Sequence[int], servers: Sequence[int]) -> list[int]:
    """Return a map in which `servers`, and no others, hold nearly equal numbers of slots; as few as possible change hands."""
    wanted = {index: SLOTS // len(servers) for index in servers}
    for index in sorted(servers)[: SLOTS % len(servers)]:
        wanted[index] += 1
    held = counts(by_slot)
    surplus = {index: held.get(index, 0) - wanted.get(index, 0) for index in {*held, *servers}}
    takers = [index for index in sorted(servers) for _ in range(max(0, -surplus[index]))]
    goal = list(by_slot)
    for slot in range(SLOTS - 1, -1, -1):
        if surplus[goal[slot]] > 0:
            surplus[goal[slot]] -= 1
            goal[slot] = takers.pop()
    return goal


def hand_out(by_slot: Sequence[int], slots: Iterable[int], targets: Sequence[int]) -> list[int]:
    """Return a map in which these slots belong to the targets, each time to the one that holds the fewest."""
    goal = list(by_slot)
    held = {index: by_slot.count(index) for index in targets}
    for slot in slots:
        target = min(targets, key=lambda index: (held[index], index))
        goal[slot] = target
        held[target] += 1
    return goal


def level(
    by_slot: Sequence[int], source: int, targets: Sequence[int], loads: Mapping[int, float]
) -> list[int]:
    """Return a map in which `source` has given its hottest slots away until its load is the mean's. `loads`: slot -> keys a second.

    A slot hotter than the gap stays: it would only make another server hot.
    """
    goal = list(by_slot)
    total = dict.fromkeys([source, *targets], 0.0)
    for slot, index in enumerate(by_slot):
        if index in total:
            total[index] += loads.get(slot, 0.0)
    mean = sum(total.values()) / len(total)
    mine = [slot for slot in range(SLOTS) if by_slot[slot] == source]
    for slot in sorted(mine, key=lambda each: (-loads.get(each, 0.0), each)):
        if total[source] <= mean * (1 + LEVEL):
            break
        load = loads.get(slot, 0.0)
        target = min(targets, key=lambda index: (total[index], index))
        if 0 < load < total[source] - total[target]:
            goal[slot] = target
            total[source] -= load
            total[target] += load
    return goal
