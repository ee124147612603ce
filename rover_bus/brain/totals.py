"""What all jobs hold together and which hosts have most room, kept record by record: a wish must not add up a cluster.

Fed by `evolution` with each record, feeds `granting`, `rooms` and `choosing`. Beside the state and not in it: all of it follows
from the state. A state that no decider keeps totals for is added up anew at each question, so that nothing here can be stale.
docs/design/0048.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from rover_bus.brain.decisions.arbitration import Budget
from rover_bus.brain.log import FactObserved, HostGone, HostSeen
from rover_bus.brain.state import BrainState, KnownJob
from rover_bus.events.facts import Size
from rover_bus.events.identity import HostCapacity
from rover_bus.events.log import Record

_KEPT = "totals"  # the state's attribute, which no snapshot holds
_UNITS = 10**9  # a core, as it is added: of whole numbers, what is added and taken away again leaves nothing


def present(job: KnownJob) -> Size | None:
    """What a job holds or is about to hold, whichever counts more; None before its first plan."""
    if job.change is None or job.change.settled:
        return job.held
    sizes = [job.held, job.change.before, job.change.after]
    return max((size for size in sizes if size is not None), key=job.cores_of)


def to_come(job: KnownJob) -> Size | None:
    """What a job holds once a shrink that no person has to approve is carried out."""
    change = job.change
    if change is None or change.settled or change.waits or not job.is_less(change):
        return present(job)
    return change.after


@dataclass(slots=True)
class Total:
    """Cores, in units of 10^-9 of one, and bytes."""

    units: int = 0
    memory_bytes: int = 0

    @property
    def cores(self) -> float:
        return self.units / _UNITS

    def add(self, other: Total, sign: int = 1) -> None:
        self.units += sign * other.units
        self.memory_bytes += sign * other.memory_bytes


@dataclass(slots=True)
class _Counted:
    """One job as it is counted. `load`: the very dictionary of its hosts, by which a change of it shows."""

    priority: int
    tenant: str
    has_servers: bool
    holds: bool
    now: Total
    coming: Total
    load: dict[str, tuple[float, float]]


@dataclass
class Totals:
    """One cluster's sums. `now` is held or about to be, `coming` what is held once the shrinks under way are carried out."""

    given: Total = field(default_factory=Total)  # by all hosts
    unbound: int = 0  # hosts that do not hold members to their cores
    holding: int = 0  # jobs that hold anything
    with_servers: int = 0
    now: Total = field(default_factory=Total)
    coming: Total = field(default_factory=Total)
    by_priority: dict[int, Total] = field(default_factory=dict)
    by_tenant: dict[str, Total] = field(default_factory=dict)
    coming_by_tenant: dict[str, Total] = field(default_factory=dict)
    waiting: dict[str, None] = field(default_factory=dict)  # names of jobs that wait for a plan
    shrinking: dict[str, None] = field(default_factory=dict)  # names, in the order in which they began
    _jobs: dict[str, _Counted] = field(default_factory=dict)
    _hosts: dict[str, HostCapacity] = field(default_factory=dict)
    _largest: tuple[float, int] | None = None
    _order: list[str] | None = None
    _rooms: list[tuple[float, str]] | None = (
        None  # hosts by what they have free of their scarcer resource, most first
    )
    _keys: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, state: BrainState) -> Totals:
        """Add up a state."""
        totals = cls()
        for host in state.hosts:
            totals._count_host(state, host)
        for name in state.jobs:
            totals._count(state, name)
        return totals

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def held_by(self, name: str) -> Total:
        """What one job holds or is about to hold."""
        counted = self._jobs.get(name)
        return counted.now if counted is not None else Total()

    def held_from(self, priority: int) -> Total:
        """What jobs of this priority and of higher ones hold."""
        sum_of = Total()
        for each, total in self.by_priority.items():
            if each >= priority:
                sum_of.add(total)
        return sum_of

    def hold_others(self, name: str) -> bool:
        """Whether any other job holds anything."""
        counted = self._jobs.get(name)
        return self.holding > (counted is not None and counted.holds)

    def beside(self, name: str, tenant: str | None = None, *, coming: bool = False) -> Total:
        """What other jobs than this one hold (of one tenant), now or once shrinks under way are carried out."""
        if tenant is None:
            whole = self.coming if coming else self.now
        else:
            whole = (self.coming_by_tenant if coming else self.by_tenant).get(tenant, Total())
        rest, counted = Total(whole.units, whole.memory_bytes), self._jobs.get(name)
        if counted is not None and tenant in (None, counted.tenant):
            rest.add(counted.coming if coming else counted.now, -1)
        return rest

    @property
    def capacity(self) -> Budget:
        """What all hosts give together."""
        return Budget(self.given.cores, self.given.memory_bytes)

    @property
    def largest_host_bytes(self) -> int:
        """The memory of the host that has most."""
        return self._largest_of()[1]

    @property
    def largest_host_cores(self) -> float:
        """The cores of the host that has most; 0 without hosts."""
        return self._largest_of()[0]

    def _largest_of(self) -> tuple[float, int]:
        if self._largest is None:
            hosts = self._hosts.values()
            cores = max((host.cores for host in hosts), default=0.0)
            self._largest = cores, max((host.memory_bytes for host in hosts), default=0)
        return self._largest

    @property
    def cores_bind(self) -> bool:
        """Whether every host holds members to their cores."""
        return not self.unbound

    # -- hosts ---------------------------------------------------------------------------------------------------------

    def host_order(self, state: BrainState) -> list[str]:
        """Hosts by what they can give, the largest first."""
        if self._order is None:
            self._order = sorted(state.hosts, key=lambda host: (-state.hosts[host].cores, host))
        return self._order

    def roomiest(self, state: BrainState) -> Iterator[str]:
        """Hosts by what they have free of their scarcer resource, the roomiest first."""
        if self._rooms is None:
            self._keys = {host: self._key(host, state) for host in state.hosts}
            self._rooms = sorted((key, host) for host, key in self._keys.items())
        return (host for _, host in self._rooms)

    def _key(self, host: str, state: BrainState) -> float:
        given, (cores, size_bytes) = state.hosts[host], state.host_load.get(host, (0.0, 0.0))
        a_byte = self.given.cores / max(self.given.memory_bytes, 1)
        return -min(given.cores - cores, (given.memory_bytes - size_bytes) * a_byte)

    # -- what changes --------------------------------------------------------------------------------------------------

    def follow(self, state: BrainState, record: Record) -> None:
        """Take in what a record has changed. The state has it already."""
        match record:
            case HostSeen(host=host) | HostGone(host=host):
                self._count_host(state, host)
            case FactObserved(fact=fact):
                self._count(state, fact.job)
            case _:
                if name := getattr(record, "job", ""):
                    self._count(state, name)

    def _count_host(self, state: BrainState, host: str) -> None:
        was, now = self._hosts.pop(host, None), state.hosts.get(host)
        if now is not None:
            self._hosts[host] = now
        if was == now:
            return
        for capacity, sign in ((was, -1), (now, 1)):
            if capacity is not None:
                self.given.add(Total(round(capacity.cores * _UNITS), capacity.memory_bytes), sign)
                self.unbound += sign * (not capacity.cores_bind)
        self._order = self._rooms = self._largest = None

    def _count(self, state: BrainState, name: str) -> None:
        was, job = self._jobs.pop(name, None), state.jobs.get(name)
        now = _counted(job) if job is not None else None
        for counted, sign in ((was, -1), (now, 1)):
            if counted is None:
                continue
            self.holding += sign * counted.holds
            self.with_servers += sign * counted.has_servers
            for total, part in (
                (self.now, counted.now),
                (self.coming, counted.coming),
                (self.by_priority.setdefault(counted.priority, Total()), counted.now),
                (self.by_tenant.setdefault(counted.tenant, Total()), counted.now),
                (self.coming_by_tenant.setdefault(counted.tenant, Total()), counted.coming),
            ):
                total.add(part, sign)
        if now is not None:
            self._jobs[name] = now
        if now is None or now.now == now.coming:
            self.shrinking.pop(name, None)
        else:
            self.shrinking[name] = None
        if job is not None and job.waits:
            self.waiting[name] = None
        else:
            self.waiting.pop(name, None)
        self._move_hosts(state, was.load if was is not None else {}, now.load if now is not None else {})

    def _move_hosts(
        self, state: BrainState, was: dict[str, tuple[float, float]], now: dict[str, tuple[float, float]]
    ) -> None:
        if self._rooms is None or was is now:
            return
        for host in (was.keys() | now.keys()) & self._keys.keys():
            old, new = self._keys[host], self._key(host, state)
            if old != new:
                del self._rooms[bisect_left(self._rooms, (old, host))]
                insort(self._rooms, (new, host))
                self._keys[host] = new


def _counted(job: KnownJob) -> _Counted:
    now, coming = present(job), to_come(job)
    counted = _total(job, now)
    return _Counted(
        job.spec.priority,
        job.spec.plan.tenant,
        job.spec.has_servers,
        now is not None,
        counted,
        counted if coming is now else _total(job, coming),
        job.load,
    )


def _total(job: KnownJob, size: Size | None) -> Total:
    if size is None:
        return Total()
    memory_bytes = size.workers * size.worker_memory_bytes + size.servers * size.server_memory_bytes
    return Total(round(job.cores_of(size) * _UNITS), memory_bytes)


def keep_totals(state: BrainState) -> None:
    """From here on totals of this state are kept: `evolution` carries each record on to them."""
    vars(state)[_KEPT] = Totals.of(state)


def totals_of(state: BrainState) -> Totals:
    """Return the totals that are kept of a state, else what it adds up to."""
    kept: Totals | None = vars(state).get(_KEPT)
    return kept if kept is not None else Totals.of(state)


def follow(state: BrainState, record: Record) -> None:
    """Carry a record on to the totals of a state, where they are kept."""
    kept: Totals | None = vars(state).get(_KEPT)
    if kept is not None:
        kept.follow(state, record)
