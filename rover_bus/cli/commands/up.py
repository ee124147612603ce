"""`rover up` and `rover down`: a stack in the foreground, or in the background."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal

import click

from rover_bus.auth.host_vault import HostVault
from rover_bus.cli.connection import Address
from rover_bus.cli.entry import INTERRUPTED
from rover_bus.cli.home import Home, NoStack, StackRecord
from rover_bus.cli.http_options import is_loopback
from rover_bus.cli.joining import joined_stack
from rover_bus.cli.lost_store import tell_lost
from rover_bus.cli.own_broker import LOOPBACK, OwnBroker
from rover_bus.cli.stack import BrainPolicy, Here, OtherBroker, RunningStack, check_bind
from rover_bus.cli.supervisor import ServiceFailed
from rover_bus.events.errors import AccessDenied, InputError, Refused
from rover_bus.events.units import parse_bytes

if TYPE_CHECKING:
    from rover_bus.cli.staged_cuts import Runs

ASK = "End the stack all the same, and lose what they have trained?"
LEAST_STORE_BYTES = 4 << 20
SIGNAL_LOOK_S = 0.5
OF_STACKS = {
    "sync": "--sync",
    "max_store": "--max-store",
    "plan_mode": "--plan-mode",
    "policy": "--policy",
    "quotas": "--quota",
    "page": "--page",
    "secret_file": "--secret-file",
}


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
    help="Most that the broker may store, for example 10GiB [no limit]; with --url what that one may, which sets it no limit.",
)
@click.option("--host", default="", help="Name of this host [its own].")
@click.option(
    "--bind",
    default="",
    metavar="ADDRESS",
    help="Listen at this address of the machine, so that other machines reach it [loopback]. There everything is encrypted.",
)
@click.option(
    "--plan-mode",
    type=click.Choice(["observe", "approve", "auto"]),
    default="auto",
    help="What becomes of the Brain's plans for all jobs; the strictest of it and a job's own holds.",
)
@click.option(
    "--policy",
    type=click.Choice(["staged", "optimus"]),
    help="How jobs are sized that name no policy: the same as --set plan.policy=P [staged].",
)
@click.option(
    "--page",
    default=LOOPBACK,
    show_default=True,
    metavar="ADDRESS",
    help="Serve the page, the API and the metrics at this address; `none`: nowhere. Beyond loopback by HTTPS, with tokens. "
    "With --url only where it is given.",
)
@click.option("--quota", "quotas", multiple=True, metavar="TENANT=CORES[:MEMORY]", help="May be repeated.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting, for example retention.jobs_age=30d; may be repeated. `rover doctor --settings` lists them all.",
)
@click.option("--detach", is_flag=True, help="Run in the background; `rover down` ends it.")
@click.option("--quiet", "-q", is_flag=True, help="Say nothing.")
@click.pass_context
def up(  # noqa: PLR0913 - a command's options are its parameters
    context: click.Context,
    directory: str,
    url: str,
    secret_file: str,
    sync: Literal["default", "always"],
    max_store: str,
    host: str,
    bind: str,
    plan_mode: str,
    policy: str | None,
    page: str,
    quotas: tuple[str, ...],
    settings: tuple[str, ...],
    detach: bool,
    quiet: bool,
) -> None:
    """Run a stack on this machine until Ctrl-C: a broker, a node daemon and a Brain, each started again when it ends.

    Everything listens on loopback, or where --bind says, and demands the stack's secret. Jobs come by `rover submit` from another
    terminal. Ctrl-C has last checkpoints taken of the jobs that run, as `rover down` does; a second one ends everything at once.
    """
    home = Home.find(directory)
    limit = parse_bytes(max_store, "--max-store") if max_store else 0
    if 0 < limit < LEAST_STORE_BYTES:
        raise InputError(f"--max-store {max_store} is too small: the streams of a stack need at least 4MiB")
    settings = (*settings, f"plan.policy={policy}") if policy else settings
    if HostVault(home.auth).is_joined and not url:
        _refuse_options_of_stacks(context, home)
        stack = joined_stack(home, Here(host, bind), settings)
    else:
        if not url and not quiet:
            for line in tell_lost(home):
                click.echo(line, err=True)
        stack = RunningStack(
            home,
            broker=OtherBroker(url, secret_file, limit) if url else OwnBroker(sync, limit),
            brain=BrainPolicy(plan_mode, quotas),
            here=Here(host, bind or LOOPBACK, _page_address(context, page, url)),
            settings=settings,
        )
    if detach:
        detach_stack(home)
    else:
        context.exit(run_until_signal(stack, quiet=quiet))


def _page_address(context: click.Context, page: str, url: str) -> str:
    """Return where HTTP is served, "" for nowhere: on a foreign broker, whose secret may not do for it, only where asked for.

    Raises InputError.
    """
    asked = context.get_parameter_source("page") is not click.core.ParameterSource.DEFAULT
    if page == "none" or (url and not asked):
        return ""
    if url and not is_loopback(check_bind(page)):
        raise InputError(
            f"--page {page} with --url: a stack on another's broker has no certificate: serve it by `rover web`"
        )
    return page


def _refuse_options_of_stacks(context: click.Context, home: Home) -> None:
    """Raise InputError for what says something of the broker or the Brain: a host that has joined a stack has neither."""
    for name, option in OF_STACKS.items():
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise InputError(
                f"{home.root} has joined a stack, which has the broker and the Brain: say {option} on its own machine"
            )


class StackEnding:
    """What signals say to a stack in the foreground: the first one to end, a second one not to wait for anything."""

    def __init__(self, stack: RunningStack) -> None:
        self._stack = stack
        self.told, self.forced = threading.Event(), False
        self.number = 0
        self.stopping = False

    def listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._receive)

    def wait(self) -> None:
        """Return once the stack is told to end, or its host is turned away.

        A wait without a bound would miss a signal that another thread receives, or that arrives just before the wait begins: the
        interpreter runs handlers in the main thread alone, and a lock that it waits for wakes it only for a signal of its own.
        """
        while not self.told.wait(SIGNAL_LOOK_S) and not self._stack.turned_away:
            pass

    def go_on(self) -> None:
        """It is not to end after all."""
        self.told.clear()

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.told.is_set():
            self.forced = True
        if self.forced and self.stopping:
            self._stack.kill_members()
        self.number = number
        self.told.set()


def run_until_signal(stack: RunningStack, *, quiet: bool) -> int:
    """Run a stack in the foreground until SIGINT, SIGTERM or SIGHUP; then have models kept, and take it away.

    Returns the exit code: that of a refusal when a model is lost by that, else 130 after Ctrl-C (0 after `rover down`).
    """
    ending = StackEnding(stack)
    from rover_bus.cli.staged_cuts import read_runs

    ending.listen()
    with stack:
        if not quiet:
            click.echo(f"broker   {stack.url} (credentials in {stack.secret_file})")
            click.echo(f"host     {stack.host}")
            click.echo(f"state    {stack.home.root}")
            if stack.page_url:
                click.echo(f"page     {stack.page_url}  (to act there: rover auth page-token)")
            click.echo("next     rover submit JOB.toml --wait      Ctrl-C ends everything")
        while True:
            ending.wait()
            if refusal := stack.turned_away:
                raise AccessDenied(refusal)
            down = stack.home.take_note_of_kept()  # then `rover down` sees to models and shared memory
            lost = [] if down else _keep(stack, ending, quiet)
            if not lost or _may_be_lost(lost, ending):
                break
            ending.go_on()
        runs = None if down or ending.forced else read_runs(stack.address)
        if not quiet:
            click.echo("ending: members drain first", err=True)
        ending.stopping = True
        stack.stop(at_once=ending.forced)
    if runs:
        _print_staged(stack.record().staging, runs, quiet)
    if lost:
        return Refused.exit_code
    return INTERRUPTED if ending.number == signal.SIGINT else 0


def _keep(stack: RunningStack, ending: StackEnding, quiet: bool) -> list[tuple[str, str]]:
    """Have last checkpoints taken. A second signal ends the waiting."""
    from rover_bus.cli.last_checkpoints import KeepOrder, keep_all

    def say(line: str) -> None:
        if not quiet:
            click.echo(f"{line}; once more Ctrl-C ends it without", err=True)

    host = "" if stack.has_broker else stack.host
    order = KeepOrder(
        stack.home.checkpoints, "the stack is going down", stack.record().ending.last_checkpoints_s, host
    )
    return keep_all(stack.address, order, say=say, enough=lambda: ending.forced)


def _print_staged(staging: str, runs: Runs, quiet: bool = False) -> None:
    """Free what ended jobs have left in shared memory, and name what is kept there."""
    from rover_bus.cli.staged_cuts import free_staged

    for line in free_staged(Path(staging), runs):
        if not quiet:
            click.echo(line, err=True)


def _may_be_lost(lost: list[tuple[str, str]], ending: StackEnding) -> bool:
    """Name what goes with the stack; ask, where Ctrl-C was pressed in a terminal. A signal to a service is a decision already."""
    from rover_bus.cli.last_checkpoints import print_lost

    print_lost(lost)
    if ending.forced or ending.number != signal.SIGINT or not sys.stdin.isatty():
        return True
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return click.confirm(ASK, err=True)
    except click.Abort:  # Ctrl-C once more
        ending.forced = True
        return True
    finally:
        ending.listen()


def detach_stack(home: Home) -> None:
    """Start the same command without --detach in a session of its own; return when it serves.

    Raises ServiceFailed with its last line and its exit code when it ends instead.
    """
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
            said_last = (lines or [f"nothing is said in {log}"])[-1].removeprefix("rover: ")
            code = process.returncode
            raise ServiceFailed(said_last, code if code > 0 else ServiceFailed.exit_code)
        time.sleep(0.02)
    click.echo(f"running in the background, pid {process.pid}; `rover down` ends it (log: {log})")


@click.command()
@click.option("--dir", "directory", default="", help="State directory [$ROVER_HOME, ./.rover].")
@click.option("--discard", is_flag=True, help="End it also where what a job has trained is lost by that.")
def down(directory: str, discard: bool) -> None:
    """End the stack of a state directory, wherever it runs: last checkpoints first, then members drain.

    Every running job gets one, also without [checkpoint], within 30 s (setting stack.last_checkpoints); `rover up` there goes on
    from them. Shared memory of jobs that have ended is free afterwards; what is kept for those that go on is named.
    """
    from rover_bus.cli.staged_cuts import read_runs

    home = Home.find(directory)
    record, runs = home.read_record(), None
    if not record.disposable:
        stack = Address(record.url, Path(record.secret_file), home.of_running())
        _keep_or_ask(stack, record, discard)
        runs = read_runs(stack)
        home.of_running().note_kept()
    os.kill(record.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + record.ending.down_s
    while home.is_held():
        if time.monotonic() > deadline_s:
            raise ServiceFailed(
                f"pid {record.pid} has not ended in {record.ending.down_s:g} s: look at {_log(home)}"
            )
        time.sleep(0.05)
    if runs:
        _print_staged(record.staging, runs)


def _keep_or_ask(stack: Address, record: StackRecord, discard: bool) -> None:
    """Have last checkpoints taken. Raises Refused, and nothing has ended, when some job cannot have one and no yes is given."""
    from rover_bus.cli.last_checkpoints import KeepOrder, keep_all, print_lost

    host = "" if record.embedded else record.host
    order = KeepOrder(stack.home.checkpoints, "rover down", record.ending.last_checkpoints_s, host)
    lost = keep_all(stack, order, say=lambda line: click.echo(line, err=True))
    print_lost(lost)
    if not lost or discard or (sys.stdin.isatty() and click.confirm(ASK, err=True)):
        return
    jobs = ", ".join(job for job, _ in lost)
    raise Refused(
        f"nothing has ended: what is trained would be lost ({jobs}); `rover down --discard` ends it all the same",
        "models_lost",
    )


def _log(home: Home) -> Path:
    return home.services / "daemon.log"
