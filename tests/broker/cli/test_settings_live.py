"""Settings of a real stack: `--set` and the environment reach its services, its jobs carry them, `rover doctor` shows them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from outside import rover
from patience import PATIENCE_S

from rover_bus.cli.connection import connect, find_stack
from rover_bus.cli.stack import RunningStack
from rover_bus.cli.views.settings import read_spec
from rover_bus.events.codec import decode
from rover_bus.events.errors import InputError
from rover_bus.events.job import JobSpec
from rover_bus.events.profiles import HostProfile

pytestmark = pytest.mark.broker
SETS = [
    "leadership.brain_ttl=7s",
    "hosts.presence=20s",
    "hosts.sample_every=500ms",
    "leases.heartbeat=2s",
    "plan.cooldown=50s",
]
JOB = 'name = "ads"\nprogram = ["python", "t.py"]\n[data]\ntrain = "t.csv"\n[data.schema]\ndense = ["x"]\n[leases]\n%s\n'


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("set")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROVER_SET_HOSTS_PRESENCE", "30s")
        stack = RunningStack(folder / "state", settings=SETS, disposable=True)
        with stack:
            patch.delenv("ROVER_SET_HOSTS_PRESENCE")
            yield folder / "state"


def shown(home: Path, *words: str) -> dict[str, dict[str, object]]:
    done = rover("doctor", "--settings", "--dir", str(home), "-o", "json", *words)
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)}


def test_doctor_shows_what_holds_and_where_it_was_set(home: Path) -> None:
    found = shown(home)
    assert (found["hosts.presence"]["value"], found["hosts.presence"]["from"]) == (30.0, "environment")
    assert (found["leadership.brain_ttl"]["value"], found["leadership.brain_ttl"]["from"]) == (
        7.0,
        "rover up",
    )
    assert (found["storage.patience"]["value"], found["storage.patience"]["from"]) == (60.0, "default")
    assert found["hosts.presence"]["hosts"] == {}, "this host's daemon was given the same"


def test_services_obey_them(home: Path) -> None:
    """The daemon samples its host twice a second, and not every five seconds."""

    async def windows() -> list[float]:
        bus = await connect(find_stack(str(home), "", ""))
        heard: asyncio.Queue[float] = asyncio.Queue()
        try:
            await bus.subscribe(
                "rover.profile.host.*",
                lambda message: heard.put_nowait(decode(message.body, HostProfile).window_s),
            )
            return [await asyncio.wait_for(heard.get(), PATIENCE_S) for _ in range(3)]
        finally:
            await bus.close()

    assert min(asyncio.run(windows())) < 2.5


def test_a_submitted_job_carries_them_and_its_file_wins(home: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("label,x\n0,1\n1,2\n")
    (tmp_path / "t.py").write_text("import rover_bus.client\n")

    def submit(name: str, rest: str) -> JobSpec:
        path = tmp_path / f"{name}.toml"
        path.write_text(JOB % rest)
        done = rover("submit", str(path), "--name", name, "--dir", str(home))
        assert done.returncode == 0, done.stderr

        async def read() -> JobSpec:
            bus = await connect(find_stack(str(home), "", ""))
            try:
                return await read_spec(bus, name)
            finally:
                await bus.close()

        return asyncio.run(read())

    plain, own = submit("plain", ""), submit("own", 'heartbeat = "3s"')
    assert (plain.leases.heartbeat_s, plain.plan.cooldown_s) == (2.0, 50.0)
    assert (own.leases.heartbeat_s, own.plan.cooldown_s) == (3.0, 50.0)
    row = shown(home, "--job", "own")["leases.heartbeat"]
    assert (row["value"], row["from"]) == (3.0, "job file")


def test_a_mistake_ends_up_with_exit_code_2_before_anything_starts(tmp_path: Path) -> None:
    state = tmp_path / "state"
    done = rover("up", "--dir", str(state), "--set", "hosts.presense=20s")
    assert (done.returncode, "did you mean hosts.presence?" in done.stderr) == (2, True)
    assert not state.exists()
    with pytest.raises(InputError, match="outside"):
        RunningStack(state, settings=["hosts.presence=1h"])
