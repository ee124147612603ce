"""A broker that hangs, with its connections open, is nobody's death: the job, without a checkpoint, goes on (P19)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from small_job import SmallJob, hosts_up

pytestmark = pytest.mark.chaos
HUNG_S = 4.0  # longer than three heartbeats, shorter than it takes to leave a broker that answers no ping


def test_members_are_not_taken_for_dead_while_the_broker_hangs(tmp_path: Path) -> None:
    with hosts_up(tmp_path, "a") as hosts:
        job = SmallJob(
            folder=tmp_path,
            home=hosts["a"].home.root,
            rows=12_000,
            epochs=1,
            workers=2,
            servers=2,
            leases='heartbeat = "1s"',
            checkpoint='every = "10m"\npersist = false',
        )
        job.submit()
        job.until(lambda: job.facts("epoch.opened"), "an epoch")
        broker = hosts["a"].pids()["broker"]
        os.kill(broker, signal.SIGSTOP)
        time.sleep(HUNG_S)
        os.kill(broker, signal.SIGCONT)
        job.complete()
        assert job.facts("member.lost") == []
        assert job.facts("ledger.rewound") == []
