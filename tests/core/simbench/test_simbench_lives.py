"""What single jobs lose beside what they take under another policy."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from bench.simulation import worlds
from bench.simulation.__main__ import main
from bench.simulation.cluster import Cluster
from bench.simulation.generator import generate
from bench.simulation.lives import longer_beside
from bench.simulation.policies.static import StaticUser, TunedStatic
from bench.simulation.port import Setting
from bench.simulation.weather import CALM


def test_what_jobs_lose_adds_up_to_what_their_cells_differ_by() -> None:
    workload, setting = generate(worlds.W1(), 3, jobs=4), Setting(worlds.W1.menu, 3)
    ours, theirs = (Cluster(workload, policy(setting), CALM) for policy in (StaticUser, TunedStatic))
    for cell in (ours, theirs):
        cell.run()
    found = longer_beside(ours, theirs)
    assert [each.seconds for each in found] == sorted((each.seconds for each in found), reverse=True)
    assert {each.job for each in found} == ours.jobs.keys()
    for each in found:
        ended, other = (cell.jobs[each.job].result.ended_s for cell in (ours, theirs))
        assert min(ended, other) > 0
        assert each.seconds == pytest.approx(ended - other, abs=1e-6)
        assert sum(each.items.values()) == pytest.approx(each.seconds, abs=1e-6)


def test_the_command_names_the_jobs_that_take_longest() -> None:
    where = ["--world", "bench.simulation.example_world:Rough", "--seed", "1", "--most", "2"]
    policies = ["--policy", "static user", "--beside", "well-tuned static"]
    told = CliRunner().invoke(main, ["losses", *where, *policies])
    assert told.exit_code == 0, told.output
    first, *jobs = told.output.splitlines()
    assert first.startswith("20 jobs, ")
    assert len(jobs) == 2
    assert all(line.startswith("seed 1 job-") and " s (" in line for line in jobs)
