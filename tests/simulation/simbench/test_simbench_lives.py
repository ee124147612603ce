"""The life of a job as it is told: what it held and was to hold, and where its time went; the run itself stays what it was."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from bench.simulation import worlds
from bench.simulation.__main__ import main
from bench.simulation.cluster import Cluster
from bench.simulation.generator import generate
from bench.simulation.lives import Watched, told
from bench.simulation.policies.live import LiveBrain
from bench.simulation.policies.static import TunedStatic
from bench.simulation.port import Policy, Setting

SEED, JOBS = 3, 4


def cell(policy: Policy) -> Cluster:
    return Cluster(generate(worlds.W1(), SEED, jobs=JOBS), policy)


@pytest.mark.parametrize("kind", [LiveBrain, TunedStatic])
def test_a_watched_run_is_the_same_run_and_every_change_of_a_job_is_told(kind: type[Policy]) -> None:
    plain, watched = kind(Setting(worlds.W1.menu, SEED)), Watched(kind(Setting(worlds.W1.menu, SEED)))
    alone, cluster = cell(plain), cell(watched)
    watched.jobs = cluster.jobs
    assert alone.run().figures() == cluster.run().figures()
    for name, job in cluster.jobs.items():
        first, _, _, *lines = told(cluster, watched, [name], 0)
        assert first.startswith(f"{name}: {job.case.family}, {job.case.mode}; seconds: ")
        assert f"work {job.budget.work_s:,.0f}" in first
        assert sum(" -> " in line for line in lines) >= job.result.rescales + 1, "its start is one more"
        assert "nothing -> " in lines[0]


def test_the_jobs_that_lost_most_by_their_sizes_come_first() -> None:
    watched = Watched(TunedStatic(Setting(worlds.W1.menu, SEED)))
    cluster = cell(watched)
    watched.jobs = cluster.jobs
    cluster.run()
    most = max(cluster.jobs, key=lambda name: cluster.jobs[name].budget.size_s)
    (first,) = [line for line in told(cluster, watched, [], 1) if line.startswith("job-")]
    assert first.startswith(f"{most}: ")


def test_the_command_names_a_job_that_there_is_not() -> None:
    asked = ["lives", "--policy", "well-tuned static", "--job", "job-999"]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 1
    assert "seed 0 has no job job-999" in result.output
