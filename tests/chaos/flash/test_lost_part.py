"""Three hosts keep parity of each other's parts; one is lost with its memory: its part is rebuilt, samples count once (P13)."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_job import SmallJob, hosts_up

pytestmark = [pytest.mark.chaos, pytest.mark.broker]
CHECKPOINT = """
every = "2s"
parity = 1
persist = false  # nothing but parity can help
"""


def test_a_lost_host_s_part_is_rebuilt_from_the_others_while_they_serve(tmp_path: Path) -> None:
    with hosts_up(tmp_path, "a", "b", "c") as hosts:
        job = SmallJob(
            folder=tmp_path,
            home=hosts["a"].home.root,
            rows=12_000,
            epochs=1,
            workers=2,
            servers=3,
            leases='heartbeat = "400ms"',
            checkpoint=CHECKPOINT,
        )
        job.submit()
        job.until(lambda: job.facts("checkpoint.redundant"), "a redundant cut")
        hosts["b"].lose_host()
        job.until(lambda: job.facts("server.restored"), "a server is restored")
        restored = job.facts("server.restored")
        assert {each["source"] for each in restored} == {"parity"}, restored
        assert {each["member"]["index"] for each in restored} == {1}
        assert [each["host"] for each in job.facts("members.displaced")] == ["b"]
        job.complete()
