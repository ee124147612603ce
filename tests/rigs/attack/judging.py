"""What a history came to: every job ends with a witness of all ones, or by a name that something done to it explains.

Fed by the command line alone, as a user sees it; feeds play.py. A job that gets nowhere and does not say why is a finding.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import counting
import numpy as np
from outside import rover

from attack.drawing import JobShape

STANDSTILL_S = 90.0
LOOK_S = 2.5  # each look is a process of its own
SERVER_GONE = (
    "kill_server",
    "kill_job",
    "pause_server",
    "lose_host",
    "lose_memory",
    "flip_memory",
    "cut_memory",
    "vanish_memory",
    "foreign_memory",
    "kill_up",
)
STORAGE_HURT = ("flip_storage", "cut_storage", "vanish_storage", "foreign_storage")
EXPLAINED = {
    "server_lost": SERVER_GONE,  # of a job that takes no cuts, and ends then: P24
    "no_usable_checkpoint": STORAGE_HURT,
}


class Watch:
    """Follows the jobs of a history to their ends. `resumed`: those that asked what to do without a usable checkpoint."""

    def __init__(
        self, home: Path, jobs: tuple[JobShape, ...], write_down: Callable[[JobShape], object]
    ) -> None:
        self.home, self.write_down = home, write_down
        self.wrong: list[str] = []
        self.resumed: set[str] = set()
        self.stuck: list[str] = []
        self._open = {job.name: job for job in jobs}
        self._seen: dict[str, tuple[object, float]] = {}

    def follow(self) -> None:
        """Return when every job has ended, or stands still; one that asks whether to begin from nothing is told so, once."""
        while self._open:
            rows = {row["job"]: row for row in listed(self.home)}
            for name in list(self._open):
                self._look(name, rows.get(name, {}))
            time.sleep(LOOK_S)

    def _look(self, name: str, row: dict[str, Any]) -> None:
        state, now = [row.get(key) for key in ("state", "committed", "epoch", "term")], time.monotonic()
        if row.get("ended_ms"):
            del self._open[name]
        elif row.get("state") == "paused" and name not in self.resumed:
            self.resumed.add(name)
            rover("resume", name, "--from-nothing", home=self.home)
        elif name not in self._seen or self._seen[name][0] != state:
            self._seen[name] = state, now
        elif now - self._seen[name][1] > STANDSTILL_S:
            self.stuck.append(name)
            self.write_down(self._open.pop(name))
            self.wrong.append(f"{name}: no progress for {STANDSTILL_S:.0f} s: {row}")


def listed(home: Path) -> list[dict[str, Any]]:
    done = rover("jobs", "-o", "json", home=home)
    return list(json.loads(done.stdout)) if done.returncode == 0 and done.stdout else []


def judge(home: Path, folder: Path, job: JobShape, struck: set[str], resumed: bool) -> list[str]:
    """Return what is wrong with a job that has ended. `struck`: what was done to it, and to what all jobs share."""
    events = facts(home, job.name)
    ends = [body for kind, body in events if kind.startswith("job.ended")]
    if not ends:
        return ["it never ended"]
    if resumed and not (job.persists and struck & {*STORAGE_HURT}):
        paused = [body for kind, body in events if kind.startswith("job.paused")]
        return [f"nothing explains why it paused: {paused}"]
    wrong, end = [] if resumed else _began_from_nothing(job, events), ends[-1]
    if end["state"] != "completed":
        explained = struck & set(EXPLAINED.get(end["reason"], ()))
        may = end["reason"] != "server_lost" or job.on_server_lost == "fail"
        return wrong + ([] if explained and may else [f"{end['state']}: {end['reason']} {end['detail']}"])
    if dead := end["summary"].get("samples_dead_lettered"):
        wrong.append(f"{dead} samples are dead-lettered, and none were to fail")
    return wrong + _count(home, job) + (_compare(home, folder, job) if job.integers else [])


def facts(home: Path, job: str) -> list[tuple[str, dict[str, Any]]]:
    """Return type and body of all facts of a job, in order, without foreign ones: these bear no envelope."""
    done = rover("events", job, "-o", "json", home=home)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    ours = [event["body"] for event in events if event["event_id"] and not event.get("passed_over")]
    return [(str(body.get("type", "")), body) for body in ours]


def _count(home: Path, job: JobShape) -> list[str]:
    total = job.rows * job.epochs
    done = rover("witness", job.name, "--json", home=home)
    if done.returncode:
        return [f"rover witness: {done.stderr.strip()}"]
    counted = json.loads(done.stdout)
    if (counted["applied"], counted["missing"], counted["duplicated"]) == (total, 0, 0):
        return []
    return [f"witness: {counted}, {total} samples"]


def _compare(home: Path, folder: Path, job: JobShape) -> list[str]:
    """The final tables against one application of every sample."""
    out = folder / f"{job.name}.npz"
    exported = rover("export", job.name, str(out), home=home)
    if exported.returncode:
        return [f"rover export: {exported.stderr.strip()}"]
    wrong = []
    with np.load(out) as model:
        for table, wanted in counting.expected(job.rows, job.epochs).items():
            held, ids = np.zeros_like(wanted), model[f"{table}.ids"]
            if len(strange := ids[(ids < 0) | (ids >= len(wanted))]):
                wrong.append(
                    f"{len(strange)} rows of {table} have ids that it never had, the first {strange[:3]}"
                )
                continue
            held[ids] = model[table]
            if not np.array_equal(held, wanted):
                rows = np.flatnonzero((held != wanted).any(1))
                wrong.append(f"{len(rows)} rows of {table} differ, the first {rows[:3]}")
    return wrong


def _began_from_nothing(job: JobShape, events: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """A job that has checkpoints never goes back to nothing without being told to (issue 13, 2)."""
    if not job.persists:
        return []
    ready, wrong = 0, []
    for kind, body in events:
        if kind.startswith("checkpoint.ready"):
            ready = body.get("cut", 0)
        if kind.startswith("ledger.rewound") and not body.get("cut") and ready:
            wrong.append(f"it began from nothing although cut {ready} was ready: {body.get('reason')}")
    return wrong
