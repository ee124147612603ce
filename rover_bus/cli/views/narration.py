"""A fact in a line that a person understands. Fed by history.py; read by `rover events`, `submit --wait`, `demo` and `story`."""

from __future__ import annotations

from collections.abc import Iterable

from rover_bus.cli.views.plan_narration import narrate_plan
from rover_bus.events import checkpoint_facts as cuts
from rover_bus.events import data_facts, facts, host_facts
from rover_bus.events.facts import Fact
from rover_bus.events.identity import Member

GOOD, BAD, PLAIN, DIM = "green", "red", "", "dim"


def narrate(fact: Fact) -> str:
    """Return what happened in one line, without the job's name."""
    if isinstance(fact, facts.AboutJob):
        return _narrate_job(fact)
    if isinstance(fact, facts.AboutMembers):
        return _narrate_members(fact)
    if isinstance(fact, facts.AboutSlots):
        return _narrate_slots(fact)
    if isinstance(fact, data_facts.AboutData):
        return _narrate_data(fact)
    if isinstance(fact, facts.AboutPlans | host_facts.AboutCluster):
        return narrate_plan(fact)
    if isinstance(fact, cuts.AboutCheckpoints):
        return narrate_checkpoint(fact)
    if isinstance(fact, cuts.AboutStorage):
        return narrate_storage(fact)
    return fact.kind()


def _narrate_job(fact: facts.AboutJob) -> str:
    """The job as a whole, its masters and plans."""
    match fact:
        case facts.JobSubmitted(spec=spec, by=by):
            return f"submitted{f' by {by}' if by else ''}: {spec.data.epochs} epochs of {spec.data.train}"
        case facts.JobOpened():
            return "a master took the job up: its log begins"
        case facts.JobStopRequested(mode=mode, reason=reason, by=by):
            return (
                f"asked to {'stop' if mode == 'drain' else mode}{f' by {by}' if by else ''}{_because(reason)}"
            )
        case facts.JobEnded(state=state, reason=reason, detail=detail):
            return f"{state}{_because(reason)}{f': {detail}' if detail else ''}"
        case facts.JobRestored(backup=backup):
            return f"its log was restored from {backup or 'a backup'}: what was decided after that is erased"
        case facts.JobForgotten(by=by, reason=reason):
            return f"forgotten{f' by {by}' if by else ''}{_because(reason)}"
        case facts.MasterElected(holder=holder, term=term, replayed_records=replayed):
            return f"{holder} leads, term {term}, after replaying {replayed} records"
        case facts.RuleSwitchedOff(rule=rule, why=why, release=release, exact=exact):
            then = "the job is paused" if exact else f"left out until another release than {release} is here"
            return f"rule {rule!r} failed in three incarnations ({why}): {then}"
        case facts.RuleSwitchedOn(rule=rule, release=release):
            return f"rule {rule!r} runs again, under {release}"
        case facts.ResultReported(task=task, values=values):
            return f"{task}: " + ", ".join(f"{key} {_figure(value)}" for key, value in values.items())
        case facts.JobReported(epoch=epoch, committed=committed, total=total, samples_per_second=rate):
            return f"epoch {epoch}: {committed:,} of {total:,} samples, {rate:,.0f}/s"


def _narrate_members(fact: facts.AboutMembers) -> str:
    """Members and what they do together."""
    match fact:
        case facts.MembersDesired(members=members, former=former):
            kept = (
                f"; until their successors come: {_names(each.member for each in former)}" if former else ""
            )
            return f"members desired: {_names(each.member for each in members)}{kept}"
        case facts.MemberAdmitted(member=member, host=host, pid=pid):
            return f"{member} joined{f' on {host}' if host else ''}{f' (pid {pid})' if pid else ''}"
        case facts.MemberLost(member=member, reason=reason, leases_returned=leases):
            returned = f"; {_count(leases, 'lease')} returned" if leases else ""
            return f"{member} lost: {_spoken(reason)}{returned}"
        case facts.MembersDisplaced(host=host, reason=reason, members=members):
            return f"host {host} is lost ({_spoken(reason)}): {_names(members)} to be started elsewhere"
        case facts.MembersUnheard(host=host, stand_in=seat):
            instead = f", and no other with a master: one is started on {seat.host}" if seat else ""
            return f"host {host} is silent{instead}"
        case facts.MemberLeft(member=member, reason=reason, taken=taken):
            return f"{member} left{_because(_spoken(taken) or reason)}"
        case facts.WorkerFailed(member=member, exception=exception, message=message):
            return f"{member} raised {exception}: {message}" if exception else f"{member} failed: {message}"
        case facts.GroupFormed(number=number, members=members):
            return f"group {number} takes its steps together: {_names(members)}"
        case facts.GroupBroken(number=number, reason=reason, outside=outside, charged=charged):
            return f"a step of group {number} failed, {reason}: {_charged_to(outside, charged)}"
        case _:
            return _narrate_host(fact)


def _narrate_host(fact: host_facts.AboutHosts) -> str:
    """Hosts, and the processes on them."""
    match fact:
        case host_facts.HostRegistered(host=host, capacity=capacity):
            return f"host {host}: {capacity.cores:g} cores, {capacity.memory_bytes / 2**30:.1f} GiB"
        case host_facts.HostStarted(process=process, adopted=adopted, warm=warm):
            how = "adopted" if adopted else "started from a spare" if warm else "started"
            return f"{process.member} {how}, pid {process.pid}"
        case host_facts.HostExited(member=member, exit=exit, ran_s=ran_s):
            told = f": {exit.describe()}" if exit.describe() else ""
            return f"process of {member} ended after {ran_s:.1f} s: {_spoken(exit.reason)}{told}"
        case host_facts.HostServiceEnded(host=host, service=service, exit=exit, ran_s=ran_s):
            how = exit.describe() or _spoken(exit.reason)
            return f"the {service} of host {host} ended after {ran_s:.1f} s and is started again: {how}"
        case host_facts.HostLeaving(host=host, within_s=within):
            return (
                f"host {host} ends soon: its workers leave, its servers after a last cut, within {within:g} s"
            )
        case host_facts.HostTurnFailed(host=host, job=job, why=why):
            return f"host {host} cannot decide on {job}, its members there stay as they are: {why}"
        case host_facts.HostProgramRefused(host=host, path=path, problem=problem):
            return f"the program does not start on host {host}, no worker is placed there: {path}: {problem}"
        case host_facts.HostProgramMended(host=host):
            return f"the program starts on host {host} now"
        case host_facts.HostAdjustRefused(host=host, member=member, resources=wanted, why=why):
            size = f"{wanted.cores:g} cores and {wanted.memory_bytes / (1 << 20):,.0f} MiB"
            return f"{member} cannot be given {size} on host {host}, it keeps what it has: {why}"
        case host_facts.HostMemberStalled(member=member, reason=reason, why=why):
            return f"{member} cannot start, it waits: {reason}: {why}"
        case host_facts.HostMemberTaken(member=member, host=host, reason=reason, why=why):
            return f"{member} is being taken away from host {host}, {_spoken(reason)}: {why}"
        case host_facts.HostSpareFailed(host=host, job=job, failures=failures, why=why):
            return f"a spare of {job} failed on host {host}, {_count(failures, 'failure')} in a row: {why}"
        case host_facts.HostSpareMended(host=host, job=job):
            return f"spares of {job} are ready on host {host} again"
        case host_facts.HostSlow(host=host, share=share, members=members):
            shown = f", as {', '.join(members[:3])} show" if members else ""
            return f"host {host} is slow: {share:.0%} of what is usual{shown}; plans avoid it"
        case host_facts.HostRecovered(host=host, share=share):
            return f"host {host} is used again: {share:.0%} of what is usual"
        case host_facts.HostStorageOpened(host=host, serves_parts_at=address):
            served = f", and serves them to other hosts at {address}" if address else ""
            return f"host {host} keeps and stores checkpoints{served}"
        case host_facts.HostLeft(host=host, reason=reason):
            return f"host {host} leaves{_because(reason)}"


def _charged_to(outside: bool, charged: list[Member]) -> str:
    if outside:
        return "a loss from outside"
    return f"charged to {_names(charged)}" if charged else "charged to none"


def _narrate_slots(fact: facts.AboutSlots) -> str:
    """Routing, and slots that move."""
    match fact:
        case facts.RoutingChanged(generation=generation, epoch=epoch, servers=servers):
            return f"routing ({generation}, {epoch}): {_names(Member('ps', each.index, each.incarnation) for each in servers)}"
        case facts.SlotsMoveRequested(source=source, target=target, host=host, by=by, hot=hot):
            what = f"off host {host}" if host else f"{'hot ones ' if hot else ''}from {source or 'anywhere'}"
            return f"{by or 'a person'} wants slots moved {what}{f' to {target}' if target else ''}"
        case facts.MoveRefused(reason=reason):
            return f"the move of slots is refused: {reason}"
        case facts.RolloutOpened(rollout=rollout, slots=slots, joins=joins, first=True):
            return (
                f"the first servers begin: {_count(slots, 'slot')} to move to {_names(joins)} as they arrive"
            )
        case facts.RolloutOpened(rollout=rollout, slots=slots, joins=joins, drops=drops):
            joining = f"; {_names(joins)} joins" if joins else ""
            leaving = f"; {_names(drops)} leaves" if drops else ""
            return f"rollout {rollout}: {_count(slots, 'slot')} to move{joining}{leaving}"
        case facts.SlotsMoved(source=source, target=target, slots=slots, bytes=size):
            count = sum(end - first for first, end in slots)
            return f"{_count(count, 'slot')} moved from {source} to {target} ({size / 2**20:.1f} MiB)"
        case facts.MoveFailed(source=source, target=target, reason=reason):
            return f"slots stay on {source}, not moved to {target}: {reason}"
        case facts.RolloutClosed(rollout=rollout, outcome=outcome, reason=reason):
            return f"rollout {rollout} {_spoken(outcome)}{_because(reason)}"


def _narrate_data(fact: data_facts.AboutData) -> str:
    """Records, batches, leases and epochs."""
    match fact:
        case data_facts.DatasetRegistered(dataset=dataset):
            return f"data set of {dataset.records:,} records in batches of {dataset.batch_size}, {dataset.epochs} epochs"
        case data_facts.DatasetRefused(member=member, difference=difference):
            return f"{member} registered other data: {difference}"
        case data_facts.EpochOpened(epoch=epoch):
            return f"epoch {epoch} begins"
        case data_facts.EpochClosed(epoch=epoch, committed=committed, dead_lettered=dead):
            return f"epoch {epoch} is done: {committed:,} samples committed{f', {dead:,} dead-lettered' if dead else ''}"
        case data_facts.CommitRefused(member=member, reason=reason):
            return f"a commit of {member} refused: {_spoken(reason)}"
        case data_facts.BatchDeadLettered(epoch=epoch, batch=batch, samples=samples, reason=reason):
            return f"batch {batch} of epoch {epoch} dead-lettered ({samples} samples): {reason}"
        case data_facts.RowsSkipped(file=file, rows=rows):
            return (
                f"{_count(len(rows), 'row')} of {file} unusable, first line {rows[0].line}: {rows[0].reason}"
            )
        case data_facts.LeaseSpeculated(first=first, batches=batches, second=second):
            return f"batches {first} to {first + batches - 1} leased a second time, to {second}"
        case data_facts.LedgerRewound(generation=generation, reason=reason):
            return f"ledger rewound, generation {generation}: {reason}"


def narrate_checkpoint(fact: cuts.AboutCheckpoints) -> str:
    """Return what happened to a cut in one line."""
    match fact:
        case cuts.CheckpointSearchOrdered(host=host, look=True):
            return f"{host} is asked whether a checkpoint that can be restored has come to storage"
        case cuts.CheckpointSearchOrdered(host=host, reason=reason):
            return f"{host} is asked which checkpoint lies on storage: {reason}"
        case cuts.CheckpointNoneUsable(choice=choice, problems=problems):
            then = {
                "ask": "its room is given to others and a person decides",
                "fail": "the job fails",
                "restart": "it begins from nothing",
            }[choice]
            return f"no checkpoint can be restored, {then}: {'; '.join(problems) or 'storage is empty'}"
        case cuts.CheckpointRequested(reason=reason, by=by):
            return f"a checkpoint is asked for{f' by {by}' if by else ''}{_because(reason)}"
        case cuts.CheckpointDeclined(reason=reason):
            return f"no checkpoint is taken: {reason}"
        case cuts.CheckpointOpened(cut=cut, epoch=epoch, samples_committed=samples):
            return f"cut {cut} opens at {samples:,} samples, epoch {epoch}"
        case cuts.PartStaged(cut=cut, place=place, blocked_s=blocked):
            size = _mib(place.size_bytes)
            return f"cut {cut}: {place.part} staged on {place.host or 'its host'}, {size} in {blocked * 1e3:.1f} ms"
        case cuts.CheckpointStaged(cut=cut, parts=parts):
            return f"cut {cut} is staged: {_count(len(parts), 'part')} in memory"
        case cuts.CheckpointPersistOrdered(cut=cut, path=path):
            return f"cut {cut} is to be stored{f' in {path}' if path else ''}"
        case cuts.CheckpointManifestOrdered(cut=cut, host=host):
            return f"cut {cut}: every part is stored, {host} writes the manifest"
        case cuts.CheckpointRedundant(cut=cut, holders=holders):
            return f"cut {cut} is redundant: also on {', '.join(holders) or 'other hosts'}"
        case cuts.CheckpointReady(cut=cut, path=path, size_bytes=size):
            return f"cut {cut} is ready: {path}{f', {_mib(size)}' if size else ''}"
        case cuts.CheckpointSuperseded(cut=cut, newer=by, reason=reason):
            return f"cut {cut} superseded{f' by cut {by}' if by else ''}{_because(reason)}"
        case cuts.CheckpointFailed(cut=cut, reason=reason):
            return f"cut {cut} failed: {reason}"
        case cuts.ServerRestored(member=member, cut=cut, source=source, seconds=seconds, rows=rows):
            again = f", {fact.samples_again:,} samples again" if fact.samples_again else ""
            text = f"{member} restored from cut {cut} in {source}: {rows:,} rows in {seconds:.2f} s{again}"
            return f"{text}; not from {'; '.join(fact.refused)}" if fact.refused else text


def narrate_storage(fact: cuts.AboutStorage) -> str:
    """Return what a daemon did with a part of a cut, or found on storage, in one line."""
    match fact:
        case cuts.HostStorageSearched(host=host, problem=problem) if problem:
            return f"{host} cannot look at storage: {problem}"
        case cuts.HostStorageSearched(host=host, found=found, there=there, refused=refused):
            newest = (
                f"cut {found.cut} of generation {found.generation} is the newest" if found else "none is left"
            )
            of_no_use = f"; of no use: {'; '.join(refused)}" if refused else ""
            return f"{host} found {_count(there, 'checkpoint')} on storage, {newest}{of_no_use}"
        case cuts.HostCheckpointDamaged(cut=cut, path=path, reason=reason):
            what = f"cut {cut}" if cut else "a manifest that is none of ours"
            return f"{what} is damaged and set aside ({path}): {reason}"
        case cuts.HostPartFailed(cut=cut, part=part, step=step, reason=reason):
            return f"cut {cut}: {step} of {part or 'the manifest'} failed: {reason}"
        case cuts.HostStorageBlocked(host=host, cut=cut, reason=reason):
            if not reason:
                return f"{host} can write to storage again"
            return f"cut {cut} cannot be stored from {host} now, and is tried again: {reason}"
        case cuts.HostPartDigested(host=host, cut=cut, part=part):
            return f"cut {cut}: {part} has its digests on {host}"
        case cuts.HostPartMirrored(host=host, cut=cut, part=part, of=of, parity=parity):
            return f"cut {cut}: {host} holds {'parity over' if parity else 'a copy of'} {part} of {of}"
        case cuts.HostPartPersisted(host=host, cut=cut, part=part):
            return f"cut {cut}: {host} has stored {part}"
        case cuts.HostManifestWritten(host=host, cut=cut):
            return f"cut {cut}: {host} has stored the manifest"


WENT_WELL = (
    facts.MasterElected
    | facts.MemberAdmitted
    | facts.ResultReported
    | facts.PlanKept
    | facts.StragglerRecovered
    | facts.IncidentClosed
    | data_facts.EpochClosed
    | cuts.CheckpointReady
    | cuts.ServerRestored
    | host_facts.HostProgramMended
    | host_facts.HostAdjustRefused
    | host_facts.HostRecovered
    | host_facts.HostSpareMended
)
WENT_WRONG = (
    facts.PlanRolledBack
    | facts.PlanRefused
    | facts.StragglerFound
    | facts.IncidentOpened
    | facts.MemberLost
    | facts.MembersDisplaced
    | facts.MembersUnheard
    | facts.WorkerFailed
    | facts.GroupBroken
    | facts.MoveFailed
    | facts.MoveRefused
    | data_facts.BatchDeadLettered
    | data_facts.CommitRefused
    | data_facts.DatasetRefused
    | data_facts.LedgerRewound
    | data_facts.RowsSkipped
    | host_facts.HostProgramRefused
    | host_facts.HostMemberStalled
    | host_facts.HostMemberTaken
    | host_facts.HostServiceEnded
    | host_facts.HostSlow
    | host_facts.HostSpareFailed
    | cuts.CheckpointFailed
    | cuts.HostPartFailed
    | cuts.CheckpointNoneUsable
    | cuts.HostCheckpointDamaged
)
FOR_THE_RECORD = (
    facts.SlotsMoved
    | facts.JobReported
    | facts.MembersDesired
    | facts.RoutingChanged
    | cuts.CheckpointFact
    | cuts.HostPartFact
)


def mood(fact: Fact) -> str:
    """Return the colour of a fact: what went well, what went wrong, what is only said for the record."""
    match fact:
        case facts.JobEnded(state=state):
            return GOOD if state == "completed" else BAD
        case facts.RolloutClosed(outcome=outcome):
            return GOOD if outcome == "done" else BAD
        case host_facts.HostExited(exit=exit) if exit.reason not in ("completed", "drained"):
            return BAD
        case cuts.HostStorageBlocked(reason=reason):
            return BAD if reason else GOOD
        case _ if isinstance(fact, WENT_WELL):
            return GOOD
        case _ if isinstance(fact, WENT_WRONG):
            return BAD
        case _:
            return DIM if isinstance(fact, FOR_THE_RECORD) else PLAIN


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.1f} MiB"


def _because(reason: str) -> str:
    return f" ({_spoken(reason)})" if reason else ""


def _spoken(constant: str) -> str:
    return constant.replace("_", " ")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _names(members: Iterable[Member]) -> str:
    return ", ".join(map(str, members)) or "none"


def _figure(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
