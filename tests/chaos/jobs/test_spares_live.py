"""A live job whose program is slow to load: lost and added workers are what spares become, and each sample is applied once."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from outside import living
from small_job import SmallJob, hosts_up

from rover_bus.client.programs import find_example

pytestmark = pytest.mark.chaos

PROGRAM = f"""
import runpy, sys
import slow_library
program = {str(find_example("dlrm/train.py"))!r}
sys.path.insert(0, {str(find_example("dlrm/train.py").parent)!r})
sys.argv = [program]
runpy.run_path(program, run_name="__main__")
"""
LIBRARY = """
import time
time.sleep(1.5)  # as a large library does
"""


class SlowToLoad(SmallJob):
    """The small job, by a program that takes a while to load."""

    def write(self) -> None:
        super().write()
        (self.folder / "slow.py").write_text(PROGRAM)
        (self.folder / "slow_library.py").write_text(LIBRARY)
        file = self.folder / "job.toml"
        mine = file.read_text().replace(self.gate.program(), self.gate.program(self.folder / "slow.py"))
        file.write_text(mine)

    def ready_spares(self) -> list[Path]:
        """The spares that are ready."""
        ready = (self.home / "node" / "spares").glob("*/ready")
        return [each.parent for each in ready if not each.parent.is_symlink()]

    def warm(self) -> dict[str, bool]:
        """Which workers were started, and whether each was a spare."""
        started = [(each["process"]["member"], each["warm"]) for each in self.facts("host.started")]
        return {
            f"{each['index']}.{each['incarnation']}": warm
            for each, warm in started
            if each["role"] == "worker"
        }


def test_lost_and_added_workers_are_what_spares_become(tmp_path: Path) -> None:
    with hosts_up(tmp_path, "h1") as hosts:
        job = SlowToLoad(
            folder=tmp_path,
            home=hosts["h1"].home.root,
            rows=2_000,
            epochs=2,
            workers=0,
            servers=1,
            checkpoint="",
            top='[plan]\nmode = "observe"',
        )
        job.submit()
        job.until(lambda: len(job.ready_spares()) == 2, "two spares")
        assert job.warm() == {"0.1": False}
        listed = json.loads(job.rover("members", job.name, "-o", "json").stdout)
        seen = {each["pid"]: each["state"] for each in listed if each["role"] == "spare"}
        assert set(seen.values()) == {"ready"}
        assert len(seen) == 2
        (worker,) = living(job.home, job.name, "worker")
        os.kill(worker["pid"], signal.SIGKILL)
        job.until(lambda: "0.2" in job.warm(), "its next incarnation")
        job.until(lambda: len(job.ready_spares()) == 2, "two spares again")
        scaled = job.rover("scale", job.name, "--workers", "2")
        assert scaled.returncode == 0, scaled.stderr
        job.until(lambda: "1.1" in job.warm(), "the added worker")
        assert job.warm() == {"0.1": False, "0.2": True, "1.1": True}
        job.complete()
        left = job.home / "node" / "spares"
        job.until(lambda: list(left.iterdir()) == [], "the end of the spares")
