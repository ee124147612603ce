"""`rover up` and `rover down`: a stack in the foreground, or in the background."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Literal

import click

from rover_bus.cli.home import Home, NoStack
from rover_bus.cli.keeping import parse_keep_log
from rover_bus.cli.stack import RunningStack
from rover_bus.cli.supervisor import ServiceFailed
from rover_bus.client.units import parse_bytes, parse_seconds
from rover_bus.events.errors import InputError

DOWN_TIMEOUT_S = 60.0
LEAST_STORE_BYTES = 4 << 20


@click.command()
@click.option("--dir", "directory", default="", help="State directory [$ROVER_HOME, ./.rover].")
@click.option("--url", default="", help="Use a broker that runs already, nats://HOST:PORT.")
@click.option("--secret-file", default="", metavar="FILE", help="The secret of the broker named by --url.")
@click.option(
    "--sync",
    type=click.Choice(["default", "always"]),
    default="default",
    help="When the broker syncs to disk: `always` survives a power cut, `default` a crash of its process.",
)
@click.option(
    "--max-store",
    default="",
    metavar="SIZE",
    help="Most that the broker may store, for example 10GiB [no limit].",
)
@click.option(
    "--keep-jobs",
    default="",
    metavar="AGE",
    help="Forget jobs so long after their end, for example 720h: log, facts, member logs, final model; not checkpoints [never].",
)
@click.option(
    "--keep-store",
    default="",
    metavar="SIZE",
    help="Forget the job that ended first when logs and facts take more [half of what the broker may store].",
)
@click.option("--host", default="", help="Name of this host [its own].")
@click.option(
    "--bind",
    default="127.0.0.1",
    metavar="ADDRESS",
    help="Listen at this address of the machine, so that other machines reach it [loopback]. Nothing is encrypted.",
)
@click.option(
    "--plan-mode",
    type=click.Choice(["observe", "approve", "auto"]),
    default="auto",
    help="What becomes of the Brain's plans for all jobs; the strictest of it and a job's own holds.",
)
@click.option("--quota", "quotas", multiple=True, metavar="TENANT=CORES[:MEMORY]", help="May be repeated.")
@click.option(
    "--keep-log",
    default="7d:256MiB",
    show_default=True,
    metavar="AGE[:SIZE]",
    help="How much of each job's log is kept behind its newest snapshot, the smaller of both.",
)
@click.option("--detach", is_flag=True, help="Run in the background; `rover down` ends it.")
@click.option("--quiet", "-q", is_flag=True, help="Say nothing.")
def up(
    directory: str,
    url: str,
    secret_file: str,
    sync: Literal["default", "always"],
    max_store: str,
    keep_jobs: str,
    keep_store: str,
    host: str,
    bind: str,
    plan_mode: str,
    quotas: tuple[str, ...],
    keep_log: str,
    detach: bool,
    quiet: bool,
) -> None:
    """Run a stack on this machine until Ctrl-C: a broker, a node daemon and a Brain, each started again when it ends.

    Everything listens on loopback, or where --bind says, and demands the stack's secret. Jobs come by `rover submit` from another
    terminal.
    """
    home = Home.find(directory)
    if detach:
        _detach(home)
    else:
        limit = parse_bytes(max_store, "--max-store") if max_store else 0
        if 0 < limit < LEAST_STORE_BYTES:
            raise InputError(
                f"--max-store {max_store} is too small: the streams of a stack need at least 4MiB"
            )
        stack = RunningStack(
            home,
            url=url,
            secret_file=secret_file,
            sync=sync,
            host=host,
            bind=bind,
            max_file_store_bytes=limit,
            plan_mode=plan_mode,
            keep_jobs_s=parse_seconds(keep_jobs, "--keep-jobs") if keep_jobs else 0.0,
            keep_bytes=parse_bytes(keep_store, "--keep-store") if keep_store else 0,
            quotas=quotas,
            keep_log=parse_keep_log(keep_log),
        )
        run_until_told(stack, quiet=quiet)


def run_until_told(stack: RunningStack, *, quiet: bool) -> None:
    """Run a stack in the foreground until SIGINT, SIGTERM or SIGHUP; then take it away."""
    told = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: told.set())
    with stack:
        if not quiet:
            click.echo(f"broker   {stack.url} (secret in {stack.secret_file})")
            click.echo(f"host     {stack.host}")
            click.echo(f"state    {stack.home.root}")
            click.echo("next     rover submit JOB.toml --wait      Ctrl-C ends everything")
        told.wait()
        if not quiet:
            click.echo("ending: members drain first", err=True)


def _detach(home: Home) -> None:
    """Start the same command without --detach in a session of its own; return when it serves."""
    home.create()
    log = home.services / "up.log"
    words = [word for word in sys.argv[1:] if word != "--detach"]
    with log.open("ab") as said:
        began = said.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "rover_bus.cli.entry", *words],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    while True:
        try:
            if home.read_record().pid == process.pid:
                break
        except NoStack:
            pass
        if process.poll() is not None:
            lines = log.read_bytes()[began:].decode(errors="replace").strip().splitlines()
            raise ServiceFailed((lines or [f"nothing is said in {log}"])[-1].removeprefix("rover: "))
        time.sleep(0.02)
    click.echo(f"running in the background, pid {process.pid}; `rover down` ends it (log: {log})")


@click.command()
@click.option("--dir", "directory", default="", help="State directory [$ROVER_HOME, ./.rover].")
def down(directory: str) -> None:
    """End the stack of a state directory, wherever it runs; members drain first."""
    home = Home.find(directory)
    record = home.read_record()
    os.kill(record.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + DOWN_TIMEOUT_S
    while home.is_held():
        if time.monotonic() > deadline_s:
            raise ServiceFailed(
                f"pid {record.pid} has not ended in {DOWN_TIMEOUT_S:g} s: look at {_log(home)}"
            )
        time.sleep(0.05)


def _log(home: Home) -> Path:
    return home.services / "daemon.log"
