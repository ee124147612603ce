"""The live Brain as a policy is told what a cluster would tell it, when it would."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.simulation import worlds
from bench.simulation.cluster import Cluster
from bench.simulation.generator import generate
from bench.simulation.policies.live import LiveBrain
from bench.simulation.port import Setting
from bench.simulation.weather import Weather

SEED = 3
QUIET = Weather(straggler=0.0, hot_server=0.0, worker_spread=0.0, noise=0.0, failure=0.0)


@pytest.fixture(scope="module")
def run() -> tuple[Cluster, list[tuple[float, float]]]:
    """Two jobs alone in quiet weather; what their windows were believed to show of a size, and the truth of it."""
    whole = generate(worlds.W1(), SEED, jobs=10)
    cases = sorted((c for c in whole.cases if c.mode == "async"), key=lambda c: -c.samples)[:2]
    policy = LiveBrain(Setting(worlds.W1.menu, SEED))
    cluster = Cluster(replace(whole, cases=tuple(cases)), policy, QUIET, drift=False)
    seen = list[tuple[float, float]]()
    plan = policy.plan

    def watched(*asked: object) -> object:
        for case in cases:
            known = policy.brain._decider.state.jobs.get(case.name)
            for row in known.tried if known is not None else ():
                at = (row.size.workers, row.size.servers, row.size.worker_cores, row.size.server_cores)
                seen.append((row.mean, float(case.throughput(np.array([at]))[0])))
        return plan(*asked)  # type: ignore[arg-type]

    policy.plan = watched  # type: ignore[assignment]
    cluster.run()
    return cluster, seen


@pytest.mark.parametrize(("stages", "changes"), [((1,), False), ((3,), False), ((2,), True), ((1, 2), True)])
def test_without_its_second_stage_no_size_changes(stages: tuple[int, ...], changes: bool) -> None:
    workload = generate(worlds.W1(), SEED, jobs=4)
    policy = LiveBrain(Setting(worlds.W1.menu, SEED), frozenset(stages))
    result = Cluster(workload, policy, QUIET, drift=False).run()
    assert all(job.completed for job in result.jobs.values())
    assert (sum(job.rescales for job in result.jobs.values()) > 0) is changes


def test_no_window_from_before_a_change_is_believed_to_show_the_size_after_it(
    run: tuple[Cluster, list[tuple[float, float]]],
) -> None:
    cluster, seen = run
    assert sum(job.rescales for job in cluster.result.jobs.values()) > 2, "one size shows nothing"
    measured, true = np.array(seen).T
    np.testing.assert_allclose(measured, true, rtol=0.1)
