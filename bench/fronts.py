"""What a job's front takes, part by part, and how much of it fronts made for many jobs in one call would save.

    python -m bench.fronts [--jobs 1000] [--fronts 60] [--json]

The jobs of `bench.brain`, twenty a family, their models as the live Brain fitted them. Each part that works on arrays of plans is
timed on its own plans and on eight times as many: what a plan more takes is work, which one call for eight jobs has eight times
as well; the rest is what the calls themselves take, which they would share. Milliseconds of the processor, the least of three.
`_evaluate` is the prediction with intervals, `_promising` chooses what is worth one by the sketch. `all`: a whole front.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np

from bench.brain import cluster
from rover_bus.brain.choosing import OpenSize, consider
from rover_bus.brain.decisions import scaling
from rover_bus.brain.decisions.plans import PlanSpace
from rover_bus.brain.models.samples import Configurations
from rover_bus.brain.rules import rules_of
from rover_bus.brain.spaces import space_of
from rover_bus.brain.standing_models import StandingModels
from rover_bus.brain.totals import keep_totals

AT_ONCE = 8


def milliseconds(work: Callable[..., object], *of: object) -> float:
    """The least of three times that it took, after one that is not counted."""
    work(*of)
    taken = list[float]()
    for _ in range(3):
        began = time.process_time()
        work(*of)
        taken.append(time.process_time() - began)
    return 1e3 * min(taken)


def repeated(at: Configurations, times: int) -> Configurations:
    """So many times the same plans, with nothing of them kept from before."""
    return Configurations(*(np.tile(column, times) for column in at.columns()))


def parts_of(opened: OpenSize, space: PlanSpace, rules: scaling.ScalingRules) -> dict[str, float]:
    """Time the parts of one front."""
    contender, model = opened.contender, opened.model
    view, limits = contender.view, contender.limits
    near = scaling._bounded(space, view.held, limits, rules.restraint)
    at = scaling._thinned(near, view.held).configurations(view.batch_size)
    cost, speed = scaling._cost(view, at, rules.prices), model.sketch(at)
    some = at.take(scaling._promising(cost, speed))
    found = {"plans": float(len(near)), "sketched": float(len(at)), "predicted": float(len(some))}
    for times in (1, AT_ONCE):
        sketched, predicted = repeated(at, times), repeated(some, times)
        found[f"sketch_{times}"] = milliseconds(lambda these: model.sketch(repeated(these, 1)), sketched)
        costs, speeds = np.tile(cost, times), np.tile(speed, times)
        found[f"promising_{times}"] = milliseconds(scaling._promising, costs, speeds)
        found[f"predict_{times}"] = milliseconds(
            lambda these: scaling._evaluate(view, model, repeated(these, 1), rules), predicted
        )
    found["all"] = milliseconds(scaling.plan_front, view, model, space, rules, limits)
    return found


def measure(jobs: int, fronts: int) -> dict[str, Any]:
    """Means over so many jobs' fronts: each part's work and what its calls take beside it."""
    state = cluster(jobs)
    keep_totals(state)
    standing, each = StandingModels(state), list[dict[str, float]]()
    for name in list(state.jobs)[:: max(jobs // fronts, 1)]:
        opened, job = consider(name, state, state.quotas, standing), state.jobs[name]
        if isinstance(opened, OpenSize):
            space = space_of(job, standing.varied_servers(job))
            each.append(parts_of(opened, space, rules_of(job.spec.plan, standing.hazard)))
    means = {name: float(np.mean([one[name] for one in each])) for name in each[0]}
    found: dict[str, Any] = {"fronts": len(each), "all_ms": means["all"]}
    found |= {name: means[name] for name in ("plans", "sketched", "predicted")}
    for part in ("sketch", "promising", "predict"):
        once, more = means[f"{part}_1"], means[f"{part}_{AT_ONCE}"]
        work = min((more - once) / (AT_ONCE - 1), once)
        found |= {f"{part}_ms": once, f"{part}_work_ms": work, f"{part}_calls_ms": once - work}
    found["least_ms_in_one_call"] = sum(
        found[f"{part}_work_ms"] for part in ("sketch", "promising", "predict")
    )
    return found


@click.command(help=__doc__)
@click.option("--jobs", default=1000, show_default=True)
@click.option("--fronts", default=60, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one last line of JSON.")
def main(jobs: int, fronts: int, as_json: bool) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    found = measure(jobs, fronts)
    for name, value in found.items():
        print(f"{name:<24} {value:.4g}")
    if as_json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
