"""What a training program holds, in a running stack: its own job's conversation, and nothing to command, read or remove by."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
from small_job import SmallJob, checkpointed_job, hosts_up

from rover_bus.events import credentials, subjects
from rover_bus.events.codec import encode
from rover_bus.events.errors import AccessDenied
from rover_bus.events.facts import MembersDesired
from rover_bus.events.identity import DesiredMember, Member
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import FACTS, LOG

pytestmark = pytest.mark.chaos
HOST = "alone"


def environment_of(job: SmallJob, name: str) -> dict[str, str]:
    """Return the environment of a running member."""
    listed = json.loads(job.rover("members", job.name, "-o", "json").stdout)
    pids = [each["pid"] for each in listed if f"{each['role']}-{each['index']}" == name and each["pid"]]
    return psutil.Process(pids[0]).environ() if pids else {}


async def all_denied(url: str, credential: str, order: bytes) -> None:
    bus = await NatsBus.connect(url, secret=credential)
    attempts: list[Callable[[], Awaitable[object]]] = [
        lambda: bus.append(FACTS, subjects.job_fact("ads", "members.desired"), order),
        lambda: bus.append(FACTS, subjects.job_fact("ads", "job.ended"), b""),
        lambda: bus.append(LOG, subjects.job_log("ads"), b""),
        lambda: bus.purge(LOG, "rover.job.*.log"),
        lambda: bus.last(FACTS, subjects.job_fact("ads", "job.submitted")),
        lambda: bus.request(subjects.daemon(HOST, "program"), b"", timeout_s=1),
        lambda: bus.request(subjects.rpc("other", 1, "lease"), b"", timeout_s=1),
    ]
    try:
        for attempt in attempts:
            with pytest.raises(AccessDenied, match="the broker forbids the subject"):
                await attempt()
    finally:
        await bus.close()


def test_a_stolen_workers_credentials_command_read_and_remove_nothing(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    with hosts_up(tmp_path, HOST) as hosts:
        job = checkpointed_job(tmp_path / HOST, tmp_path, 1, "")
        job.submit()
        job.until(lambda: environment_of(job, "worker-0"), "a worker")
        environments = {name: environment_of(job, name) for name in ("worker-0", "worker-1", "ps-0", "ps-1")}
        texts = {name: each["ROVER_CREDENTIAL"] for name, each in environments.items()}
        held = {name: credentials.read(text) for name, text in texts.items()}
        assert len({each.user for each in held.values() if each}) == 4
        assert len({each.sockets for each in held.values() if each}) == 1
        assert "ROVER_SECRET_FILE" not in environments["worker-0"]
        program = ["sh", "-c", f"touch {touched}"]
        desired = DesiredMember(member=Member("worker", 7, 1), host=HOST, command=program)
        order = encode(MembersDesired(job="ads", uid="u", plan=99, members=[desired]))
        for name in ("worker-0", "ps-0"):
            asyncio.run(all_denied(hosts[HOST].url, texts[name], order))
        job.complete()
    assert not touched.exists()
