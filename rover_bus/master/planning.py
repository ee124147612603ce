"""From a plan to members: member names, incarnations, hosts, programs; and the repair of what was lost. Pure.

Asked by the decider, answers with `MembersDesired` records: absolute sets, every incarnation named (P5, P18). A lost member is
replaced by its next incarnation, on its host if that lives, else on the next of the plan's hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from rover_bus.events.facts import MembersDesired, PlanApplied, PlanProposed
from rover_bus.events.identity import DesiredMember, MasterSeat, Member, Resources, Role
from rover_bus.master import formers
from rover_bus.master.state import State

INCARNATIONS_A_SEAT = 1000  # of a master on one host, before its names could meet those that it has elsewhere


def plan_members(state: State, proposal: PlanProposed, cause: str) -> MembersDesired:
    """Carry out a plan: keep the members that stay, allocate incarnations for new ones, drop the workers that go.

    A member that the plan names in `replaces` is followed by its next incarnation, and a worker trains on until that one comes
    where it can (`formers`). Servers that serve are never dropped here: first their slots move away (`rollout`).
    """
    named = proposal.hosts or state.seats.hosts.named or ["local"]
    slow = proposal.slow_hosts
    able: dict[Role, list[str]] = {role: able_hosts(state, role, named, slow) for role in ("ps", "worker")}
    load = Counter(desired.host for desired in state.seats.wanted.values())
    chosen = _chosen_hosts(state, proposal, named)
    members: list[DesiredMember] = []
    seats: list[tuple[Role, int]] = [("ps", index) for index in server_indexes(state, proposal.servers)]
    seats += [("worker", index) for index in worker_indexes(state, proposal.workers)]
    for role, index in seats:
        resources = _resources(proposal, role)
        kept = state.seats.wanted.get(f"{role}-{index}")
        if kept is not None:
            if kept.member in proposal.replaces:  # slow, not lost: it drains
                kept = _next(state, kept, load, slow=slow)
                kept = kept.replace(host=next(chosen[role], "") or kept.host)
            elif proposal.rolls_back:
                kept = formers.taken_back(state, kept, resources, proposal.rolls_back) or kept
            members.append(kept.replace(resources=resources))
        else:
            host = next(chosen[role], "") or able[role][len(members) % len(able[role])]
            members.append(_desired(state, role, index, host, resources))
    former = formers.of_plan(state, members, proposal.stays)
    return MembersDesired(
        plan=state.seats.plan + 1,
        members=members,
        former=former,
        reason=proposal.reason,
        proposal=proposal.plan,
        masters=state.seats.masters or [MasterSeat(host=host) for host in proposal.masters],
        hosts=list(named),
        slow_hosts=slow,
        cause=cause,
    )


def _chosen_hosts(state: State, proposal: PlanProposed, named: list[str]) -> dict[Role, Iterator[str]]:
    """The hosts that the plan chose for new members, one after another; "" for one that is gone or does not run the program."""
    able: dict[Role, list[str]] = {role: able_hosts(state, role, named, []) for role in ("ps", "worker")}
    chosen: dict[Role, list[str]] = {"ps": proposal.server_hosts, "worker": proposal.worker_hosts}
    return {role: (host if host in able[role] else "" for host in chosen[role]) for role in chosen}


def applied(state: State, proposal: PlanProposed, cause: str, approved_by: str = "") -> PlanApplied:
    """Return what is said of a plan whose members are named: it is carried out from here on."""
    return PlanApplied(
        plan=proposal.plan,
        workers=proposal.workers,
        servers=proposal.servers,
        reason=proposal.reason,
        size=proposal.size,
        constant=proposal.constant,
        approved_by=approved_by,
        members_plan=state.seats.plan,
        cause=cause,
    )


def present_servers(state: State) -> list[int]:
    """Return the indexes of the planned servers, ascending."""
    return sorted(d.member.index for d in state.seats.wanted.values() if d.member.role == "ps")


def owning_servers(state: State) -> list[int]:
    """Return the indexes of the servers that slots are given to, ascending: of a suspended job those that its checkpoint is of."""
    return sorted({index for index, _, _ in state.slots.owners})


def server_indexes(state: State, count: int) -> list[int]:
    """Return the servers to run for a plan of `count`: those that serve (some may have to give slots away first), and new ones."""
    present = present_servers(state)
    if not present and len(owning := owning_servers(state)) == count:
        return owning
    if state.slots.routing is None:
        present = present[:count]
    free = (index for index in range(len(present) + count) if index not in present)
    return [*present, *(next(free) for _ in range(count - len(present)))]


def worker_indexes(state: State, count: int) -> list[int]:
    """Return the workers to run for a plan of `count`: of those there are, the ones that train before the ones still to come."""
    wanted = [d.member for d in state.seats.wanted.values() if d.member.role == "worker"]
    trains = {m: state.seats.has(m) or state.seats.has_former(m.name) for m in wanted}
    first = sorted(wanted, key=lambda member: (not trains[member], member.index))
    present = sorted(member.index for member in first[:count])
    free = (index for index in range(count) if index not in present)
    return [*present, *(next(free) for _ in range(count - len(present)))]


def add_servers(
    state: State, resources: list[Resources], hosts: list[str], cause: str, reason: str
) -> tuple[MembersDesired, list[int]]:
    """Plan one more server for each of `resources`, on these hosts in turn; return the record and the new indexes."""
    joins = server_indexes(state, len(present_servers(state)) + len(resources))[-len(resources) :]
    added = [
        _desired(state, "ps", index, hosts[at % len(hosts)], each)
        for at, (index, each) in enumerate(zip(joins, resources, strict=True))
    ]
    return _changed(state, [*state.seats.wanted.values(), *added], cause, reason), joins


def replace_members(
    state: State, lost: Iterable[Member], cause: str, reason: str, left: bool = False
) -> MembersDesired:
    """Give each lost member its next incarnation; the others stay as they are. A member of a lost host goes elsewhere.

    left: they said good-bye, and have the time to end that every member has.
    """
    gone = {member.name for member in lost}
    load = Counter(desired.host for desired in state.seats.wanted.values())
    members = [
        desired if desired.member.name not in gone else _follow(state, desired, load, not left)
        for desired in state.seats.wanted.values()
    ]
    return _changed(state, members, cause, reason)


def is_planned(state: State, member: Member) -> bool:
    """Whether this very incarnation is wanted: not one whose successor is planned already."""
    desired = state.seats.wanted.get(member.name)
    return desired is not None and desired.member == member


def begin_again(state: State, lost: Iterable[Member], cause: str, reason: str) -> MembersDesired:
    """Like `replace_members`, and the members that were done are wanted again: all the work is still to be done (P24)."""
    again = [] if state.paused else _workers_again(state)
    record = replace_members(state, lost, cause, reason)
    return _changed(state, [*record.members, *again], cause, reason)


def resume_members(state: State, cause: str, reason: str) -> MembersDesired:
    """What a pause took away runs again, as new incarnations."""
    again = [*_servers_again(state), *_workers_again(state)]
    return _changed(state, [*state.seats.wanted.values(), *again], cause, reason)


def release_members(state: State, cause: str, reason: str) -> MembersDesired:
    """No worker or server runs any more, until a person has decided; masters stay."""
    return _changed(state, [], cause, reason)


def waits_for_room(state: State) -> bool:
    """Whether all members of a resumed job were released, so that a plan of the Brain names them: others may have their room."""
    return state.release and not state.seats.wanted and state.plans.brain_term > 0


def revive_members(state: State, servers: Iterable[DesiredMember], cause: str, reason: str) -> MembersDesired:
    """These servers and the workers that were released run again, as new incarnations."""
    load = Counter(desired.host for desired in state.seats.done.values())
    again = [_next(state, desired, load) for desired in servers]
    return _changed(state, [*again, *_workers_again(state)], cause, reason)


def _servers_again(state: State) -> list[DesiredMember]:
    """Servers that a pause released. One that had given its slots away before is not missed."""
    if present_servers(state):
        return []
    owning, load = {index for index, _, _ in state.slots.owners}, Counter[str]()
    gone = [desired for desired in state.seats.done.values() if desired.member.role == "ps"]
    return [_next(state, desired, load) for desired in gone if not owning or desired.member.index in owning]


def _workers_again(state: State) -> list[DesiredMember]:
    """Workers that were done, or paused. A server that left has given its slots away: it is not missed."""
    load = Counter(desired.host for desired in state.seats.wanted.values())
    again = [desired for desired in state.seats.done.values() if desired.member.role == "worker"]
    return [_next(state, desired, load) for desired in again]


def _follow(state: State, lost: DesiredMember, load: Counter[str], after_loss: bool) -> DesiredMember:
    """The next incarnation of a member that is gone. Where its former still trains it is named for another host, so that it stays;
    where there is no other, the former is wanted again if it has as much as is wanted, and else ends in order.
    """
    former = state.seats.former.get(lost.member.name)
    if former is None or not state.seats.has_former(lost.member.name):
        return _next(state, lost, load, after_loss)
    following = _next(state, lost, load, without=former.host)
    if following.host == former.host and not formers.is_more(lost.resources, former.resources):
        return former.replace(resources=lost.resources)
    return following


def _next(
    state: State,
    desired: DesiredMember,
    load: Counter[str],
    after_loss: bool = False,
    slow: list[str] | None = None,
    without: str = "",
) -> DesiredMember:
    """The next incarnation of a member, on its host, or on the host with the fewest members that can run it.

    `slow`: the slow hosts of the plan that is carried out; None: of the last one. A worker leaves them; a server does not, because
    what it staged lies there (`rover move --off` moves it whole). `without`: a host that is taken only where no other is able.
    """
    host, hosts = desired.host, state.seats.hosts
    slow = hosts.slow if slow is None else slow
    able = able_hosts(state, desired.member.role, hosts.named, slow)
    unwanted = host in hosts.unfit or (host in slow and desired.member.role == "worker")
    if host in hosts.away or (unwanted and host not in able):
        host = min(able, key=lambda each: (each == without, load[each], able.index(each)), default=host)
        load[host] += 1
    return desired.replace(member=_next_incarnation(state, desired.member), host=host, after_loss=after_loss)


def _living(state: State, hosts: list[str]) -> list[str]:
    """Return those hosts that are not lost; all of them where none is left."""
    return [host for host in hosts if host not in state.seats.hosts.away] or hosts


def able_hosts(state: State, role: Role, hosts: list[str], slow: list[str] | None = None) -> list[str]:
    """Return the living hosts where a member of this role would start, slow ones only where no other is left; all living ones
    where none would do.

    Only workers run the job's program: what servers and masters run is each host's own.
    """
    alive = _living(state, hosts)
    slow = state.seats.hosts.slow if slow is None else slow
    fit = [host for host in alive if role != "worker" or host not in state.seats.hosts.unfit]
    return [host for host in fit if host not in slow] or fit or alive


def seat_masters(state: State, cause: str, reason: str) -> MembersDesired:
    """Masters of lost hosts go to living ones, and two of one host apart where there is room: leader and standby fall singly."""
    seats = list(state.seats.masters)
    alive = _living(state, state.seats.hosts.named)
    load = Counter(desired.host for desired in state.seats.wanted.values())
    newest_last = sorted(range(len(seats)), key=lambda index: seats[index].first)
    for index in reversed(newest_last):
        taken = Counter(seat.host for at, seat in enumerate(seats) if at != index)
        host = min(
            alive, key=lambda each: (taken[each], load[each], alive.index(each)), default=seats[index].host
        )
        lost = seats[index].host not in alive
        if lost or taken[seats[index].host] > taken[host]:
            first = max(seat.first for seat in seats) + INCARNATIONS_A_SEAT
            seats[index] = MasterSeat(host=host, first=first)
    return _changed(state, list(state.seats.wanted.values()), cause, reason, seats)


def remove_members(state: State, names: set[str], cause: str, reason: str) -> MembersDesired:
    """These members, by name, shall not run any more."""
    members = [desired for name, desired in state.seats.wanted.items() if name not in names]
    return _changed(state, members, cause, reason)


def without_formers(state: State, names: Collection[str], cause: str, reason: str) -> MembersDesired:
    """The members as they are; the formers of these, by name, are to end."""
    return _changed(state, list(state.seats.wanted.values()), cause, reason, relieved=names)


def _changed(
    state: State,
    members: list[DesiredMember],
    cause: str,
    reason: str,
    masters: list[MasterSeat] | None = None,
    relieved: Collection[str] = (),
) -> MembersDesired:
    stay = formers.still_wanted(state, members)
    former = [each for each in stay if each.member.name not in relieved]
    return MembersDesired(
        plan=state.seats.plan + 1,
        members=members,
        former=former,
        reason=reason,
        masters=state.seats.masters if masters is None else masters,
        cause=cause,
    )


def _next_incarnation(state: State, member: Member) -> Member:
    return Member(member.role, member.index, state.seats.incarnations.get(member.name, 0) + 1)


def _desired(state: State, role: Role, index: int, host: str, resources: Resources) -> DesiredMember:
    spec = state.job.spec
    return DesiredMember(
        member=_next_incarnation(state, Member(role, index, 0)),
        host=host,
        command=spec.program if role == "worker" else [],
        environment=spec.environment,
        resources=resources,
        directory=spec.directory,
        grace_s=(spec.servers if role == "ps" else spec.workers).grace_s,
        start_patience_s=spec.moves.start_patience_s,
    )


def _resources(proposal: PlanProposed, role: Role) -> Resources:
    if role == "ps":
        return Resources(cores=proposal.server_cores, memory_bytes=proposal.server_memory_bytes)
    return Resources(cores=proposal.worker_cores, memory_bytes=proposal.worker_memory_bytes)
