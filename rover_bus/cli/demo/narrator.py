"""The voice of the demo: facts, kills and the verdict as lines with their second, and a bar of progress where there is a terminal.

Fed by demonstration.py; knows rich and nothing of buses.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from rover_bus.cli.demo import verdict
from rover_bus.cli.demo.chaos import Struck
from rover_bus.cli.views.explanation import headline, judgement, rivals
from rover_bus.cli.views.narration import BAD, GOOD, mood, narrate
from rover_bus.cli.views.plans import MEASURED
from rover_bus.events import checkpoint_facts as cuts
from rover_bus.events import data_facts, facts, host_facts
from rover_bus.events.facts import Fact

MOST_RIVALS_TOLD = 3
STYLES = {GOOD: "green", BAD: "red", "dim": "dim", "": ""}
SILENT = (
    facts.JobSubmitted,
    facts.JobOpened,
    facts.MembersDesired,
    facts.PlanChecked,
    facts.PlanApplied,
    facts.PlanMeasured,
    facts.PlanWithheld,
    facts.RoutingChanged,
    host_facts.HostRegistered,
    host_facts.HostStarted,
    facts.JobReported,
    data_facts.LeaseSpeculated,
    cuts.CheckpointOpened,
    cuts.PartStaged,
    cuts.CheckpointStaged,
    cuts.CheckpointPersistOrdered,
    cuts.CheckpointManifestOrdered,
    cuts.CheckpointSuperseded,
    cuts.HostPartDigested,
    cuts.HostPartMirrored,
    cuts.HostPartPersisted,
    cuts.HostManifestWritten,
)
ONCE = (cuts.CheckpointRedundant, cuts.CheckpointReady)  # then every second or two, and no news
WHY = {
    "worker": "its lease comes back, minus what it had committed; the others go on",
    "master": "workers train on what they hold; the standby takes over from the log",
    "server": "its next incarnation goes back to the newest cut; what was committed since is trained again",
    "broker": "SIGKILL and restart; every client reconnects, none repeats what was stored",
}


class Narrator:
    """Tells one demo. `live` draws a bar below the lines."""

    def __init__(self, console: Console, *, live: bool) -> None:
        self.console = console
        self._live = live
        self._began_s = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._said_once: set[str] = set()

    def title(self, text: str) -> None:
        self.console.print(f"\n[bold]{escape(text)}[/bold]")

    def say(self, text: str, style: str = "") -> None:
        """Say a line, with the second of the demo."""
        at = time.monotonic() - self._began_s
        line = f"[{style}]{escape(text)}[/{style}]" if style else escape(text)
        self.console.print(f"[dim]{at:6.1f} s[/dim]  {line}", soft_wrap=True)

    def fact(self, fact: Fact) -> None:
        """Tell what happened, unless it only prepares what will be told."""
        if isinstance(fact, SILENT) or fact.kind() in self._said_once:
            return
        if isinstance(fact, ONCE):
            self._said_once.add(fact.kind())
        if isinstance(fact, facts.PlanProposed):
            self._plan(fact)
            return
        if isinstance(fact, host_facts.HostExited) and fact.exit.reason in ("completed", "drained"):
            return
        if isinstance(fact, facts.PlanKept | facts.PlanRolledBack):
            self.say(f"plan {fact.plan} {_verdict(fact)}: {judgement(fact)}", STYLES.get(mood(fact), ""))
            return
        self.say(narrate(fact), STYLES.get(mood(fact), ""))

    def _plan(self, plan: facts.PlanProposed) -> None:
        """Tell a plan: one line for it, one a rival that lost."""
        self.say(headline(plan), "bold cyan")
        for line in rivals(plan)[:MOST_RIVALS_TOLD]:
            self.say(f"    not: {line}", "dim")

    def struck(self, struck: Struck) -> None:
        """Tell of a kill, and what should follow."""
        at = f"at {struck.strike.at:.0%} of the training"
        self.say(f"KILL {struck.name} (pid {struck.pid}) {at}: {WHY[struck.strike.target]}", "bold magenta")

    @contextmanager
    def training(self, what: str) -> Iterator[None]:
        """Draw a bar while the body runs; `progress` moves it."""
        if not self._live:
            yield
            return
        columns = (
            TextColumn("          {task.description}"),
            BarColumn(40),
            TextColumn("{task.percentage:>3.0f} %"),
        )
        with Progress(*columns, console=self.console, transient=True) as bar:
            self._bar, self._task = bar, bar.add_task(what, total=1.0)
            try:
                yield
            finally:
                self._bar = None

    def progress(self, fraction: float) -> None:
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=fraction)

    def verdict(self, report: dict[str, Any], off: dict[str, Any] | None) -> None:
        """Print the end in figures: the control plane off and on."""
        self.title("the same job, the same seed, the same kills")
        self.console.print(verdict.compare(report, off))
        self.console.print(f"[dim]{escape(verdict.source(off))}[/dim]", soft_wrap=True)
        self.console.print()
        self.console.print(verdict.details(report))

    def servers_verdict(self, report: dict[str, Any]) -> None:
        """Print what became of the servers and of the samples."""
        self.title("what it came to")
        self.console.print(verdict.server_details(report))

    def next(self, lines: Iterable[str]) -> None:
        """Say what to try next."""
        self.title("next")
        for line in lines:
            self.console.print(f"  {line}", soft_wrap=True)

    def save_picture(self, path: Path) -> None:
        """Save what was told as SVG (the console must record), without the fonts that rich would fetch from the network."""
        format_without_fonts = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
        self.console.save_svg(str(path), title="rover demo", code_format=format_without_fonts)


def _verdict(fact: facts.PlanKept | facts.PlanRolledBack) -> str:
    if isinstance(fact, facts.PlanRolledBack):
        return f"does not pay, plan {fact.by_plan} reverts it"
    return "was to be measured, and is" if fact.constant == MEASURED else "is kept"
