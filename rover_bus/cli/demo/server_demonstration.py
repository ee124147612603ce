"""`rover demo --act servers` as a program: two hosts, one job, three acts on its parameter servers, the verdict.

Fed by `rover demo`; puts together stack.py (twice), submission.py, server_acts.py and report.py, and tells narrator.py. Apart from
demonstration.py because nothing is compared here: what is shown is what becomes of state.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from rover_bus.cli.connection import Address, visit
from rover_bus.cli.demo.chaos import Chaos
from rover_bus.cli.demo.demonstration import QUICK, Choices, demo_directory, draw_bar, train
from rover_bus.cli.demo.job import prepare_servers_job
from rover_bus.cli.demo.narrator import Narrator
from rover_bus.cli.demo.server_acts import ServerActs
from rover_bus.cli.home import Home
from rover_bus.cli.stack import Here, OtherBroker, RunningStack, ending_on_signals
from rover_bus.cli.views.history import Happened
from rover_bus.cli.views.progress import JobProgress
from rover_bus.cli.views.report import Tally, sum_up
from rover_bus.events.job import JobSpec

if TYPE_CHECKING:
    from rover_bus.events.nats_bus import NatsBus

FIRST, SECOND = "host-a", "host-b"
NEXT = (
    "rover move JOB --from ps-0        slots from a server to the others, while the job trains",
    "rover scale JOB --servers 4       more servers, or fewer",
    "rover checkpoint list JOB         what is in storage (docs/checkpoints.md)",
)


class ServersDemonstration:
    """One play of the act."""

    def __init__(self, choices: Choices, narrator: Narrator) -> None:
        self.choices, self.narrator = choices, narrator

    def run(self) -> dict[str, Any]:
        """Play it; return its report (report.py), with `restores`, `relief` and `hosts_lost`."""
        self.narrator.title(f"rover demo, act servers, seed {self.choices.seed}")
        with ending_on_signals(), demo_directory(self.choices.keep) as root:
            spec, rows = prepare_servers_job(root, self.choices.seed)
            self.narrator.say(
                f"clicks in Criteo's shape: {rows['train']:,} rows, {spec.data.epochs} epochs in batches of "
                f"{spec.data.batch_size}; {spec.servers.count} servers and {spec.workers.count} workers on two hosts"
            )
            with (
                RunningStack(Home(root / "a"), here=Here(FIRST), settings=QUICK, disposable=True) as first,
                Home.find().pointing_to(first.record()),
                RunningStack(
                    Home(root / "b"),
                    broker=OtherBroker(first.url, first.secret_file),
                    brain=None,
                    here=Here(SECOND),
                    settings=QUICK,
                    disposable=True,
                ) as second,
            ):
                self.narrator.say(
                    f"{FIRST} and {SECOND}, each a node daemon with memory of its own, on this machine; every "
                    f"{spec.checkpoint.every_s if spec.checkpoint else 0:g} s a cut, each part also in the other host's memory"
                )
                address = Address(first.url, first.secret_file, first.home)
                report = visit(address, lambda bus: self._train(bus, first, second, spec))
        self.narrator.servers_verdict(report)
        self.narrator.next(NEXT)
        return report

    async def _train(
        self, bus: NatsBus, first: RunningStack, second: RunningStack, spec: JobSpec
    ) -> dict[str, Any]:
        tally, progress = Tally(), JobProgress(bus, spec.name)
        chaos = Chaos(first, bus, spec.name, progress, self.narrator.struck)
        draw = random.Random(f"servers:{self.choices.seed}").random()
        acts = ServerActs(bus, chaos, second, progress, self.narrator, spec.name, draw)

        def observe(happened: Happened) -> None:
            tally.observe(happened)
            if happened.fact is not None:
                acts.observe(happened.fact)
                self.narrator.fact(happened.fact)

        began_s = time.monotonic()
        works = [acts.play(), draw_bar(self.narrator, progress)]
        with self.narrator.training("training"):
            ended = await train(bus, spec, progress, observe, works)
        acts.close()
        report = sum_up(spec.name, ended, tally, wall_s=time.monotonic() - began_s)
        return report | {
            "act": "servers",
            "seed": self.choices.seed,
            "hosts_lost": acts.hosts_lost,
            "restores": acts.restores,
            "relief": acts.relief,
            "left_out": acts.left_out,
        }
