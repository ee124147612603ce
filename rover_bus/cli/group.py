"""The commands of `rover` by name, in the order of their use. Each module is imported when its command is asked for.

Fed by entry.py; apart from the commands, so that `rover --help` imports none of them.
"""

from __future__ import annotations

import sys
from importlib import import_module

import click

from rover_bus.cli.collecting import loading

# section -> command -> (module under commands/, one line of help)
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Start here": {
        "demo": (
            "demo",
            "Watch a job find its size while its workers, its master and its broker are killed.",
        ),
        "up": ("up", "Run a stack on this machine: broker, node daemon, Brain."),
        "down": ("up", "End the stack of a state directory."),
        "join": ("join", "Make this machine a host of a stack that runs elsewhere."),
        "operator": ("operator", "Run the members of jobs as pods of a Kubernetes cluster."),
        "node-agent": (
            "node_agent",
            "Keep the checkpoints of a Kubernetes node, and sample it; an operator runs its members.",
        ),
        "broker": ("broker", "Run the broker of a stack alone, on a machine or in a pod of its own."),
        "brain": ("brain", "Run the Brain of a stack alone, in a pod of its own."),
        "web": ("web", "Serve the page, the API and the metrics of a stack; `rover up` does so by itself."),
        "auth": ("auth", "Tenants, credentials for their people, tokens by which hosts join."),
        "run": ("run", "Run a training program without a stack, or a job file in one process (--plain)."),
    },
    "Jobs": {
        "submit": ("submit", "Submit a job file; --wait follows it to its end."),
        "jobs": ("jobs", "List jobs and what became of them."),
        "members": ("members", "List the processes of a job: role, pid, state, and which master leads."),
        "top": ("top", "Watch jobs live."),
        "logs": ("logs", "Print what the members of a job wrote."),
        "pause": ("pause", "Let the workers of a job leave; its servers keep the model."),
        "resume": ("pause", "Let a paused job go on where it was."),
        "plan": ("plan", "See the Brain's plans for a job; approve or reject one."),
        "quota": ("quota", "See and set what the jobs of a tenant may use together."),
        "freeze": (
            "freeze",
            "See and set windows in which the Brain changes no running job by its own choice.",
        ),
        "disk": ("disk", "Show what each job costs on disk, and will at its end."),
        "scale": ("move", "Give a running job more or fewer workers or parameter servers."),
        "move": ("move", "Move slots of parameters between the servers of a running job."),
        "stop": ("stop", "Let a job finish what it holds, and end."),
        "cancel": ("stop", "End a job at once."),
        "forget": ("forget", "Remove everything that is kept of an ended job."),
        "kube": ("kube", "Print a job file as an object of Kubernetes; prepare and clean an installation."),
    },
    "What happened, and why": {
        "events": ("events", "Print facts as they happened; --follow waits for more."),
        "explain": (
            "explain",
            "Why a job has its size: inputs, fit, front, choice, predicted against measured.",
        ),
        "what-if": (
            "explain",
            "Ask the planner about a size that was never run, on a copy of what the Brain knows.",
        ),
        "story": ("story", "Walk from an event back to what caused it."),
        "replay": ("replay", "Print the state of a job as it was at one moment of its log."),
        "nats": ("nats", "Print a context for the nats CLI, with the rights of an observer."),
        "decode": ("decode", "Turn a message body on stdin into JSON (for `nats --translate`)."),
    },
    "Results and checks": {
        "export": ("export", "Write the trained model of a job as .npz."),
        "predict": ("predict", "Score the rows of a data file with an exported model."),
        "checkpoint": ("checkpoint", "List, verify, restore and prune checkpoints on their storage."),
        "witness": ("witness", "Write how often each sample was trained, as the servers saw it."),
        "simulate": ("simulate", "Play deterministic histories of the whole system."),
        "history": ("history", "What jobs asked, got, used, and how they ended; exportable."),
        "fit": ("fit", "Fit measured throughput and predict unmeasured sizes."),
        "backup": ("backup", "Write what the broker of this machine stores into a directory."),
        "restore": ("backup", "Put a backup into the state directory of a stack that does not run."),
        "upgrade": ("upgrade", "List which release each process runs; raise the stack's format."),
        "doctor": ("doctor", "Check this machine and a running stack."),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class ReaderGone(Exception):
    """The reader of our output went away. Click would end with 1 on a BrokenPipeError that it sees."""


class LazyGroup(click.Group):
    """Knows its commands by name and help only, until one is asked for."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            result: object = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise ReaderGone from None
        return result

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        with loading():
            module = import_module(f"rover_bus.cli.commands.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            from difflib import get_close_matches

            close = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"No command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rover-bus", prog_name="rover")
def rover() -> None:
    """Trains recommendation models on machines that fail, and loses no sample."""
