"""One history: hosts up, jobs submitted, blows struck, gates opened, everything judged, hosts down, leftovers counted."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import counting
from gated import Gate
from outside import make_clicks, rover

from attack.blows import Blows
from attack.drawing import History, JobShape
from attack.judging import Watch, judge, listed
from attack.site import Site

FILE = """
name = "{name}"
program = {program}
on_server_lost = "{on_server_lost}"
[data]
train = "{train}"
batch_size = {batch_size}
epochs = {epochs}
[data.schema]
format = "criteo"
[workers]
count = {workers}
[servers]
count = {servers}
[leases]
target = "500ms"
heartbeat = "500ms"
"""


@dataclass
class Outcome:
    """What a history came to. `wrong` is empty when everything holds."""

    done: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    ends: dict[str, str] = field(default_factory=dict)
    struck: dict[str, int] = field(default_factory=dict)


def play(history: History, folder: Path) -> Outcome:
    """Live a history in a folder."""
    outcome = Outcome()
    with Site(folder, history) as site:
        gates = {job.name: _submit(site, folder, job) for job in history.jobs}
        blows = Blows(site)
        outcome.done = blows.done
        blows.strike_all()
        for gate in gates.values():
            gate.open()
        watch = Watch(site.home, history.jobs, lambda job: _write_down(site, job))
        watch.follow()
        outcome.wrong += watch.wrong
        for job in history.jobs:
            struck = {act for act, name in blows.struck if name == job.name or _is_shared(act)}
            found = judge(site.home, folder, job, struck, job.name in watch.resumed)
            outcome.wrong += [f"{job.name}: {what}" for what in found]
        outcome.wrong += _ask(site)
        outcome.ends = {row["job"]: row["state"] for row in listed(site.home)}
        for name in watch.stuck:
            rover("cancel", name, home=site.home)
        outcome.wrong += site.end()
        for (act, _), count in blows.struck.items():
            outcome.struck[act] = outcome.struck.get(act, 0) + count
        if outcome.wrong:
            _keep(site, folder)
    return outcome


def _submit(site: Site, folder: Path, job: JobShape) -> Gate:
    below = folder / job.name
    below.mkdir()
    make_clicks(below, job.rows, seed=site.history.seed)
    gate = Gate(below / "gate")
    text = FILE.format(
        program=gate.program(counting.__file__ if job.integers else ""),
        train=below / "train.tsv",
        name=job.name,
        on_server_lost=job.on_server_lost,
        batch_size=job.batch_size,
        epochs=job.epochs,
        workers=job.workers,
        servers=job.servers,
    )
    text += f"[checkpoint]\n{job.checkpoint}" if job.checkpoint else ""
    (below / "job.toml").write_text(text)
    submitted = rover("submit", str(below / "job.toml"), home=site.home)
    assert submitted.returncode == 0, submitted.stderr
    return gate


def _is_shared(act: str) -> bool:
    """Whether a blow may touch every job."""
    return act in ("kill_up", "lose_host", "kill_daemon", "pause_daemon", "fill_memory", "fill_disk")


def _write_down(site: Site, job: JobShape) -> None:
    """Write down what a job that stands still looks like."""
    for words in (("events", job.name, "-n", "40"), ("members", job.name), ("doctor",)):
        print(rover(*words, home=site.home).stdout)


def _keep(site: Site, folder: Path) -> None:
    """Keep what the hosts leave: small disks go with their mounts."""
    for host in site.hosts:
        if host.disk in host.small:
            shutil.copytree(host.home, folder / f"{host.name}-left", ignore=shutil.ignore_patterns("*.sock"))


def _ask(site: Site) -> list[str]:
    """What a user asks works, whatever lies on the bus."""
    wrong = []
    for words in (("jobs", "-o", "json"), ("members", "job-0", "-o", "json"), ("events", "job-0", "-n", "5")):
        done = rover(*words, home=site.home)
        if done.returncode or (words[-1] == "json" and not isinstance(json.loads(done.stdout), list)):
            wrong.append(f"rover {' '.join(words)} ends with {done.returncode}: {done.stderr.strip()[-300:]}")
    if (doctor := rover("doctor", home=site.home)).returncode not in (
        0,
        1,
        3,
        4,
    ) or "Traceback" in doctor.stderr:
        wrong.append(f"rover doctor ends with {doctor.returncode}: {doctor.stderr.strip()[-300:]}")
    return wrong
