"""`rover backup` and `rover restore` without a job: tenants come back with their facts, and half a backup is none."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from outside import rover
from patience import until

from rover_bus.auth.vault import Vault
from rover_bus.cli.home import Home
from rover_bus.cli.stack import RunningStack
from rover_bus.events import subjects
from rover_bus.events.bus import Stored
from rover_bus.events.formats import FORMAT
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import FACTS
from rover_bus.events.timelines import stack_timeline

pytestmark = pytest.mark.broker
FACT = subjects.job_fact("demo", "plan.applied")


async def owner(home: Path, url: str, tenant: str = "default") -> NatsBus:
    return await NatsBus.connect(url, secret=Vault(Home(home).auth).owner_credentials(tenant))


def facts_of(home: Path, url: str, tenant: str, subject: str) -> list[Stored]:
    async def read() -> list[Stored]:
        bus = await owner(home, url, tenant)
        try:
            return [each async for each in bus.read(FACTS, subject)]
        finally:
            await bus.close()

    return asyncio.run(read())


def copies_of(home: Path, url: str, subject: str, count: int) -> list[Stored]:
    """Return the control account's copies of a tenant's facts, once there are so many: the broker makes them a moment later."""
    until(lambda: len(facts_of(home, url, "default", subject)) >= count, f"{count} copies of {subject}")
    return facts_of(home, url, "default", subject)


def store(home: Path, url: str, tenant: str, count: int, first: int = 0) -> None:
    async def write() -> None:
        bus = await owner(home, url, tenant)
        try:
            for number in range(first, first + count):
                await bus.append(FACTS, FACT, b"%d" % number * 2000)
        finally:
            await bus.close()

    asyncio.run(write())


def timeline_of(home: Path, url: str) -> int:
    async def read() -> int:
        bus = await owner(home, url)
        try:
            return await stack_timeline(bus)
        finally:
            await bus.close()

    return asyncio.run(read())


def test_a_stack_comes_back_with_its_tenants_in_another_timeline(tmp_path: Path) -> None:
    home, saved = tmp_path / "state", tmp_path / "saved"
    with RunningStack(home) as stack:
        assert rover("auth", "add", "ads", "--store", "64MiB", home=home).returncode == 0
        store(home, stack.url, "ads", 300)  # more than one chunk
        written = facts_of(home, stack.url, "ads", FACT)
        copied = subjects.of_tenant("ads", FACT)
        assert copies_of(home, stack.url, copied, 300)[-1].body == written[-1].body
        assert timeline_of(home, stack.url) == 0
        done = rover("backup", str(saved), home=home)
        assert done.returncode == 0, done.stderr
    beside = {each.name for each in saved.iterdir()}
    assert beside >= {"backup.json", "ROVER_FACTS", "ROVER_LOG", "KV_ROVER_SETTINGS", "tenants"}
    assert "ROVER_PROFILES" not in beside
    assert {each.name for each in (saved / "ROVER_LOG").iterdir()} == {"backup.json", "stream.tar.s2"}
    other = tmp_path / "other"
    (other / "auth").parent.mkdir()
    shutil.copytree(home / "auth", other / "auth")
    done = rover("restore", str(saved), home=other)
    assert done.returncode == 0, done.stderr
    assert "no job: none ran then" in done.stdout
    with RunningStack(other) as stack:
        again = facts_of(other, stack.url, "ads", FACT)
        assert [(each.sequence, each.body) for each in again] == [
            (each.sequence, each.body) for each in written
        ]
        # The broker goes on copying some seconds after its start: with a new fact it shows from where.
        store(other, stack.url, "ads", 1, first=300)
        newest = facts_of(other, stack.url, "ads", FACT)[-1].body
        until(lambda: facts_of(other, stack.url, "default", copied)[-1].body == newest, "the new copy")
        copies = facts_of(other, stack.url, "default", copied)
        numbers = [len(each.body) // 2000 and int(each.body[: len(each.body) // 2000]) for each in copies]
        assert numbers == list(range(301)), "each once"
        first = timeline_of(other, stack.url)
        assert first > 0
        listed = json.loads(rover("auth", "list", "-o", "json", home=other).stdout)
        assert {each["tenant"] for each in listed} == {"default", "ads"}
    assert rover("restore", str(saved), home=other).returncode == 0
    kept = [each.name for each in (other / "broker").iterdir() if each.name.startswith("store.before-")]
    assert len(kept) == 1, "what was there is moved, and not removed"
    with RunningStack(other) as stack:
        assert timeline_of(other, stack.url) not in (0, first)


def test_what_is_no_whole_backup_is_refused_and_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    home, saved = tmp_path / "state", tmp_path / "saved"
    with RunningStack(home) as stack:
        store(home, stack.url, "default", 300)
        assert rover("backup", str(saved), home=home).returncode == 0
        unwritable = tmp_path / "absent" / "file"
        unwritable.parent.write_text("no directory")
        done = rover("backup", str(unwritable), home=home)
        assert (done.returncode, "cannot be written" in done.stderr) == (2, True)
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".saved")]
    whole = (saved / "backup.json").read_text()
    refusals: list[tuple[str, int]] = []

    def refused() -> None:
        done = rover("restore", str(saved), home=home)
        [line] = [each for each in done.stderr.splitlines() if each]
        refusals.append((line, done.returncode))

    (saved / "backup.json").unlink()
    refused()
    (saved / "backup.json").write_text(whole.replace(f'"format": {FORMAT}', '"format": 88'))
    refused()
    (saved / "backup.json").write_text(whole)
    cut_off(saved / "ROVER_FACTS" / "stream.tar.s2")
    refused()
    assert [code for _, code in refusals] == [2, 9, 4], refusals
    assert "is no backup" in refusals[0][0]
    assert "ROVER_FACTS" in refusals[2][0]
    assert not [each for each in (home / "broker").iterdir() if each.name.startswith("store.before-")]
    assert not [each for each in home.iterdir() if each.name.startswith("broker.")]
    with RunningStack(home) as stack:
        assert len(facts_of(home, stack.url, "default", FACT)) == 300
        assert timeline_of(home, stack.url) == 0


def cut_off(file: Path) -> None:
    with file.open("r+b") as written:
        written.truncate(file.stat().st_size // 2)
