"""History is a projection: facts in, one line a job out, and warm starts learn from it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from rover_bus.brain.decisions.plans import Allocation
from rover_bus.brain.history import History, Usage, evolve_history
from rover_bus.brain.history_files import COLUMNS, history_csv, history_rows, write_history
from rover_bus.events.errors import InputError
from rover_bus.events.facts import Fact, JobEnded, JobReported, JobSubmitted, PlanApplied, PlanProposed
from rover_bus.events.host_facts import HostExited, HostLeft
from rover_bus.events.identity import Exit, Member
from rover_bus.events.job import DataSpec, JobSpec

SPEC = JobSpec(
    name="clicks",
    program=["python", "train.py"],
    data=DataSpec(train="clicks.csv"),
    labels={"user": "ada", "family": "dlrm"},
)
FACTS: list[Fact] = [
    JobSubmitted(job="clicks-1", spec=SPEC, uid="u1"),
    PlanProposed(job="clicks-1", plan=1, workers=2, servers=1, worker_cores=2.0, server_cores=2.0),
    PlanApplied(job="clicks-1", plan=1, workers=2, servers=1),
    PlanProposed(job="clicks-1", plan=2, workers=8, servers=2, worker_cores=4.0, server_cores=4.0),
    PlanApplied(job="clicks-1", plan=2, workers=8, servers=2),
    PlanProposed(job="clicks-1", plan=3, workers=16, servers=4),
    HostLeft(host="h1"),
    JobReported(
        job="clicks-1", epoch=0, committed=900, dead_lettered=100, total=1000, samples_per_second=50.0
    ),
    HostExited(
        host="h1",
        job="clicks-1",
        member=Member("worker", 0, 1),
        exit=Exit(reason="killed"),
        ran_s=10.0,
        cpu_s=4.0,
        peak_memory_bytes=300,
    ),
    JobEnded(job="clicks-1", state="completed", summary={"samples_committed": 901, "result": {"auc": 0.75}}),
    HostExited(
        host="h2",
        job="clicks-1",
        member=Member("worker", 0, 2),
        exit=Exit(reason="completed"),
        ran_s=30.0,
        cpu_s=6.0,
        peak_memory_bytes=200,
    ),
    JobEnded(job="unknown", state="failed"),
]


def replay() -> History:
    history: History = {}
    for at_s, fact in enumerate(FACTS):
        history = evolve_history(history, fact, float(at_s))
    return history


def test_the_line_of_a_job_says_what_it_held_and_how_it_ended() -> None:
    line = replay()["clicks-1"]
    assert line.held == Allocation(workers=8, servers=2, worker_cores=4.0, server_cores=4.0)
    assert (line.plans_applied, line.samples_committed, line.samples_dead_lettered) == (2, 901, 100)
    assert (line.state, line.ended_at_s, line.peak_samples_per_s) == ("completed", 9.0, 50.0)
    assert (line.auc, line.logloss) == (0.75, None)


def test_what_a_job_used_is_the_sum_of_all_its_lives_those_that_ended_after_it_too() -> None:
    used = replay()["clicks-1"].used["worker"]
    assert used == Usage(incarnations=2, member_s=40.0, cpu_s=10.0, peak_memory_bytes=300)
    assert used.cores == 0.25


def test_a_replay_rebuilds_the_same_history_and_unknown_jobs_change_nothing() -> None:
    assert replay() == replay()
    assert list(replay()) == ["clicks-1"]


def test_history_leaves_as_csv() -> None:
    (row,) = csv.DictReader(history_csv(replay()).splitlines())
    assert row["job"] == "clicks-1"
    assert (row["held_workers"], row["asked_workers"], row["state"]) == ("8", "0", "completed")
    assert (row["worker_cpu_s"], row["ps_incarnations"], row["logloss"]) == ("10.0", "0", "")
    assert list(row) == list(COLUMNS)


def test_parquet_holds_the_same_records_with_their_types(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow, the extra `parquet`, is not installed")
    write_history(tmp_path / "h.parquet", replay())
    table = parquet.read_table(tmp_path / "h.parquet")
    assert table.to_pylist() == history_rows(replay())
    assert str(table.schema.field("held_worker_memory_bytes").type) == "int64"
    assert [path.name for path in tmp_path.iterdir()] == ["h.parquet"]


def test_a_file_of_another_kind_or_in_no_directory_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"end it in \.csv or \.parquet"):
        write_history(tmp_path / "h.xlsx", replay())
    with pytest.raises(InputError, match="cannot write"):
        write_history(tmp_path / "absent" / "h.csv", replay())
