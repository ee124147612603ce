"""A job's end in figures: the last line of `rover submit`, `rover run --plain` and `rover demo`, each with `-o json`.

Fed by the facts of one job as they come (`Tally`) and by what its servers left; docs/cli.md explains each key.
`samples_duplicated` is read from the witness table, not from the ledger: the ledger's own count proves nothing.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from rover_bus.cli.views.history import Happened
from rover_bus.events.data_facts import DatasetRegistered
from rover_bus.events.errors import InputError
from rover_bus.events.facts import JobEnded, MasterElected, MembersDesired, MembersDisplaced, PlanProposed
from rover_bus.events.host_facts import HostExited
from rover_bus.events.job import Dataset
from rover_bus.events.leadership import LeaderEntry

NOT_LOST = frozenset({"completed", "drained"})
ORDERLY = frozenset(
    {"left", "leaving"}
)  # why a host has no members: its daemon ended its masters, and says so


@dataclass(slots=True)
class Tally:
    """What a follower of a job counts, because no single party knows it: masters are not in the job's own log."""

    dataset: Dataset | None = None
    masters_lost: int = 0
    leader: LeaderEntry | None = None
    master_hosts: list[str] = field(default_factory=list)
    takeovers_s: list[float] = field(default_factory=list)
    ended: JobEnded | None = None
    first_ms: int = 0
    last_ms: int = 0
    _leader_died_ms: int = 0

    def observe(self, happened: Happened) -> None:
        """Take a fact in, in the order of the stream."""
        time_ms = happened.stored.time_ms
        self.first_ms = self.first_ms or time_ms
        self.last_ms = max(self.last_ms, time_ms)
        match happened.fact:
            case DatasetRegistered(dataset=dataset):
                self.dataset = dataset
            case HostExited(member=member, exit=exit) if (
                member.role == "master" and exit.reason not in NOT_LOST
            ):
                if self.ended is None:
                    self.masters_lost += 1
                    if self.leader and self.leader.holder == str(member):
                        self._leader_died_ms = time_ms
            case PlanProposed(masters=hosts) if hosts:
                self.master_hosts = hosts
            case MembersDesired(masters=seats) if seats:
                self.master_hosts = [seat.host for seat in seats]
            case MembersDisplaced(host=host, reason=reason) if reason not in ORDERLY and self.ended is None:
                self.masters_lost += self.master_hosts.count(host)  # no daemon is left there to say so
            case MasterElected(term=term, holder=holder):
                self.leader = LeaderEntry(holder=holder, term=term)
                if self._leader_died_ms:
                    self.takeovers_s.append(max(time_ms - self._leader_died_ms, 0) / 1000)
                    self._leader_died_ms = 0
            case JobEnded() as ended:
                self.ended = ended
            case _:
                pass  # the others do not matter here

    @property
    def takeover_seconds(self) -> float | None:
        """From the proof of a leading master's death to its successor's first fact, the median; None when none died."""
        return round(statistics.median(self.takeovers_s), 3) if self.takeovers_s else None


def sum_up(
    job: str,
    ended: JobEnded,
    tally: Tally,
    *,
    wall_s: float,
    broker_restarts: int = 0,
    auc_reference: float | None = None,
) -> dict[str, Any]:
    """Return the report of a job that has ended. Figures that are not known are None."""
    summary = ended.summary
    result = summary.get("result", {})
    servers = list(summary.get("server_statistics", {}).values())
    committed = summary.get("samples_committed", 0)
    staleness = [each["staleness_batches"] for each in servers if "staleness_batches" in each]
    return {
        "job": job,
        "state": ended.state,
        "reason": ended.reason,
        "epochs": summary.get("epochs", 0),
        "samples_total": summary.get("samples_total", 0),
        "samples_committed": committed,
        "samples_duplicated": count_duplicates(job, summary, tally.dataset),
        "samples_dead_lettered": summary.get("samples_dead_lettered", 0),
        "samples_retrained": summary.get("samples_retrained", 0),
        "updates_ignored": summary.get("updates_ignored", 0),
        "values_missing": summary.get("values_missing", 0),
        "workers_lost": summary.get("workers_lost", 0),
        "masters_lost": tally.masters_lost,
        "servers_lost": summary.get("servers_lost", 0),
        "broker_restarts": broker_restarts,
        "takeover_seconds": tally.takeover_seconds,
        "staleness_batches": round(statistics.fmean(staleness), 3) if staleness else None,
        "wall_seconds": round(wall_s, 3),
        "samples_per_second": round(committed / wall_s, 1) if wall_s > 0 else 0.0,
        "auc": result.get("auc"),
        "logloss": result.get("logloss"),
        "auc_reference": auc_reference,
    }


def count_duplicates(job: str, summary: dict[str, Any], dataset: Dataset | None) -> int | None:
    """Return how many samples were applied more often than once, by the witness; None when the job has no witness."""
    from rover_bus.cli.views.results import count_witness, load_witness, part_files

    if dataset is None:
        return None
    try:
        return count_witness(load_witness(part_files(job, summary), dataset)).duplicated
    except InputError:
        return None


def report_lines(report: dict[str, Any]) -> list[str]:
    """Return the report as lines for people."""

    def figure(key: str, form: str = ",") -> str:
        value = report[key]
        return "unknown" if value is None else format(value, form)

    reason = f" ({report['reason']})" if report["reason"] else ""
    lines = [
        f"{report['job']}: {report['state']}{reason}"
        f" after {report['wall_seconds']:.1f} s, {report['samples_per_second']:,.0f} samples/s",
        f"samples   {figure('samples_committed')} of {figure('samples_total')} committed, "
        f"{figure('samples_dead_lettered')} dead-lettered, {figure('samples_duplicated')} trained twice (by the witness)",
        f"losses    {figure('workers_lost')} workers, {figure('servers_lost')} servers, {figure('masters_lost')} masters, "
        f"{figure('broker_restarts')} broker restarts; {figure('samples_retrained')} gradients computed twice, "
        f"{figure('updates_ignored')} repeats ignored",
    ]
    if report["auc"] is not None:
        reference = (
            f" (one process without bus: {figure('auc_reference', '.4f')})" if report["auc_reference"] else ""
        )
        lines.append(f"quality   AUC {figure('auc', '.4f')}, log loss {figure('logloss', '.4f')}{reference}")
    return lines
