"""A job that is suspended leaves no worker and no server behind, and goes on exactly where it was: whatever is killed meanwhile."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from small_job import SmallJob, checkpointed_job, hosts_up

from rover_bus.flash.places import host_root

pytestmark = pytest.mark.chaos


def constants(job: SmallJob) -> list[str]:
    """Return why plans of a job were withheld."""
    return [each["constant"] for each in job.facts("plan.withheld")]


def test_a_suspended_job_releases_its_servers_and_goes_on_where_it_was(tmp_path: Path) -> None:
    with hosts_up(tmp_path / "stacks", "one") as hosts:
        job = checkpointed_job(hosts["one"].home.root, tmp_path, epochs=3, checkpoint='every = "1h"')
        job.submit()

        def living(*roles: str) -> list[int]:
            listed = json.loads(job.rover("members", job.name, "-o", "json").stdout)
            return [row["pid"] for row in listed if row["role"] in roles and row["pid"]]

        def suspend() -> None:
            job.until(lambda: job.facts("job.reported"), "progress")
            assert job.rover("pause", job.name, "--release").stdout == f"{job.name}: paused\n"
            job.until(lambda: not living("worker", "ps"), "the end of all workers and servers")

        suspend()
        lost = [each for each in job.facts("member.lost") if each["member"]["role"] == "ps"]
        assert lost == [], "where a server is lost before there is a checkpoint, the job begins again"
        (rewound,) = job.facts("ledger.rewound")
        assert rewound["samples_again"] == 0
        assert rewound["cut"] == job.facts("checkpoint.ready")[-1]["cut"]
        assert "paused already" in job.rover("pause", job.name, "--release").stderr
        for pid in living("master"):
            os.kill(pid, signal.SIGKILL)
        for slot in host_root(hosts["one"].home.node).rglob("*.slot"):
            slot.unlink()  # what servers left in memory is no source any more
        assert job.rover("resume", job.name).stdout.startswith(
            f"{job.name}: goes on once there is room for it"
        )
        job.until(lambda: living("worker") and living("ps"), "workers and servers")
        job.until(lambda: len(job.facts("server.restored")) == 2, "the model from its checkpoint")
        assert {each["source"] for each in job.facts("server.restored")} == {"storage"}
        suspend()  # once more, in the generation that came of the first time
        assert [each["samples_again"] for each in job.facts("ledger.rewound")] == [0, 0]
        assert job.rover("resume", job.name).stdout.startswith(
            f"{job.name}: goes on once there is room for it"
        )
        job.complete()


def test_another_job_has_the_room_of_a_suspended_one_which_waits_for_it_when_it_is_resumed(
    tmp_path: Path,
) -> None:
    with hosts_up(tmp_path / "stacks", "one") as hosts:
        cores = (os.cpu_count() or 1) * 0.15  # four of them fit, eight do not
        home = hosts["one"].home.root
        first = replace(checkpointed_job(home, tmp_path, epochs=1, checkpoint='every = "1h"'), cores=cores)
        other = replace(first, name="other", workers=3, servers=1)
        first.submit()
        first.until(lambda: first.facts("job.reported"), "progress")
        other.submit()
        other.until(lambda: "no_capacity" in constants(other), "the word that there is no room")
        assert first.rover("pause", first.name, "--release").stdout == f"{first.name}: paused\n"
        other.until(lambda: other.facts("job.reported"), "progress in the room of the suspended job")
        first.rover("resume", first.name)
        first.until(lambda: "no_capacity" in constants(first), "the word that there is no room")
        assert len(first.facts("plan.applied")) == 1
        other.complete()
        first.until(lambda: len(first.facts("server.restored")) == 2, "the model from its checkpoint")
        assert [each["samples_again"] for each in first.facts("ledger.rewound")] == [0]
        first.complete()
