"""What hosts have free, which of them a plan names, where its new members go, and which hosts it avoids.

Fed by the state: capacity of hosts, members and what each is counted with. Feeds `proposing` and `hosts`. Pure; docs/design/0039.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from operator import attrgetter

import msgspec

from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.decisions.placement import MOST_NODES, Node, Share, place_jobs
from rover_bus.brain.decisions.plans import Allocation
from rover_bus.brain.loads import shares_hosts
from rover_bus.brain.rules import RULES
from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.brain.totals import totals_of
from rover_bus.events.facts import Size
from rover_bus.events.identity import Member

MOST = 1 << 30  # members without any limit
MOST_NAMED = 64  # hosts of a plan, or as many as its members run on
_EPSILON = 1e-9
_index = attrgetter("index")


def free_of(host: str, state: BrainState) -> Budget:
    """What the members of all jobs leave of a host."""
    capacity, (cores, size_bytes) = state.hosts[host], state.host_load.get(host, (0.0, 0.0))
    return Budget(capacity.cores - cores, capacity.memory_bytes - size_bytes)


def room_for(cores: float, memory_bytes: int, free: Iterable[Budget]) -> int:
    """How many members of a size there is room for, each on one host."""
    total = 0
    for left in free:
        by_cores = int(left.cores / cores + _EPSILON) if cores > 0 else MOST
        by_memory = int(left.memory_bytes / memory_bytes + _EPSILON) if memory_bytes > 0 else MOST
        total += max(min(by_cores, by_memory), 0)
    return total


def usual_hosts(state: BrainState) -> list[str]:
    """The hosts that are not slow."""
    return [host for host in state.hosts if host not in state.slow_hosts]


def named_hosts(job: KnownJob, state: BrainState, placed: Iterable[str] = ()) -> list[str]:
    """The hosts of a plan: those of the job's first one, then those that came since; of all the slow ones last.

    A plan is a fact, and the master looks through these: in a large cluster they are those where the job has members or gets them
    (`placed`), and the roomiest beside, so that the successor of a lost member finds a host.
    """
    if len(state.hosts) <= MOST_NAMED:
        named = [*dict.fromkeys([*job.hosts, *totals_of(state).host_order(state)])]
    else:
        own = [host for host in dict.fromkeys([*job.where.values(), *placed]) if host in state.hosts]
        roomy = islice(totals_of(state).roomiest(state), MOST_NAMED)
        named = [*dict.fromkeys([*own, *roomy])][: max(MOST_NAMED, len(own))]
    return sorted(named, key=lambda host: host in state.slow_hosts)


def fits_hosts(job: KnownJob, size: Size, state: BrainState) -> bool:
    """Return whether hosts have room for a size: for members that stay, each as large as it will be, and for new ones.

    Members without limits share what there is: for them only sums count.
    """
    if shares_hosts(size) or not state.hosts:
        return True
    if not job.spec.has_servers:
        return not size.workers or bool(_ring(job, size, state))
    touched, moving = _after(job, size, state)
    if len(moving) > _most_moved(job) or any(
        left.cores < -_EPSILON or left.memory_bytes < 0 for left in touched.values()
    ):
        return False
    staying = Counter(member.role for member, _ in _split(job, size)[0])
    added = job.charge(size).replace(
        workers=max(size.workers - staying["worker"], 0) + len(moving),
        servers=max(size.servers - staying["ps"], 0),
    )
    if not added.members:
        return True
    return bool(_placed(added, state, touched))


def fits_once_they_shrink(
    job: KnownJob, size: Size, shrinks: Iterable[tuple[KnownJob, Size]], state: BrainState
) -> bool:
    """Whether hosts have room for a start once these jobs have shrunk: sums may say so where no host does."""
    if shares_hosts(size) or not job.spec.has_servers or not state.hosts:
        return True
    free = dict[str, Budget]()
    for other, smaller in shrinks:
        if shares_hosts(other.held) or other.held is None:
            return True
        each = other.charge(other.held)
        for member, host in _split(other, smaller)[1]:
            if host in state.hosts:
                cores, size_bytes = _of_one(each, member.role == "ps")
                left = free.get(host) or free_of(host, state)
                free[host] = Budget(left.cores + cores, left.memory_bytes + size_bytes)
    return bool(_placed(job.charge(size), state, free))


def _most_moved(job: KnownJob) -> int:
    """How many workers may start elsewhere at once: half of them, so that training goes on; all, where standing still until
    they are there takes less than a dead-band of what is left.
    """
    if job.held is None:
        return 0
    short = job.start_s < RULES.restraint.dead_band * job.remaining_s
    return job.held.workers if short and job.start_s else max(job.held.workers // 2, 1)


def _placed(
    wanted: Allocation, state: BrainState, touched: Mapping[str, Budget], without: Collection[str] = ()
) -> tuple[Share, ...]:
    """Place members on the roomiest hosts, some left out; () where they find no room. `touched`: what hosts have free by then.

    Placement takes at most as many of the roomiest hosts as there are members: no more are shown to it.
    """
    others = (h for h in totals_of(state).roomiest(state) if h not in touched and h not in without)
    nodes = [_node(host, free_of(host, state)) for host in islice(others, min(wanted.members, MOST_NODES))]
    nodes += [_node(host, left) for host, left in touched.items() if host not in without]
    placement = place_jobs([wanted], nodes)[0]
    return () if placement.missing else placement.shares


def moving_workers(job: KnownJob, size: Size, state: BrainState) -> list[Member]:
    """Return the workers that cannot have a size where they are: their successors start on hosts with room for it.

    A ring starts again whenever it changes, so all of its workers may move.
    """
    if not job.spec.has_servers:
        changes = job.held is not None and job.held.shape != size.shape
        return [m for m in job.members if changes and m.index < size.workers]
    return [] if shares_hosts(size) else _after(job, size, state)[1]


def _after(job: KnownJob, size: Size, state: BrainState) -> tuple[dict[str, Budget], list[Member]]:
    """What the hosts of a job have free once members that stay have their new size, and the workers that leave for that.

    Servers stay where they are, and the workers beside them make way: a host on which servers find no room even so has less than
    nothing free. Other hosts are as they were.
    """
    held = job.held
    if held is None:
        return {}, []
    now, then = job.charge(held), job.charge(size)
    alike = _of_one(now, True) == _of_one(then, True) and _of_one(now, False) == _of_one(then, False)
    if alike and size.workers >= held.workers and size.servers >= held.servers:
        return {}, []  # nothing of it changes where it is
    free = {host: free_of(host, state) for host in dict.fromkeys(job.where.values()) if host in state.hosts}
    moving = list[Member]()
    staying, leaving = _split(job, size)
    for member, host in staying:
        serves = member.role == "ps"
        if host not in free:
            continue
        (cores, size_bytes), (had, had_bytes) = _of_one(then, serves), _of_one(now, serves)
        if (cores, size_bytes) == (had, had_bytes):
            continue
        left = Budget(free[host].cores - cores + had, free[host].memory_bytes - size_bytes + had_bytes)
        larger = cores > had or size_bytes > had_bytes
        if not serves and larger and (left.cores < -_EPSILON or left.memory_bytes < 0):
            moving.append(member)
        else:
            free[host] = left
    for member, host in leaving:
        had, had_bytes = _of_one(now, member.role == "ps")
        if host in free:
            free[host] = Budget(free[host].cores + had, free[host].memory_bytes + had_bytes)
    moving += _make_way([member for member in staying if member[0] not in moving], free, then)
    return {
        host: left if _is_touched(left, host, state) else _floor(left) for host, left in free.items()
    }, moving


def _make_way(
    staying: Iterable[tuple[Member, str]], free: dict[str, Budget], then: Allocation
) -> list[Member]:
    """The workers that leave hosts on which a server that grows would find no room beside them; `free` is brought up to date."""
    moving, (cores, size_bytes) = list[Member](), _of_one(then, False)
    for member, host in staying:
        left = free.get(host)
        if left is None or member.role == "ps" or (left.cores >= -_EPSILON and left.memory_bytes >= 0):
            continue
        free[host] = Budget(left.cores + cores, left.memory_bytes + size_bytes)
        moving.append(member)
    return moving


def _is_touched(left: Budget, host: str, state: BrainState) -> bool:
    """Whether a plan takes more of a host than is taken now."""
    now = free_of(host, state)
    return left.cores < now.cores - _EPSILON or left.memory_bytes < now.memory_bytes


def _floor(left: Budget) -> Budget:
    return Budget(max(left.cores, 0.0), max(left.memory_bytes, 0))


def _split(job: KnownJob, size: Size) -> tuple[list[tuple[Member, str]], list[tuple[Member, str]]]:
    """Members with a host, and where: those that stay, servers first and by index, and those that a size has no place for."""
    servers, workers, leaving = (list[tuple[Member, str]]() for _ in range(3))
    for member in sorted(job.members, key=_index):
        if (host := job.where.get(member.name)) is None:
            continue
        serves = member.role == "ps"
        if member.index >= (size.servers if serves else size.workers):
            leaving.append((member, host))
        else:
            (servers if serves else workers).append((member, host))
    return servers + workers, leaving


def _of_one(each: Allocation, serves: bool) -> tuple[float, int]:
    if serves:
        return each.server_cores, each.server_memory_bytes
    return each.worker_cores, each.worker_memory_bytes


class MemberHosts(msgspec.Struct, frozen=True, kw_only=True):
    """Where a plan's new and replaced members go: `slow` are avoided, as far as no host is named for a member."""

    slow: list[str] = []
    workers: list[str] = []
    servers: list[str] = []


def place(job: KnownJob, size: Size, state: BrainState, replaced: int = 0) -> MemberHosts:
    """Place what a plan adds or replaces (`replaced` workers).

    Members with limits go where the job runs, else on the fewest hosts that fit, equal shares on each (`decisions.placement`); on
    slow ones only where the others are full. Members without limits share what there is: they are spread over all usual hosts.
    """
    held = job.held or Size(workers=0, servers=0)
    workers, servers = max(size.workers - held.workers, 0) + replaced, max(size.servers - held.servers, 0)
    if len(state.slow_hosts) >= len(state.hosts):
        return MemberHosts()
    if not workers + servers:
        return MemberHosts(slow=sorted(state.slow_hosts))  # for successors of members that are lost later
    wanted = job.charge(size).replace(workers=workers, servers=servers)
    if shares_hosts(size):
        fits = not state.slow_hosts or _holds(wanted, [free_of(host, state) for host in usual_hosts(state)])
        return MemberHosts(slow=sorted(state.slow_hosts) if fits else [])
    if not job.spec.has_servers:
        ring = _ring(job, size, state)
        slow = [] if state.slow_hosts.keys() & set(ring) else sorted(state.slow_hosts)
        return MemberHosts(slow=slow, workers=ring)
    touched, _ = _after(job, size, state)
    for shares, slow in _tries(job, wanted, state, touched):
        if shares:
            return MemberHosts(
                slow=slow,
                workers=[share.node for share in shares for _ in range(share.workers)],
                servers=[share.node for share in shares for _ in range(share.servers)],
            )
    return MemberHosts()  # it is more than hosts have room for: members then share them


def may_stay(
    job: KnownJob, size: Size, moving: Collection[Member], places: MemberHosts, state: BrainState
) -> list[Member]:
    """Return the workers, of those that a plan gives another host, that may train on until their successors come: their hosts have
    room for them beside what starts or grows there meanwhile.
    """
    held = job.held
    if held is None or not job.spec.has_servers:
        return []
    staying = [
        member for member in moving if member.role == "worker" and job.where.get(member.name) in state.hosts
    ]
    if shares_hosts(held) or shares_hosts(size):
        return staying
    now, then = job.charge(held), job.charge(size)
    left = {host: free_of(host, state) for host in {job.where[member.name] for member in staying}}
    for host, serves in [(host, False) for host in places.workers] + [
        (host, True) for host in places.servers
    ]:
        _take(left, host, _of_one(then, serves), (0.0, 0))
    for member in job.members:
        if member not in moving and member.name in job.where:
            serves = member.role == "ps"
            _take(left, job.where[member.name], _of_one(then, serves), _of_one(now, serves))
    crowded = {host for host, room in left.items() if room.cores < -_EPSILON or room.memory_bytes < 0}
    return [member for member in staying if job.where[member.name] not in crowded]


def _take(left: dict[str, Budget], host: str, takes: tuple[float, int], had: tuple[float, int]) -> None:
    """Count what a member has in place of what it had, where the host is one of these."""
    if host in left:
        cores, size_bytes = max(takes[0] - had[0], 0.0), max(takes[1] - had[1], 0)
        left[host] = Budget(left[host].cores - cores, left[host].memory_bytes - size_bytes)


def _tries(
    job: KnownJob, wanted: Allocation, state: BrainState, touched: Mapping[str, Budget]
) -> Iterator[tuple[tuple[Share, ...], list[str]]]:
    """Where members find room, with the hosts that are avoided: where the job runs, then anywhere, at last on slow hosts too."""
    slow = sorted(state.slow_hosts)
    own = sorted({h for h in job.where.values() if h in state.hosts and h not in state.slow_hosts})
    placement = place_jobs([wanted], [_node(h, touched.get(h) or free_of(h, state)) for h in own])[0]
    yield () if placement.missing else placement.shares, slow
    yield _placed(wanted, state, touched, state.slow_hosts), slow
    if slow:
        yield _placed(wanted, state, touched), []


def _ring(job: KnownJob, size: Size, state: BrainState) -> list[str]:
    """The host of each worker of a ring: the fewest that have room once its present workers are gone, slow ones only where it must.

    Of hosts that would do the fullest is taken: whole hosts stay free for larger rings. Empty where there is no room.
    """
    rooms = _rooms(job, size, state)
    usual = {host: room for host, room in rooms.items() if host not in state.slow_hosts}
    for candidates in (usual, rooms):
        if sum(candidates.values()) >= size.workers:
            return _pack(size.workers, candidates)
    return []


def scatters(job: KnownJob, size: Size, state: BrainState) -> bool:
    """Whether a ring would be on several hosts though one could hold it."""
    if job.spec.has_servers or shares_hosts(size) or size.workers < 2:
        return False
    a_host = room_for(job.charge(size).worker_cores, 0, [Budget(totals_of(state).largest_host_cores, 0)])
    return size.workers <= a_host and len({*_ring(job, size, state)}) > 1


def most_on_a_host(job: KnownJob, size: Size, state: BrainState) -> int:
    """How many workers of a ring one host has room for, once its present ones are gone."""
    return max(_rooms(job, size, state).values(), default=0)


def _rooms(job: KnownJob, size: Size, state: BrainState) -> dict[str, int]:
    """How many workers of a ring each host has room for, once its present ones are gone."""
    each = job.charge(size)
    rooms = dict[str, int]()
    for host in state.hosts:
        left, (cores, size_bytes) = free_of(host, state), job.load.get(host, (0.0, 0.0))
        left = Budget(left.cores + cores, left.memory_bytes + size_bytes)
        rooms[host] = room_for(each.worker_cores, each.worker_memory_bytes, [left])
    return rooms


def _pack(workers: int, rooms: dict[str, int]) -> list[str]:
    left, placed = dict(rooms), list[str]()
    while workers > len(placed):
        missing = workers - len(placed)
        enough = [host for host, room in left.items() if room >= missing]
        host = min(enough, key=lambda each: left[each]) if enough else max(left, key=lambda each: left[each])
        placed += [host] * min(left.pop(host), missing)
    return placed


def _node(host: str, free: Budget) -> Node:
    return Node(host, max(free.cores, 0.0), max(int(free.memory_bytes), 0))


def _holds(wanted: Allocation, free: list[Budget]) -> bool:
    by_workers = room_for(wanted.worker_cores, wanted.worker_memory_bytes, free)
    by_servers = room_for(wanted.server_cores, wanted.server_memory_bytes, free)
    enough = wanted.cores <= sum(max(left.cores, 0.0) for left in free) + _EPSILON
    return enough and wanted.workers <= by_workers and wanted.servers <= by_servers
