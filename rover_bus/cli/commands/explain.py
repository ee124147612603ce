"""`rover explain` and `rover what-if`: why a job has the size that it has, and what another one would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rover_bus.cli.completion import complete_jobs
from rover_bus.cli.connection import Address, visit, with_history, with_stack
from rover_bus.cli.views.tables import output_option, render
from rover_bus.events.subjects import DEFAULT_TENANT

if TYPE_CHECKING:
    from rover_bus.cli.views.explaining import Row
    from rover_bus.events.nats_bus import NatsBus


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.argument("number", type=int, required=False, metavar="[PLAN]")
@output_option
@with_history
def explain(stack: Address, job: str, number: int | None, output: str) -> None:
    """Explain PLAN of JOB, or the newest: what was measured, the fit with its error, the front, the choice, why not the others,
    predicted against measured. Read from the logs: works while the Brain is down, and after the job is over.
    """

    from rover_bus.cli.views.explaining import read_explanation

    explained = visit(stack, lambda bus: read_explanation(bus, job, number))
    click.echo(_json(explained) if output == "json" else "\n".join(explanation_lines(explained)))


@click.command("what-if")
@click.argument("job", shell_complete=complete_jobs)
@click.option("--workers", type=click.IntRange(min=1), help="So many workers.")
@click.option("--ps", "--servers", "servers", type=click.IntRange(min=1), help="So many servers.")
@click.option("--worker-cores", type=click.FloatRange(min=0, min_open=True), help="So many cores each.")
@click.option(
    "--ps-cores", "server_cores", type=click.FloatRange(min=0, min_open=True), help="The same of servers."
)
@output_option
@with_stack
def what_if(  # noqa: PLR0913 - the options of a command
    stack: Address,
    job: str,
    workers: int | None,
    servers: int | None,
    worker_cores: float | None,
    server_cores: float | None,
    output: str,
) -> None:
    """Ask the Brain's own planner what JOB would do at another size; what is not given stays. Nothing is changed by it."""
    asked = {
        "workers": workers,
        "servers": servers,
        "worker_cores": worker_cores,
        "server_cores": server_cores,
    }

    async def read(bus: NatsBus) -> Row:
        from rover_bus.cli.plan_words import open_plans
        from rover_bus.cli.views.brain_state import read_brain
        from rover_bus.cli.views.explaining import suppose
        from rover_bus.events.errors import AccessDenied, Refused
        from rover_bus.events.subjects import qualified

        await open_plans(bus, job)
        full = qualified(bus.tenant, job)
        brain = await read_brain(bus, full)
        if bus.tenant != DEFAULT_TENANT and not brain.sequence:
            raise AccessDenied(
                f"what the Brain knows of {full} is not for credentials of a tenant: the stack's operator may ask"
            )
        known = brain.state.jobs.get(full)
        if known is None or known.held is None:
            raise Refused(f"the Brain knows nothing of {job!r} yet: wait for its first plan", "too_early")
        wanted = known.held.replace(**{name: value for name, value in asked.items() if value is not None})
        return {"job": job, "brain_log_sequence": brain.sequence, **suppose(known, brain.state, wanted)}

    supposed = visit(stack, read)
    click.echo(_json(supposed) if output == "json" else "\n".join(supposition_lines(supposed)))


def _json(record: Row) -> str:
    import msgspec

    return msgspec.json.encode(record).decode()


def explanation_lines(explained: Row) -> list[str]:
    """Return an explanation as lines."""
    from rover_bus.cli.views.explanation import error_text, forecast_text
    from rover_bus.cli.views.plans import change_text, size_text

    if explained["plan"] is None:
        return _waiting(explained)
    by = f", by {explained['by']}" if explained["by"] else ""
    wanted, came_from = explained["wanted"], explained["computed_from"]
    lines = [
        f"{explained['job']}, plan {explained['plan']} ({explained['step']}): {change_text(explained['held'], wanted)}",
        f"outcome    {explained['outcome']}",
        f"reason     {explained['reason']} [{explained['constant']}]{by}",
        f"size       {size_text(wanted)}",
    ]
    lines += [f"fixed      {constraint}" for constraint in explained["constraints"]]
    if explained["slow_hosts"]:
        lines.append(f"avoided    {', '.join(explained['slow_hosts'])}: slow (`rover doctor` says how much)")
    lines += _inputs(explained)
    lines += [f"{'why not' if at == 0 else '':10} {line}" for at, line in enumerate(explained["why_not"])]
    predicted, measured = explained["predicted"], explained["measured_after"]
    if predicted:
        low, high = explained["predicted_low_90"], explained["predicted_high_90"]
        spread = f" ({low:,.0f} to {high:,.0f})" if low and high else ""
        after = (
            f"{measured:,.0f} measured ({error_text(predicted, measured)})"
            if measured
            else "not measured yet"
        )
        lines.append(f"predicted  {predicted:,.0f} samples/s{spread}; {after}")
    lines.append(
        f"made from  the job's log up to {came_from['log_sequence']}, member set {came_from['members_plan']}, "
        f"by Brain term {came_from['brain_term']}"
        if came_from["brain_term"] and explained["step"] != "asked"
        else "made from  a person's word"
    )
    if explained.get("stop"):
        lines.append(f"stop       {forecast_text(explained['stop'])}")
    if explained.get("paused"):
        lines.append(f"paused     {explained['paused']}")
    elif explained.get("left_as_it_is"):
        lines.append(f"since then left as it is: {_left(explained['left_as_it_is'])}")
    return lines


def _waiting(explained: Row) -> list[str]:
    """A job without a plan: what it waits for."""
    left = explained["left_as_it_is"]
    why = (
        f"it waits: {_left(left)}"
        if left
        else "the Brain has not spoken of it; `rover doctor` says whether it is up"
    )
    return [f"{explained['job']} has no plan yet", why]


def _times(times: Row) -> str:
    """How long things take for this job, as far as it was measured."""
    changes = times["changes_measured"]
    by = f"by {changes} of its own" if changes else "by its family, or this cluster"
    start = f"members start in {times['start_s']:g} s, " if times["start_s"] else ""
    change = f"a change costs {times['change_s']:g} s ({by})"
    rests = f"then the job rests {times['cooldown_s']:g} s"
    losses = f"a member is counted on for {times['member_lost_every_s'] / 3600:,.0f} h ({times['members_lost']} were lost here)"
    return f"a window is {times['window_s']:g} s, {start}{change}, {rests}; {losses}"


def _left(left: dict[str, str]) -> str:
    return f"{left['constant']} ({left['detail']})" if left["detail"] else left["constant"]


def _no_axis(loose: list[str]) -> str:
    """Why the plan chose no cores. `loose`: what saw that they do not bind now."""
    if not loose:
        return "were no axis when this plan was made; by now every host is known to hold members to theirs"
    if loose == ["none"]:
        return "are no axis: no member has said yet that its host holds it to its cores (`rover doctor` names the hosts)"
    return "are no axis: a host does not hold members to theirs (`rover doctor` names it)"


def _inputs(explained: Row) -> list[str]:
    if "tried" not in explained:
        return []
    lines: list[str] = []
    if explained["tried"]:
        passed = any(row["passing"] for row in explained["tried"])
        rows = [
            {
                "workers": row["workers"],
                "servers": row["servers"],
                **_varied(row, explained["tried"]),
                "measured": row["measured"],
                "fitted": row["fitted"],
                "error": None if row["error"] is None else f"{100 * row['error']:+.1f} %",
                "waits for input": f"{100 * row['input_share']:.0f} %",
                **(
                    {"asked for by": "none: others were on their way" if row["passing"] else "a plan"}
                    if passed
                    else {}
                ),
            }
            for row in explained["tried"]
        ]
        lines += ["inputs     (samples/s)", *_indented(rows)]
    if not explained["cores_bind"]:
        lines.append(f"cores      {_no_axis(explained['cores_loose'])}")
    lines.append(f"times      {_times(explained['times'])}")
    lines.append(f"fit        {_fit(explained['fit'])}")
    lines += [f"           beware: {warning}" for warning in explained["fit"].get("warnings", ())]
    for row in explained["fit"].get("taken_back", ()):
        lines.append(
            f"           {_place(row, explained['tried'])} reverted at {row['reached']:,.0f} samples/s"
        )
    if explained["front"]:
        front = [
            {
                "workers": row["workers"],
                "servers": row["servers"],
                **_varied(row, explained["front"]),
                "cost": f"{row['cost']:.2f}",
                "throughput": row["throughput"],
            }
            for row in explained["front"]
        ]
        lines += ["front      (cost in cores and GiB, samples/s)", *_indented(front)]
    return lines


AXES = {
    "worker_cores": "cores a worker",
    "server_cores": "cores a server",
    "worker_memory_bytes": "GiB a worker",
    "server_memory_bytes": "GiB a server",
}


def _varied(row: Row, rows: list[Row]) -> Row:
    """The columns of what varies among some sizes; of others every row would say the same."""
    return {
        title: f"{row[name] / 2**30:.3g}" if name.endswith("bytes") else f"{row[name]:g}"
        for name, title in AXES.items()
        if _differs(name, rows)
    }


def _place(row: Row, tried: list[Row]) -> str:
    """A size that was taken back, in words, with the cores that varied."""
    cores = [
        f"{row[name]:g} {AXES[name]}" for name in ("worker_cores", "server_cores") if _differs(name, tried)
    ]
    return ", ".join([f"workers {row['workers']}", f"servers {row['servers']}", *cores])


def _differs(name: str, rows: list[Row]) -> bool:
    return any(row[name] != rows[0][name] for row in rows)


def _fit(fit: dict[str, Any]) -> str:
    if "not_enough" in fit:
        return f"not enough: {fit['not_enough']}"
    words = [f"off by {100 * fit['median_error']:.1f} % in the median over {fit['sizes']} sizes"]
    if fit.get("ingest_a_worker"):
        words.insert(
            0,
            f"bound by input: {fit['ingest_a_worker']:,.0f} samples/s a worker ± {100 * fit['ingest_spread']:.0f} %",
        )
    if fit.get("compute"):
        words.insert(0, f"compute by the {fit['compute']} form")
    return "; ".join(words)


def supposition_lines(supposed: Row) -> list[str]:
    """Return the planner's answer as lines."""
    from rover_bus.cli.views.plans import size_text

    rows = []
    for name in ("held", "wanted"):
        row = supposed[name]
        rows.append(
            {
                "": "now" if name == "held" else "what if",
                "workers": row["workers"],
                "servers": row["servers"],
                **_varied(row, [supposed["held"], supposed["wanted"]]),
                "samples/s": f"{row['throughput']:,.0f}" + ("?" if row["guess"] else ""),
                "90 %": f"{row['low_90']:,.0f} to {row['high_90']:,.0f}",
                "cost": f"{row['cost']:.2f}",
                "ends in": "-" if row["remaining_s"] is None else f"{row['remaining_s']:,.0f} s",
            }
        )
    lines = [f"{supposed['job']}, by the Brain's log up to {supposed['brain_log_sequence']}"]
    lines += render(rows, list(rows[0])).splitlines()
    if supposed["wanted"]["guess"]:
        lines.append("? a guess: too far from what was measured")
    lines += [
        f"beware: {noun} were never varied; the form alone speaks" for noun in supposed["never_measured"]
    ]
    lines += [f"beware: {said}" for said in supposed["far_from_measured"]]
    if supposed["would_be_refused"]:
        lines.append(f"the planner would refuse it: {supposed['would_be_refused']}")
    planner = supposed["planner"]
    if "wants" in planner:
        lines.append(f"it would itself take {size_text(planner['wants'])} ({planner['constant']})")
    else:
        lines.append(f"it would itself leave it as it is ({planner['left_as_it_is']})")
    return lines


def _indented(rows: list[dict[str, Any]]) -> list[str]:
    return [f"           {line}" for line in render(rows, list(rows[0])).splitlines()]
