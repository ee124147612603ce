"""S29 with real processes: a daemon gets SIGTERM while its host trains.

Its worker part-commits, a last cut is taken and stored, its server leaves after it and goes on elsewhere from that cut.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from small_job import SmallJob, hosts_up

pytestmark = [pytest.mark.chaos, pytest.mark.broker]
CHECKPOINT = """
every = "10m"  # but for the first one there is no cut in time
path = "store"
"""


def test_a_host_that_is_told_to_go_leaves_a_cut_behind(tmp_path: Path) -> None:
    with hosts_up(tmp_path, "a", "b") as hosts:
        job = SmallJob(
            folder=tmp_path,
            home=hosts["a"].home.root,
            rows=8_000,
            epochs=1,
            workers=2,
            servers=2,
            leases='heartbeat = "1s"',
            checkpoint=CHECKPOINT,
        )
        job.submit()
        job.until(lambda: job.facts("checkpoint.ready"), "the first cut in storage")
        job.until(lambda: len(job.facts("job.reported")) > 0, "some progress")
        os.kill(hosts["b"].pids()["daemon"], signal.SIGTERM)
        hosts["b"].services.pop("daemon").stop(60.0)
        job.until(lambda: job.facts("server.restored"), "its server serves elsewhere")
        assert [each["cut"] for each in job.facts("checkpoint.ready")][:2] == [1, 2]
        assert {(each["member"]["index"], each["cut"]) for each in job.facts("server.restored")} == {(1, 2)}
        job.complete()
        rewound = job.facts("ledger.rewound")[-1]
        assert rewound["cut"] == 2
        assert rewound["samples_again"] < job.rows * job.epochs / 4
        assert {each["reason"] for each in job.facts("members.displaced")} >= {"leaving"}
