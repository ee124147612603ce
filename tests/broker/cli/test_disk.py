"""`rover disk`: what it says of subjects is what the broker's store holds of them, and of a job what its end shows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from outside import make_clicks, rover

from rover_bus.auth.vault import Vault
from rover_bus.cli.stack import RunningStack
from rover_bus.cli.views.disk import weigh
from rover_bus.events import subjects
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import FACTS

pytestmark = pytest.mark.broker
JOB = """
[data]
train = "train.tsv"
evaluate = "eval.tsv"
epochs = 1
batch_size = 100
schema = { format = "criteo" }
[workers]
count = 1
[servers]
count = 1
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    with RunningStack(tmp_path_factory.mktemp("disk") / "state") as running:
        yield running


def test_messages_of_a_subject_weigh_what_the_store_says(stack: RunningStack) -> None:
    """Many small ones, then few large ones, among those of another subject: a mean of the stream would be wrong for both."""

    async def measure() -> tuple[int, int, int, int]:
        bus = await NatsBus.connect(stack.url, secret=Vault(stack.home.auth).owner_credentials("default"))
        try:
            before = await bus.size(FACTS)
            one, other = (subjects.job_fact(job, "plan.applied") for job in ("one", "other"))
            for number in range(600):
                await bus.append(FACTS, one, b"x" * (40 if number < 300 else 400))
            between = await bus.size(FACTS)
            for _ in range(150):
                await bus.append(FACTS, other, b"y" * 3000)
            after = await bus.size(FACTS)
            weighed = [await weigh(bus, FACTS, subjects.job_facts(job)) for job in ("one", "other")]
            assert [each.messages for each in weighed] == [600, 150]
            assert (await weigh(bus, FACTS, subjects.job_facts("none"))).bytes == 0
            return weighed[0].bytes, between - before, weighed[1].bytes, after - between
        finally:
            await bus.close()

    one, stored_one, other, stored_other = asyncio.run(measure())
    assert one == pytest.approx(stored_one, rel=0.05)
    assert other == pytest.approx(stored_other, rel=0.05)


def test_a_job_is_told_with_what_it_stores(stack: RunningStack, tmp_path: Path) -> None:
    home = stack.home.root
    make_clicks(tmp_path, 2000)
    (tmp_path / "tiny.toml").write_text(JOB)
    done = rover("submit", "tiny.toml", "--wait", home=home, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = rover("disk", "tiny", "-o", "json", home=home)
    [row] = json.loads(said.stdout)
    assert (row["job"], row["state"], row["an_hour"]) == ("tiny", "completed", 0)
    assert row["log"] > 1000
    assert row["facts"] > 1000
    assert row["at_end"] == row["log"] + row["facts"] + row["checkpoint"]
    table = rover("disk", home=home).stdout
    assert "tiny" in table
    assert "KiB" in table
    refused = rover("disk", "absent", home=home)
    assert (refused.returncode, "there is no job 'absent'" in refused.stderr) == (2, True)
