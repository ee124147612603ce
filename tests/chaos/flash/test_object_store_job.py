"""A job whose checkpoints go to an object store (a real S3 server on loopback): its server and its memory are lost, it goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import object_store
import pytest
from outside import living
from small_job import NAME, SmallJob, hosts_up

from rover_bus.flash.places import host_root

pytest.importorskip("obstore")
pytest.importorskip("moto")
pytestmark = [pytest.mark.chaos, pytest.mark.broker]
STORAGE = "s3://checkpoints/team"
CHECKPOINT = f"""
every = "2s"
path = "{STORAGE}"
"""


@pytest.fixture
def server() -> Iterator[str]:
    with object_store.serving() as url:
        object_store.empty_bucket(url, "checkpoints")
        yield url


def test_a_job_comes_back_from_an_object_store(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in object_store.variables(server).items():
        monkeypatch.setenv(name, value)
    job = SmallJob(
        folder=tmp_path,
        home=tmp_path / "a",
        rows=6_000,
        epochs=1,
        workers=1,
        servers=1,
        checkpoint=CHECKPOINT,
    )
    with hosts_up(tmp_path, "a") as hosts:
        job.submit()
        job.until(lambda: job.facts("checkpoint.ready"), "a checkpoint in the store")
        [row] = living(job.home, NAME, "ps")
        for slots in host_root(hosts["a"].home.node).iterdir():
            shutil.rmtree(slots)
        os.kill(row["pid"], signal.SIGKILL)
        job.complete()
        assert {each["source"] for each in job.facts("server.restored")} == {"storage"}
    kept = json.loads(job.rover("checkpoint", "list", "--storage", STORAGE, "-o", "json").stdout)
    assert 1 <= len(kept) <= 4
    assert job.rover("checkpoint", "verify", NAME, "--storage", STORAGE).returncode == 0
