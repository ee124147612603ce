"""A job that is suspended leaves no worker and no server behind, and goes on exactly where it was: whatever is killed meanwhile."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from small_job import checkpointed_job, hosts_up

from rover_bus.flash.places import host_root

pytestmark = pytest.mark.chaos


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
        (rewound,) = job.facts("ledger.rewound")
        assert rewound["samples_again"] == 0
        assert rewound["cut"] == job.facts("checkpoint.ready")[-1]["cut"]
        assert "paused already" in job.rover("pause", job.name, "--release").stderr
        for pid in living("master"):
            os.kill(pid, signal.SIGKILL)
        for slot in host_root(hosts["one"].home.node).rglob("*.slot"):
            slot.unlink()  # what servers left in memory is no source any more
        assert job.rover("resume", job.name).stdout == f"{job.name}: goes on\n"
        job.until(lambda: living("worker") and living("ps"), "workers and servers")
        job.until(lambda: len(job.facts("server.restored")) == 2, "the model from its checkpoint")
        assert {each["source"] for each in job.facts("server.restored")} == {"storage"}
        suspend()  # once more, in the generation that came of the first time
        assert [each["samples_again"] for each in job.facts("ledger.rewound")] == [0, 0]
        assert job.rover("resume", job.name).stdout == f"{job.name}: goes on\n"
        job.complete()
