"""`rover logs` shows what members wrote on every host of a stack; a host that is lost is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from outside import rover
from small_job import SmallJob, hosts_up

from rover_bus.client.programs import find_example

pytestmark = pytest.mark.chaos
SPEAKS = """
import os, runpy, sys
sys.path.insert(0, os.path.dirname({inner!r}))
print("here is", os.environ["ROVER_HOST"], "x" * 300_000, flush=True)
runpy.run_path({inner!r}, run_name="__main__")
"""


def test_logs_of_members_come_from_every_host(tmp_path: Path) -> None:
    with hosts_up(tmp_path / "hosts", "one", "two") as hosts:
        speaks = tmp_path / "speaks.py"
        speaks.write_text(SPEAKS.format(inner=str(find_example("dlrm/train.py"))))
        job = SmallJob(
            folder=tmp_path,
            home=hosts["one"].home.root,
            rows=640,
            epochs=1,
            workers=2,
            servers=1,
            checkpoint="",
            inner=speaks,
        )
        job.submit()
        job.until(lambda: len(spoken(job)) == 2, "what workers of both hosts wrote")
        (one,) = (member for member, host in spoken(job).items() if host == "two")
        alone = job.rover("logs", job.name, one)
        assert f"{one} | here is two" in alone.stdout
        assert len(alone.stdout) > 300_000, "more than one answer of its daemon holds"
        job.complete()
        hosts["two"].lose_host()
        job.until(
            lambda: "host two is not there" in job.rover("logs", job.name).stderr, "a lost host by its name"
        )
        done = rover("logs", "nobody", home=hosts["one"].home.root)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def spoken(job: SmallJob) -> dict[str, str]:
    """Return which worker said on which host it is, by `rover logs`."""
    lines = [line.split() for line in job.rover("logs", job.name).stdout.splitlines()]
    return {words[0]: words[4] for words in lines if words[1:4] == ["|", "here", "is"]}
