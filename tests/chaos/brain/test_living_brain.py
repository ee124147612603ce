"""The Brain beside real processes: S16, S18, S10, S26, cores that change: played by `bench.living`, judged from outside.

How long things take is for the bench to say; here is asked only what must hold on any machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.chaos
ROOT = Path(__file__).parents[3]


def play(name: str, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.living", name, "--json", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def test_s16_a_scale_up_after_which_throughput_falls_is_taken_back_within_three_windows() -> None:
    said = play("falls")
    assert said["rolled_back"], said
    assert said["windows"] <= 3
    assert said["after"] < said["predicted"]
    assert said["sizes"][-1] < max(said["sizes"])


def test_a_size_that_two_of_three_workers_had_while_the_last_one_was_on_its_way_is_known() -> None:
    said = play("late", "--seconds", "20")
    assert said["settled_s"] > 15.0, said
    assert "2 of 3 sizes" in said["reason"] or "2 sizes of 3" in said["reason"], said


@pytest.mark.long
def test_s18_the_slow_one_of_two_workers_is_found_and_its_share_of_the_leases_shrinks() -> None:
    said = play("straggler")
    assert said["found"].startswith("worker-1."), said
    assert said["share_of_leases_after"] < 0.6 * said["share_of_leases_before"]


def test_running_workers_that_use_up_their_cores_get_more_without_a_restart() -> None:
    said = play("cores")
    assert said["same_processes"], said
    assert said["cpus_after"] != said["cpus_before"]
    assert said["plans"][1]["step"] == "probe"
    assert said["plans"][1]["measured"] is not None


def test_a_job_of_higher_priority_gets_the_room_of_a_lower_one_which_goes_on_where_it_was() -> None:
    said = play("priority")
    assert said["sizes"] == [3, 0, 3], said
    assert said["released_by"] == ["living"]
    assert [plan["constant"] for plan in said["plans"][1:]] == ["paused_for_priority", "room_again"]


def test_s10_a_growing_table_is_relieved_before_the_kill_under_one_incident() -> None:
    said = play("memory")
    assert not said["killed"], said
    assert len(said["incidents"]) == 1
    assert said["limits_mb"][-1] > said["limits_mb"][0]


@pytest.mark.long
def test_s10_the_same_job_without_relief_is_killed_at_its_limit() -> None:
    said = play("no-relief")
    assert said["killed"], said
    assert said["reason"] == "out_of_memory"
    assert said["incidents"] == []


def test_s26_training_goes_on_without_a_brain_and_the_next_plan_says_where_it_resumed() -> None:
    said = play("away", "--seconds", "10")
    assert said["away"]["failed_calls"] == 0
    assert said["away"]["batches_per_s"] > 0
    assert said["next_plan_resumed_from"] > 0
    assert said["next_plan_term"] == 2
