"""`rover plan`: the plans of a job, and a person's word on them. What is said here is a fact with its author's name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from rover_bus.cli.completion import complete_jobs
from rover_bus.cli.connection import Address, split_name, visit, with_stack
from rover_bus.cli.views.tables import output_option, show

if TYPE_CHECKING:
    from rover_bus.events.facts import JobFact
    from rover_bus.events.nats_bus import NatsBus

COLUMNS = ("plan", "step", "change", "state", "why", "measured", "predicted", "after")

MODES = ("observe", "approve", "auto")


@click.group()
def plan() -> None:
    """See the plans of a job, let one pass, refuse it, say what becomes of the next ones.

    Plans come from the Brain. In mode `approve` ([plan] of the job file, or `rover plan mode`) each waits for a person.
    """


@plan.command("list")
@click.argument("job", shell_complete=complete_jobs)
@output_option
@with_stack
def list_plans(stack: Address, job: str, output: str) -> None:
    """List the plans of JOB: what each changes, what became of it, what it was to bring and brought (samples/s)."""
    from rover_bus.cli.views.plans import plan_row, read_plans

    plans = visit(stack, lambda bus: read_plans(bus, job))
    show(map(plan_row, plans.by_number.values()), COLUMNS, output, empty=f"no plan for {job!r} yet")


@plan.command()
@click.argument("job", shell_complete=complete_jobs)
@click.argument("number", type=int, required=False, metavar="[PLAN]")
@click.option("--reason", default="", help="Why: it stands in the job's history.")
@with_stack
def approve(stack: Address, job: str, number: int | None, reason: str) -> None:
    """Let the plan of JOB that waits pass. The master checks it once more: the world may have changed meanwhile."""
    from rover_bus.cli.plan_words import answer_plan
    from rover_bus.cli.submission import asker

    said = asker(), reason
    click.echo(visit(stack, lambda bus: answer_plan(bus, job, number, said, yes=True)))


@plan.command()
@click.argument("job", shell_complete=complete_jobs)
@click.argument("number", type=int, required=False, metavar="[PLAN]")
@click.option("--reason", default="", help="Why: it stands in the job's history.")
@with_stack
def reject(stack: Address, job: str, number: int | None, reason: str) -> None:
    """Refuse the plan of JOB that waits: the job keeps what it holds."""
    from rover_bus.cli.plan_words import answer_plan
    from rover_bus.cli.submission import asker

    said = asker(), reason
    click.echo(visit(stack, lambda bus: answer_plan(bus, job, number, said, yes=False)))


@plan.command()
@click.argument("words", nargs=-1, required=True, metavar="[JOB] observe|approve|auto")
@click.option(
    "--cluster", is_flag=True, help="For all jobs, those to come included; a job's own can be stricter."
)
@click.option("--reason", default="", help="Why: it stands among the events (with --cluster).")
@with_stack
def mode(stack: Address, words: tuple[str, ...], cluster: bool, reason: str) -> None:
    """Say what becomes of the Brain's next plans, for JOB or with --cluster for all: only said, held for a person, carried out."""
    from rover_bus.cli.plan_words import send
    from rover_bus.cli.submission import asker
    from rover_bus.events.facts import PlanModeSet
    from rover_bus.events.host_facts import ClusterModeSet

    *jobs, last = words
    if len(jobs) != (0 if cluster else 1) or last not in MODES:
        raise click.UsageError(
            f"say `rover plan mode JOB {'|'.join(MODES)}`, or `rover plan mode --cluster` and the mode"
        )
    mode: Any = last
    named = {"job": jobs[0] if jobs else ""}
    stack = replace(stack, tenant=split_name(named, stack.tenant))
    if cluster:
        if stack.tenant:
            raise click.UsageError("--cluster means the jobs of all tenants: leave --tenant out")
        from rover_bus.cli.commands.quota import send_to_cluster

        fact = ClusterModeSet(mode=mode, reason=reason, by=asker())
        done = f"all jobs: plans are in mode {mode} from now on; a job's own mode can only be stricter"
        click.echo(visit(stack, lambda bus: send_to_cluster(bus, fact, done)))
        return
    job = named["job"]
    visit(stack, lambda bus: send(bus, job, PlanModeSet(job=job, mode=mode, by=asker())))
    click.echo(f"{stack.full_name(job)}: plans are in mode {mode} from now on")


@plan.command("try")
@click.argument("job", shell_complete=complete_jobs)
@click.option("--workers", type=click.IntRange(min=1), required=True, help="So many workers.")
@click.option("--reason", default="", help="Why: it stands in the job's history.")
@with_stack
def try_plan(stack: Address, job: str, workers: int, reason: str) -> None:
    """Give JOB another number of workers on trial: the Brain measures it, and reverts it when it does not pay."""
    from rover_bus.cli.plan_words import open_plans, what_became
    from rover_bus.cli.trials import ask_size, first_fact

    async def ask(bus: NatsBus) -> str:
        from rover_bus.cli.views.plans import read_plans
        from rover_bus.events.errors import BusTimeout, Refused
        from rover_bus.events.facts import PlanApplied, PlanRefused, PlanRequested

        await open_plans(bus, job)
        request = PlanRequested(job=job, workers=workers, trial=True, reason=reason)
        asked, sequence = await ask_size(bus, request)

        def wanted(fact: JobFact) -> bool:
            return isinstance(fact, PlanApplied | PlanRefused) and fact.plan == asked.plan

        if await first_fact(bus, job, sequence, wanted) is None:
            raise BusTimeout(f"no master answered: `rover plan list {job}` shows what becomes of it")
        became = await what_became(bus, job, asked.plan)
        if (await read_plans(bus, job)).find(asked.plan).state == "refused":
            raise Refused(became, "plan_refused")
        return became

    click.echo(visit(stack, ask))
