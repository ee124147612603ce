"""The voice of the demo: facts, kills and the verdict as lines with their second, and a bar of progress where there is a terminal.

Fed by demonstration.py; knows rich and nothing of buses.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from rover_bus.cli.chaos import Struck
from rover_bus.cli.narration import BAD, GOOD, mood, tell
from rover_bus.events import facts
from rover_bus.events.facts import Fact

STYLES = {GOOD: "green", BAD: "red", "dim": "dim", "": ""}
SILENT = (
    facts.JobSubmitted,
    facts.JobOpened,
    facts.MembersDesired,
    facts.PlanProposed,
    facts.HostRegistered,
    facts.HostStarted,
    facts.JobReported,
    facts.LeaseSpeculated,
)
WHY = {
    "worker": "its lease comes back, minus what it had committed; the others go on",
    "master": "workers train on what they hold; the standby takes over from the log",
    "broker": "SIGKILL and restart; everybody reconnects, nobody repeats what was stored",
}


class Narrator:
    """Tells one demo. `live` draws a bar below the lines."""

    def __init__(self, console: Console, *, live: bool) -> None:
        self.console = console
        self._live = live
        self._began_s = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def title(self, text: str) -> None:
        self.console.print(f"\n[bold]{escape(text)}[/bold]")

    def say(self, text: str, style: str = "") -> None:
        """Say a line, with the second of the demo."""
        at = time.monotonic() - self._began_s
        line = f"[{style}]{escape(text)}[/{style}]" if style else escape(text)
        self.console.print(f"[dim]{at:6.1f} s[/dim]  {line}", soft_wrap=True)

    def fact(self, fact: Fact) -> None:
        """Tell what happened, unless it only prepares what will be told."""
        if isinstance(fact, SILENT):
            return
        if isinstance(fact, facts.HostExited) and fact.exit.reason in ("completed", "drained"):
            return
        self.say(tell(fact), STYLES.get(mood(fact), ""))

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

    def verdict(self, report: dict[str, Any]) -> None:
        """Print the end in figures."""
        lost = report["samples_total"] - report["samples_committed"] - report["samples_dead_lettered"]
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
        table.add_column()
        table.add_column(overflow="fold")
        rows: list[tuple[str, str]] = [
            (
                "samples",
                f"{report['samples_committed']:,} of {report['samples_total']:,} committed, {lost:,} lost",
            ),
            ("witness", _witness(report)),
            ("killed", _killed(report)),
            (
                "price",
                f"{report['samples_retrained']:,} gradients computed a second time; "
                f"updates that servers held already and ignored: {report['updates_ignored']:,}",
            ),
            ("take-over", _take_over(report["takeover_seconds"])),
            ("time", f"{report['wall_seconds']:.1f} s, {report['samples_per_second']:,.0f} samples/s"),
            ("quality", _quality(report)),
        ]
        for name, text in rows:
            table.add_row(f"[bold]{name}[/bold]", text)
        self.console.print()
        self.console.print(table)

    def save_picture(self, path: Path) -> None:
        """Save what was told as SVG (the console must record), without the fonts that rich would fetch from the network."""
        format_without_fonts = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
        self.console.save_svg(str(path), title="rover demo", code_format=format_without_fonts)


def _killed(report: dict[str, Any]) -> str:
    counts = [(report["workers_lost"], "worker"), (report["masters_lost"], "master")]
    counts.append((report["broker_restarts"], "broker restart"))
    return ", ".join(f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in counts)


def _witness(report: dict[str, Any]) -> str:
    duplicated = report["samples_duplicated"]
    if duplicated is None:
        return "none was kept"
    if duplicated == 0 and report["samples_committed"] == report["samples_total"]:
        return "every sample was applied exactly once"
    return f"{duplicated:,} samples were applied twice"


def _take_over(seconds: float | None) -> str:
    return (
        "no master was killed"
        if seconds is None
        else f"a new master led {seconds:.2f} s after the old one was killed"
    )


def _quality(report: dict[str, Any]) -> str:
    if report["auc"] is None:
        return "not measured"
    reference = report["auc_reference"]
    beside = "" if reference is None else f"; {reference:.4f} in one undisturbed process"
    return f"AUC {report['auc']:.4f}, log loss {report['logloss']:.4f}{beside}"
