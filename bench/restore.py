"""Back in service: SIGKILL of a parameter server, until a worker's next pull is answered, from a cut in shared memory.

    python -m bench.restore [--mib 1024] [--kills 3] [--growing] [--json]

A whole stack on this machine; one server holds all tables (26 of width 64 with Adagrad rows; `--growing`: tables that grow by
id, whose index is built again). One worker pulls and pushes all the time and notes when; each kill comes when a cut is complete.
Beside it, in this very process, memcpy of as many bytes into warm memory. The steps between (process ended, started, admitted,
restored) are the job's own facts. Medians over the kills. `undigested_s`: how long a part is staged and has no digests yet, so that
it is no source; seen in shared memory itself, over all cuts of the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

TABLES, WIDTH = 26, 64
ROWS = 400_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--growing", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--program", default="", help="run as the worker; notes go to this file")
    options = parser.parse_args()
    if options.program:
        return train(options)
    with tempfile.TemporaryDirectory(prefix="rover-bench-") as directory:
        report = measure(Path(directory), options)
    for name, value in report.items():
        print(f"{name:<24} {value}")
    if options.json:
        print(json.dumps(report))
    return 0


# -- the worker --------------------------------------------------------------------------------------------------------


def train(options: argparse.Namespace) -> int:
    """Pull and push without end, and note the moment of every answer."""
    import rover_bus.client as rover
    from rover_bus.ps.spec import Adagrad, Growing, Hashed
    from rover_bus.ps.store import BatchKey

    rows = options.mib * 2**20 // (TABLES * WIDTH * 4 * 2)
    names = [f"t{number}" for number in range(TABLES)]
    kind = (
        (lambda name: Growing(name=name, width=WIDTH, optimizer=Adagrad()))
        if options.growing
        else (lambda name: Hashed(name=name, rows=rows, width=WIDTH, optimizer=Adagrad()))
    )
    dice = np.random.default_rng(os.getpid())
    with rover.join() as job, open(options.program, "a") as notes:
        log = rover.open_log(job.data.train, rover.Schema.parse(job.data.schema))
        job.parameters.declare(*[kind(name) for name in names])
        filled = 0
        for batch in job.batches(log):
            if options.growing and filled < rows:  # every id once: so large a table has grown
                step = max(256, rows // 64)
                ids = np.arange(filled, min(filled + step, rows))
                filled += step
            else:
                filled = rows
                ids = dice.integers(0, rows, 64)
            pulled = job.parameters.pull(dict.fromkeys(names, ids))
            notes.write(f"{time.monotonic()} {int(filled >= rows)}\n")
            notes.flush()
            gradients = {name: np.full_like(pulled[name], 1e-3) for name in names}
            job.parameters.push(BatchKey(batch.epoch, batch.number), gradients, pulled=pulled)
    return 0


def last_answer(notes: Path, after: float = 0.0) -> tuple[float, bool]:
    """Return the first answer after a moment (the last one for 0), and whether the tables are full."""
    lines = (
        [line.split() for line in notes.read_text().splitlines() if line.count(" ") == 1]
        if notes.exists()
        else []
    )
    times = [(float(moment), full == "1") for moment, full in lines]
    if not after:
        return times[-1] if times else (0.0, False)
    return next(((moment, full) for moment, full in times if moment > after), (0.0, False))


# -- the measurement ---------------------------------------------------------------------------------------------------


def measure(root: Path, options: argparse.Namespace) -> dict[str, Any]:
    from bench import rig
    from rover_bus.cli.connection import Address, visit
    from rover_bus.cli.stack import RunningStack
    from rover_bus.client.job_file import read_job
    from rover_bus.flash.places import host_root

    rig.make_clicks(root, ROWS, 10)
    notes, job_file = root / "notes", root / "job.toml"
    job_file.write_text(_describe_job(notes, options))
    with RunningStack(root / "stack", disposable=True) as stack:
        address = Address(stack.url, stack.secret_file, stack.home)
        with Watch(host_root(stack.home.node)) as watch:
            rounds = visit(
                address, lambda bus: _kill_and_wait(bus, stack, read_job(job_file), notes, options)
            )
    return _sum_up(rounds, memcpy(options.mib), watch.undigested_s, options)


def _describe_job(notes: Path, options: argparse.Namespace) -> str:
    """The job file: this file is its program."""
    program = [sys.executable, str(Path(__file__).resolve())]
    program += ["--program", str(notes), "--mib", str(options.mib)]
    program += ["--growing"] if options.growing else []
    return (
        f'name = "restore"\nprogram = {json.dumps(program)}\n'
        '[data]\ntrain = "train.tsv"\nbatch_size = 16\nepochs = 9\nwitness = false\n[data.schema]\nformat = "criteo"\n'
        '[workers]\ncount = 1\n[servers]\ncount = 1\n[leases]\nheartbeat = "1s"\n'
        '[checkpoint]\nevery = "2s"\npersist = false\n'
    )


class Watch:
    """Looks at the slots below a host's shared memory from outside: when each save was sealed, and when its digests were there."""

    LOOK_S = 0.002

    def __init__(self, root: Path) -> None:
        self._root, self._over = root, threading.Event()
        self._sealed: dict[tuple[str, int], float] = {}  # slot and save number -> when
        self._done: set[tuple[str, int]] = set()
        self.undigested_s: list[float] = []
        self._thread = threading.Thread(target=self._look_on, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look_on(self) -> None:
        from rover_bus.events.errors import RoverError

        while not self._over.wait(self.LOOK_S):
            for path in self._root.glob("*/*.slot") if self._root.is_dir() else ():
                with suppress(RoverError, OSError):  # half written, or gone
                    self._look(path)

    def _look(self, path: Path) -> None:
        from rover_bus.flash.digests import is_digested
        from rover_bus.flash.seal import SEAL_ROOM_BYTES, read_seal

        with open(path, "rb") as file:
            seal = read_seal(file.read(SEAL_ROOM_BYTES))
        if seal is None:
            return
        save = str(path), seal.save_number
        since = self._sealed.setdefault(save, time.monotonic())
        if save not in self._done and is_digested(path, seal):
            self._done.add(save)
            self.undigested_s.append(time.monotonic() - since)


def _sum_up(
    rounds: list[dict[str, Any]], memcpy_s: float, undigested_s: list[float], options: argparse.Namespace
) -> dict[str, Any]:
    numbers = [key for key in rounds[0] if key != "source"]
    medians = {key: round(statistics.median(each[key] for each in rounds), 3) for key in numbers}
    return {
        "mib": options.mib,
        "tables": "growing" if options.growing else "hashed",
        "kills": len(rounds),
        "memcpy_s": round(memcpy_s, 3),
        "serving_again_s": medians["serving_again_s"],
        "above_memcpy_s": round(medians["serving_again_s"] - memcpy_s, 3),
        **{f"of_which_{key}": medians[key] for key in ("ended_s", "started_s", "admitted_s", "restored_s")},
        "all_s": [round(each["serving_again_s"], 3) for each in rounds],
        "staging_blocked_s": medians["staging_blocked_s"],
        "undigested_s": round(statistics.median(undigested_s), 3),
        "undigested_longest_s": round(max(undigested_s), 3),
        "sources": sorted({each["source"] for each in rounds}),
    }


class Ear:
    """The facts of a job from its submission on, each with the monotonic second at which it came."""

    def __init__(self, bus: Any, job: str, sequence: int) -> None:
        from rover_bus.cli.submission import follow_job

        self.heard: list[tuple[float, Any]] = []
        self.following = asyncio.ensure_future(
            follow_job(bus, job, sequence, lambda each: self.heard.append((time.monotonic(), each.fact)))
        )

    async def first(self, kind: type, after: float, good: Any = lambda fact: True) -> tuple[float, Any]:
        """Wait for the first good fact of a kind after a moment."""
        while True:
            for at, fact in list(self.heard):
                if at > after and isinstance(fact, kind) and good(fact):
                    return at, fact
            if self.following.done():
                raise SystemExit(f"the job ended: {self.following.result()}")
            await asyncio.sleep(0.005)


async def _kill_and_wait(
    bus: Any, stack: Any, spec: Any, notes: Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    from rover_bus.cli.submission import ask_to_stop, submit

    ear = Ear(bus, spec.name, await submit(bus, spec))
    while not last_answer(notes)[1]:  # noqa: ASYNC110 - a file of another process is waited for
        await asyncio.sleep(0.1)
    rounds = [await _kill_once(ear, stack, spec.name, notes) for _ in range(options.kills)]
    await ask_to_stop(bus, spec.name, "cancel", "measured")
    await ear.following
    return rounds


async def _kill_once(ear: Ear, stack: Any, job: str, notes: Path) -> dict[str, Any]:
    """Kill the server when a cut is complete; return what the way back took, step by step."""
    from rover_bus.events import checkpoint_facts as cuts
    from rover_bus.events import facts, host_facts

    _, staged = await ear.first(cuts.PartStaged, time.monotonic())
    await ear.first(cuts.CheckpointStaged, time.monotonic() - 1.0)
    await asyncio.sleep(1.0)
    server_pid = _server_pid(stack, job)
    killed = time.monotonic()
    os.kill(server_pid, signal.SIGKILL)
    _, told = await ear.first(cuts.ServerRestored, killed)
    while not last_answer(notes, killed + 0.05)[0]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    ended, _ = await ear.first(host_facts.HostExited, killed, lambda fact: fact.member.role == "ps")
    started, _ = await ear.first(
        host_facts.HostStarted, killed, lambda fact: fact.process.member.role == "ps"
    )
    admitted, _ = await ear.first(facts.MemberAdmitted, killed, lambda fact: fact.member.role == "ps")
    return {
        "serving_again_s": last_answer(notes, killed + 0.05)[0] - killed,
        "ended_s": ended - killed,
        "started_s": started - ended,
        "admitted_s": admitted - started,
        "restored_s": told.seconds,
        "source": f"{told.source}, {told.samples_again} samples again",
        "staging_blocked_s": staged.blocked_s,
    }


def _server_pid(stack: Any, job: str) -> int:
    from rover_bus.node.local.layout import list_members

    [server] = [
        each
        for each in list_members(stack.home.node, job)
        if each.member.role == "ps" and each.state == "running"
    ]
    return server.pid


def memcpy(mib: int) -> float:
    """Seconds for a copy of so many MiB into warm memory, the median of five."""
    source, target = np.ones(mib << 18, np.float32), np.ones(mib << 18, np.float32)
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        np.copyto(target, source)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


if __name__ == "__main__":
    sys.exit(main())
