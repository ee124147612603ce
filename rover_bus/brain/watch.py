"""Samples on their way into a window: what the Brain has heard and not yet logged. Lost with the process (P22).

Fed by the shell with profiles of workers and hosts and with progress reports; feeds `WindowClosed` records. Times are seconds
of one monotonic clock, passed in. A sample counts from the window in which it began: what covers the time before a change says
nothing about the time after it, and an incarnation's first sample is its warm-up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rover_bus.brain.log import WindowClosed, WorkerWindow
from rover_bus.brain.state import KnownJob
from rover_bus.events.facts import JobReported, PlanApplied, PlanSettled
from rover_bus.events.identity import Member
from rover_bus.events.profiles import HostProfile, ProcessSample, ServerProfile, WorkerProfile

SLACK_S = 0.3  # a sample may have begun this much before its window
COVERED = 0.45  # share of a window that a worker's samples must cover
OVERDUE = 2.0  # windows after which one is closed without the silent members
LEAST_OWN = 0.1  # share of a window spent reading and computing from which the pace of that can be told
LEAST_WORKING = (
    0.25  # share of a window spent working from which its pace can be told; waiting for other workers apart
)
LEAST_BETWEEN = 0.02  # and of the whole window, for one that waits for others most of the time
HOST_SAMPLE_S = 5.0  # how often a host is sampled, until two samples of it tell
SILENT_SAMPLES = 2.0  # of a host, missed in a row: it is silent,
LOST_SAMPLES = 3.0  # and gone, whatever else is known of it
LONGEST_LOOK_S = 3.0  # between two looks: a Brain that was away longer did not listen


@dataclass
class _Sum:
    """One worker's samples in the open window."""

    seconds: float = 0.0
    samples: float = 0.0
    batches: int = 0
    waited_s: float = 0.0
    barrier_s: float = 0.0  # that it waited for other workers of its group
    reading_s: float = 0.0
    own_s: float = 0.0  # that it read and computed: what servers and leases took is left out
    loss: float = 0.0
    auc: float = 0.0


@dataclass
class _Open:
    """One job's open window, and the latest of what comes without one."""

    began: float
    watched: float = (
        0.0  # since when losses are counted with no window yet: what restarts windows does not restart this
    )
    sums: dict[Member, _Sum] = field(default_factory=dict)
    known: set[Member] = field(default_factory=set)
    server_bytes: dict[str, int] = field(default_factory=dict)
    server_needs: dict[str, int] = field(default_factory=dict)  # bytes, by their own word
    cores_used: dict[str, list[float]] = field(default_factory=dict)
    cores_peak: dict[str, list[float]] = field(default_factory=dict)
    server_cores: dict[str, float] = field(default_factory=dict)
    by_host: set[str] = field(
        default_factory=set
    )  # members whose use their host says: their own word is not asked
    server_busy: dict[str, float] = field(default_factory=dict)  # of their tables' threads, by their own word
    committed: int = 0
    total: int = 0
    log_sequence: int = 0

    def covers(self, member: Member, window_s: float) -> bool:
        """Whether a worker was observed for most of a window."""
        return member in self.sums and self.sums[member].seconds >= COVERED * window_s

    def take_use(self, said: ProcessSample | WorkerProfile | ServerProfile) -> None:
        """Take in what a member uses of its machine."""
        member = said.member
        self.cores_used.setdefault(member.role, []).append(said.cores_used)
        if said.cores_peak:
            self.cores_peak.setdefault(member.role, []).append(said.cores_peak)
        if member.role == "ps":
            self.server_bytes[member.name] = said.memory_bytes
            self.server_cores[member.name] = said.cores_used

    def take_own_word(self, profile: WorkerProfile | ServerProfile) -> None:
        """Take in what a member says that it uses, where no host measures it: in a pod."""
        if profile.member.name not in self.by_host:
            self.take_use(profile)

    def take_need(self, profile: ServerProfile) -> None:
        """Take in the memory that a server needs: what it uses, and what its next cuts will take. No host knows the latter, and
        the two belong to one moment.
        """
        self.server_needs[profile.member.name] = profile.memory_bytes + profile.unstaged_bytes


class JobSamples:
    """The open windows of all jobs."""

    def __init__(self) -> None:
        self.stretch = 1.0  # of all windows
        self._open: dict[str, _Open] = {}
        self._hosts: dict[
            str, tuple[float, float]
        ] = {}  # when a host was last heard, and how often it speaks
        self._asked: dict[str, float] = {}  # when it was first asked whether a host is silent
        self._expected: dict[str, float] = {}  # since when a host that was not heard yet is expected
        self._lost: dict[str, set[str]] = {}  # workers that were followed since the last look, by job
        self._killed: dict[str, Member] = {}  # the last one that its memory limit killed since then, by job
        self._taken = Counter[str]()  # members that were taken from outside, by job, since its last window
        self._looked: float | None = None
        self._carried_out: dict[str, tuple[int, float]] = {}  # the plan under way of each job, and since when
        self._deaf = False

    def forget(self, job: str) -> None:
        self._open.pop(job, None)
        self._lost.pop(job, None)
        self._killed.pop(job, None)
        self._taken.pop(job, None)
        self._carried_out.pop(job, None)

    def carry_out(self, fact: PlanApplied, now: float) -> None:
        """A plan is carried out from here on. What was said before the first look of this Brain may be old: it tells no time."""
        if self._looked is not None:
            self._carried_out[fact.job] = fact.plan, now

    def resume(self, job: str, now: float) -> None:
        """Its members come from here on: the time of a pause is none that they took."""
        if job in self._carried_out:
            self._carried_out[job] = self._carried_out[job][0], now

    def settle(self, fact: PlanSettled, now: float) -> float:
        """Return the seconds in which a plan was carried out, its members joined; 0 where they were not all observed."""
        plan, since_s = self._carried_out.pop(fact.job, (0, now))
        return round(now - since_s, 3) if plan == fact.plan else 0.0

    def lose(self, job: str, workers: Iterable[str]) -> None:
        """These workers were lost, and are followed by others."""
        if names := set(workers):
            self._lost.setdefault(job, set()).update(names)

    def take_away(self, job: str) -> None:
        """A member was taken from outside."""
        self._taken[job] += 1

    def taken(self, job: str, now: float) -> tuple[int, float]:
        """Return how many members of a job were taken since it was last asked, and in how many seconds."""
        opened = self._at(job, now)
        watched_s, opened.watched = round(max(now - opened.watched, 0.0), 3), now
        return self._taken.pop(job, 0), watched_s

    def kill(self, job: str, member: Member) -> None:
        """A member was killed for its memory."""
        self._killed[job] = member

    def take_killed(self) -> dict[str, Member]:
        """Return whom memory limits killed since the last call, one of each job: a limit is that of a role."""
        killed, self._killed = self._killed, {}
        return killed

    def take_lost(self) -> dict[str, set[str]]:
        """Return what was lost since the last call, by job: all of it is one decision."""
        lost, self._lost = self._lost, {}
        return lost

    def restart(self, job: str, now: float) -> None:
        """Something changed: what was heard until now belongs to another size."""
        opened = self._at(job, now)
        opened.began = now
        opened.sums.clear()

    def see(self, job: str, log_sequence: int, now: float) -> None:
        """A fact from this position of the job's log was observed."""
        opened = self._at(job, now)
        opened.log_sequence = max(opened.log_sequence, log_sequence)

    def report(self, fact: JobReported, now: float) -> None:
        opened = self._at(fact.job, now)
        opened.committed = fact.committed + fact.dead_lettered
        opened.total = 0 if fact.total_grows else fact.total  # a stream that keeps up is not nearly finished

    def observe(self, profile: WorkerProfile, now: float) -> None:
        """Take in a worker's sample."""
        opened = self._at(profile.job, now)
        if profile.member not in opened.known:
            opened.known.add(profile.member)
            return
        if profile.window_s <= 0 or now - profile.window_s < opened.began - SLACK_S:
            return
        total = opened.sums.setdefault(profile.member, _Sum())
        total.seconds += profile.window_s
        total.samples += profile.samples
        total.batches += profile.batches
        total.waited_s += profile.wait_s
        total.barrier_s += profile.barrier_s
        total.reading_s += profile.read_s
        total.own_s += profile.read_s + profile.compute_s
        total.loss += profile.loss * profile.samples
        total.auc = profile.metrics.get("auc", total.auc)
        if profile.memory_bytes:
            opened.take_own_word(profile)

    def observe_server(self, profile: ServerProfile) -> None:
        """Take in a server's sample: its own word on how busy its tables are comes before what its host sees of the process."""
        opened = self._open.get(profile.job)
        if opened is None or profile.window_s <= 0:
            return
        opened.server_busy[profile.member.name] = round(profile.busy_s / profile.window_s, 4)
        if profile.memory_bytes:
            opened.take_own_word(profile)
            opened.take_need(profile)

    def observe_host(self, profile: HostProfile, now: float) -> None:
        """Take in what members of a host use. Its first sample covers less than the others."""
        self._hosts[profile.host] = (now, profile.window_s if profile.host in self._hosts else HOST_SAMPLE_S)
        for process in profile.processes:
            opened = self._open.get(process.job)
            if opened is None:
                continue
            opened.by_host.add(process.member.name)
            opened.take_use(process)

    def lose_bus(self) -> None:
        """No member can be observed: that says nothing of any of them (P19)."""
        self._deaf = True

    def regain_bus(self, now: float) -> None:
        self._deaf = False
        self._forgive(now)

    def look(self, now: float) -> None:
        """Note that the Brain listens. No member counts as silent while it did not."""
        if self._looked is not None and now - self._looked > LONGEST_LOOK_S:
            self._forgive(now)
        self._looked = now

    def _forgive(self, now: float) -> None:
        self._hosts = {host: (now, every_s) for host, (_, every_s) in self._hosts.items()}
        self._expected = dict.fromkeys(self._expected, now)

    def unheard(self, now: float, sampled_s: Mapping[str, float]) -> list[str]:
        """Return the hosts of which three samples are missing.

        `sampled_s`: how often each host said that it takes samples. One that said so is expected from the first look on, though
        this process never heard it; one that did not may take none.
        """
        if self._deaf:
            return []
        never = [
            host
            for host, every_s in sampled_s.items()
            if host not in self._hosts and now - self._expected.setdefault(host, now) > LOST_SAMPLES * every_s
        ]
        return never + [
            host
            for host, (heard, every_s) in self._hosts.items()
            if now - heard > LOST_SAMPLES * max(every_s, sampled_s.get(host, 0.0))
        ]

    def expect_again(self, host: str, now: float) -> None:
        """Its daemon says that it is there: the first sample is still to come."""
        self._expected[host] = now

    def forget_host(self, host: str) -> None:
        """It left, and said so."""
        self._hosts.pop(host, None)
        self._expected.pop(host, None)

    def is_silent(self, host: str, now: float, sampled_s: Mapping[str, float]) -> bool:
        """Say whether two samples of a host are missing. One that was never heard is waited for from the first question on."""
        if self._deaf:
            return False
        asked = self._asked.setdefault(host, now)
        heard, every_s = self._hosts.get(host, (asked, HOST_SAMPLE_S))
        return now - heard > SILENT_SAMPLES * max(every_s, sampled_s.get(host, 0.0))

    def is_due(self, job: str, known: KnownJob, now: float) -> bool:
        """Whether a job's open window may be closed. The first question opens one."""
        age_s = now - self._at(job, now).began
        return age_s >= self.stretch * known.spec.plan.window_s and age_s >= self.stretch * known.window_s

    def close(self, job: str, known: KnownJob, now: float) -> WindowClosed | None:
        """Return the window of a job when it is full, or overdue; None while it is open. A new one begins with it."""
        opened = self._at(job, now)
        window_s = self.stretch * known.window_s
        age = now - opened.began
        wanted = [member for member in known.members if member.role == "worker"]
        if age < window_s or not wanted:
            return None
        heard = [member for member in wanted if opened.covers(member, window_s)]
        clean = len(heard) == len(wanted)
        present = 0 if clean else _those_present(opened, known, len(wanted), len(heard))
        if not (clean or present) and age < OVERDUE * window_s:
            return None
        workers = [_worker(member, opened.sums[member]) for member in heard]
        former = [
            member for member, _ in known.former if member not in heard and opened.covers(member, window_s)
        ]
        lost, watched_s = self.taken(job, now)
        closed = WindowClosed(
            job=job,
            seconds=round(age, 3),
            clean=clean,
            present=present,
            workers=workers + [_only_counted(member, opened.sums[member]) for member in former],
            server_bytes=dict(opened.server_bytes),
            server_needs=dict(opened.server_needs),
            cores_used=_means(opened.cores_used),
            cores_peak=_means(opened.cores_peak),
            server_cores={**opened.server_cores, **opened.server_busy},
            batch_s=_seconds_a_batch(opened),
            loss=_mean_loss(opened),
            auc=max((total.auc for total in opened.sums.values()), default=0.0),
            committed=opened.committed,
            total=opened.total,
            log_sequence=opened.log_sequence,
            lost=lost,
            watched_s=watched_s,
            cause="samples",
        )
        opened.began = now
        opened.sums.clear()
        opened.server_bytes.clear()
        opened.server_needs.clear()
        opened.cores_used.clear()
        opened.cores_peak.clear()
        opened.server_cores.clear()
        opened.server_busy.clear()
        return closed

    def _at(self, job: str, now: float) -> _Open:
        opened = self._open.get(job)
        if opened is None:
            opened = self._open[job] = _Open(now, now)
        return opened


def _those_present(opened: _Open, known: KnownJob, wanted: int, heard: int) -> int:
    """How many workers took part in a whole window, where no other one has said a word yet; 0 where some fell silent, or came in
    the middle, and while servers are on their way, or workers train whose successors are.
    """
    coming = sum(member.role == "worker" and member not in opened.known for member in known.members)
    servers = {member.name for member in known.members if member.role == "ps"}
    whole = heard + coming == wanted and servers <= opened.server_busy.keys()
    return heard if whole and not known.former else 0


def _means(told: Mapping[str, list[float]]) -> dict[str, float]:
    return {role: round(sum(all) / len(all), 4) for role, all in told.items()}


def _worker(member: Member, total: _Sum) -> WorkerWindow:
    present_s = total.seconds - total.barrier_s
    working_s = present_s - total.waited_s
    is_told = working_s >= max(LEAST_WORKING * present_s, LEAST_BETWEEN * total.seconds)
    pace = total.samples / working_s if is_told else -1.0
    own = total.samples / total.own_s if total.own_s >= LEAST_OWN * total.seconds else -1.0
    return WorkerWindow(
        member.index,
        member.incarnation,
        round(total.samples / total.seconds, 3),
        round(pace, 3),
        round(min(total.reading_s / total.seconds, 1.0), 4),
        round(own, 3),
    )


def _only_counted(member: Member, total: _Sum) -> WorkerWindow:
    """What a worker did that trains until its successor comes: how fast it is says nothing of that one."""
    return WorkerWindow(
        member.index, member.incarnation, round(total.samples / total.seconds, 3), -1.0, 0.0, -1.0
    )


def _seconds_a_batch(opened: _Open) -> float:
    batches = sum(total.batches for total in opened.sums.values())
    return round(sum(total.seconds for total in opened.sums.values()) / batches, 4) if batches else 0.0


def _mean_loss(opened: _Open) -> float:
    samples = sum(total.samples for total in opened.sums.values())
    return round(sum(total.loss for total in opened.sums.values()) / samples, 6) if samples else 0.0
