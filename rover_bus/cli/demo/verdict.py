"""The end of the demo in figures: the control plane off and on, side by side, and the words of the witness.

Fed by report.py's report and by a run without a control plane (unmanaged.py), made now or recorded; feeds the narrator.
"""

from __future__ import annotations

from typing import Any

from rich.table import Table

Report = dict[str, Any]
UNKNOWN = "-"


def compare(report: Report, off: Report | None) -> Table:
    """Return the verdict: time, samples lost, samples twice, AUC; off and on. `off` None: that run was not made."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("")
    for name in ("control plane off", "control plane on"):
        table.add_column(name, justify="right")
    lost = report["samples_total"] - report["samples_committed"] - report["samples_dead_lettered"]
    on = {"wall_seconds": report["wall_seconds"], "samples_lost": lost} | {
        key: report[key] for key in ("samples_duplicated", "auc", "workers_lost")
    }
    for name, key, form in (
        ("time", "wall_seconds", "{:,.1f} s"),
        ("samples lost", "samples_lost", "{:,}"),
        ("samples twice", "samples_duplicated", "{:,}"),
        ("AUC", "auc", "{:.4f}"),
        ("workers killed", "workers_lost", "{:,}"),
    ):
        table.add_row(f"[bold]{name}[/bold]", *(_figure(side, key, form) for side in (off or {}, on)))
    return table


def _figure(side: Report, key: str, form: str) -> str:
    value = side.get(key)
    return UNKNOWN if value is None else form.format(value)


def source(off: Report | None) -> str:
    """Return where the off column comes from."""
    if off is None:
        return "off: not run for this seed and these kills: `rover demo --compare` runs it (some minutes)"
    size = f"{off['workers']} worker{'' if off['workers'] == 1 else 's'} as the user asked, fixed shares, restarted by a supervisor"
    when = (
        f"recorded on {off['machine']}; `rover demo --compare` runs it again"
        if "machine" in off
        else "run just now"
    )
    return f"off: {size}; it has no master and no broker to kill; {when}"


def details(report: Report) -> Table:
    """Return what else is to be said of the managed run."""
    return _listed(
        ("witness", _witness(report)),
        ("killed", _killed(report)),
        ("price", _price(report)),
        ("take-over", _take_over(report["takeover_seconds"])),
        ("speed", _speed(report)),
        ("quality", _quality(report)),
    )


def server_details(report: Report) -> Table:
    """Return what is to be said of the act of the servers."""
    lost = f"{report['servers_lost']} servers, {report['hosts_lost']} host with its memory, {report['workers_lost']} workers"
    return _listed(
        ("witness", _witness(report)),
        ("lost", lost),
        ("restored", _restored(report["restores"])),
        ("relief", _relief(report["relief"])),
        ("price", _price(report)),
        ("quality", _quality(report)),
    )


def _listed(*rows: tuple[str, str]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
    table.add_column()
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(f"[bold]{name}[/bold]", text)
    return table


def _price(report: Report) -> str:
    ignored = f"updates that servers held already and ignored: {report['updates_ignored']:,}"
    return f"{report['samples_retrained']:,} gradients computed a second time; {ignored}"


WHERE = {
    "memory": "its host's shared memory",
    "peer": "the other host's memory",
    "parity": "a parity group",
    "storage": "storage",
}


def _restored(restores: list[dict[str, Any]]) -> str:
    told = [
        f"{each['member']} from {WHERE.get(each['source'], each['source'])} in {each['seconds']:.2f} s"
        for each in restores
    ]
    return "; ".join(told) or "none"


def _relief(relief: Report | None) -> str:
    if relief is None:
        return "none was shown"
    before, hot, after = relief["samples_per_second"]
    moved = f"{relief['moved_bytes'] / 2**20:.1f} MiB moved"
    return (
        f"{before:,.0f} samples/s, {hot:,.0f} with a hot server, {after:,.0f} after its slots moved ({moved})"
    )


def _killed(report: Report) -> str:
    counts = [(report["workers_lost"], "worker"), (report["masters_lost"], "master")]
    counts.append((report["servers_lost"], "server"))
    counts.append((report["broker_restarts"], "broker restart"))
    return ", ".join(f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in counts)


def _witness(report: Report) -> str:
    duplicated = report["samples_duplicated"]
    if duplicated is None:
        return "none was kept"
    if duplicated == 0 and report["samples_committed"] == report["samples_total"]:
        return "every sample was applied exactly once"
    return f"{duplicated:,} samples were applied twice"


def _speed(report: Report) -> str:
    done = f"{report['samples_committed']:,} of {report['samples_total']:,} samples committed"
    return f"{report['samples_per_second']:,.0f} samples/s; {done}"


def _take_over(seconds: float | None) -> str:
    return (
        "no master was killed"
        if seconds is None
        else f"a new master led {seconds:.2f} s after the old one was killed"
    )


def _quality(report: Report) -> str:
    if report["auc"] is None:
        return "not measured"
    reference = report["auc_reference"]
    beside = "" if reference is None else f"; {reference:.4f} in one undisturbed process"
    return f"AUC {report['auc']:.4f}, log loss {report['logloss']:.4f}{beside}"
