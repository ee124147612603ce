"""Persisters of two hosts on a real broker, with a scripted master: staged parts become copies and checkpoints, whatever fails."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import PATIENCE_S
from told import told

from rover_bus.events import checkpoint_facts as cuts
from rover_bus.events import facts
from rover_bus.events import host_facts as about_hosts
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.bus import MESSAGE_ID, Stored
from rover_bus.events.checkpoints import (
    ManifestContent,
    PartPlace,
    PartReply,
    PartRequest,
    RestoreOrder,
    StoredPart,
)
from rover_bus.events.codec import decode, decode_any, encode
from rover_bus.events.errors import BusError
from rover_bus.events.job import CheckpointSpec, DataSpec, JobSpec
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.settings import DEFAULTS, StorageSettings
from rover_bus.events.streams import BUCKETS, FACTS, STREAMS
from rover_bus.events.subjects import daemon, host_facts, job_fact
from rover_bus.flash.persist import list_manifests, restore
from rover_bus.flash.storage import find_run
from rover_bus.flash.store import FlashStore
from rover_bus.node.outbox import HostOutbox, Letter
from rover_bus.node.storage import evolution, tasks
from rover_bus.node.storage.peers import PeerSource
from rover_bus.node.storage.persister import Persister, Places
from rover_bus.ps.lenders import ask_daemon

pytestmark = pytest.mark.broker
SECRET = b"s" * 32


class HostRig:
    """One host: a root in shared memory, a persister with its outbox, and perhaps a server's store."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage, self.name = stage, name
        self.root = stage.memory / name
        self.tasks: list[asyncio.Task[None]] = []
        self.lives = 0
        self.store: FlashStore | None = None
        self.state = {"emb": np.zeros((2000, 8), np.float32), "step": np.array(0)}

    async def start(self) -> None:
        self.lives += 1
        life = f"{self.name}.{self.lives}"
        outbox = HostOutbox(self.stage.bus, self.name)

        def post(fact: about_hosts.HostFact, what: str, job: str) -> None:
            outbox.post(Letter(fact, f"{life}.{what}", job))

        places = Places(self.root, self.stage.storage, SECRET, domain=self.name, patient=self.stage.patient)
        self.persister = Persister(self.stage.bus, self.name, life, places, post)
        self.tasks = [asyncio.create_task(self.persister.run()), asyncio.create_task(outbox.run())]

    async def stop(self) -> None:
        await self.persister.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def stage_cut(self, cut: int, ids: list[int] | None = None) -> PartPlace:
        """Train, stage, and let the master say so."""
        if self.store is None:
            self.store = FlashStore("0000000000a1", "ps-0", root=self.root, threads=1, background=False)
            self.store.prepare(self.state)
        self.state["emb"][slice(None) if ids is None else ids] += cut
        self.state["step"] = np.array(cut)
        self.store.save(self.state, cut, touched=None if ids is None else {"emb": np.array(ids)})
        self.store.write_links()
        place = PartPlace(part="ps-0", index=0, incarnation=1, host=self.name, slots=[(0, 4096)])
        await self.stage.say(cuts.PartStaged(place=place, **about(cut)))
        return place


def about(cut: int) -> dict[str, object]:
    return {"job": "ads", "uid": "0000000000a1", "cut": cut, "generation": 0, "timeline": 0}


class Stage:
    """A broker, hosts, and everything that they said."""

    def __init__(self, directory: Path) -> None:
        self.broker = EmbeddedBroker(directory / "broker")
        self.patient = DEFAULTS.storage
        self.storage = directory / "storage"
        self.memory = Path(tempfile.mkdtemp(prefix="rover-test-", dir="/dev/shm"))
        self.hosts: list[HostRig] = []
        self.said: list[facts.Fact] = []
        self.count = 0
        self.bus: NatsBus

    async def open(self, **spec: object) -> None:
        self.broker.start()
        self.bus = await NatsBus.connect(self.broker.url, secret=self.broker.secret)
        await self.bus.ensure(STREAMS, BUCKETS)
        await self.bus.follow(FACTS, [host_facts()], self.observe, start="first")
        job = JobSpec(name="ads", program=["x"], data=DataSpec(train="x"), checkpoint=CheckpointSpec(**spec))
        await self.say(facts.JobSubmitted(job="ads", uid="0000000000a1", spec=job))

    async def close(self) -> None:
        for host in self.hosts:
            await host.stop()
            if host.store:
                host.store.close()
        await self.bus.close()
        self.broker.stop()
        shutil.rmtree(self.memory, ignore_errors=True)

    def observe(self, stored: Stored) -> None:
        fact = decode_any(stored.body)
        assert isinstance(fact, facts.Fact)
        self.said.append(fact)

    async def host(self, name: str) -> HostRig:
        self.hosts.append(HostRig(self, name))
        await self.hosts[-1].start()
        return self.hosts[-1]

    async def say(self, fact: facts.JobFact) -> None:
        self.count += 1
        subject = job_fact(fact.job, fact.kind())
        body, headers = told(fact, self.count)
        await self.bus.append(FACTS, subject, body, headers={**headers, MESSAGE_ID: f"test.{self.count}"})

    async def heard(self, kind: type[cuts.HostPartFact], cut: int) -> cuts.HostPartFact:
        await self.until(lambda: self.find(kind, cut), f"{kind.tag()} of cut {cut}")
        return self.find(kind, cut)[0]

    def find(self, kind: type[cuts.HostPartFact], cut: int) -> list[cuts.HostPartFact]:
        return [fact for fact in self.said if isinstance(fact, kind) and fact.cut == cut]

    async def until(self, condition: Callable[[], object], what: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, f"never came: {what}; said: {self.said}"
            await asyncio.sleep(0.01)

    async def order(self, cut: int, place: PartPlace) -> None:
        await self.say(cuts.CheckpointPersistOrdered(term=1, parts=[place], path="", **about(cut)))

    async def make_ready(self, cut: int, place: PartPlace) -> cuts.HostManifestWritten:
        """Do what a master does from the order to the fact `ready`."""
        await self.order(cut, place)
        stored = await self.heard(cuts.HostPartPersisted, cut)
        assert isinstance(stored, cuts.HostPartPersisted)
        part = StoredPart(part="ps-0", index=0, slots=place.slots, files=stored.files)
        content = ManifestContent(
            uid="0000000000a1", timeline=0, generation=0, cut=cut, ledger=b"L", parts=[part]
        )
        await self.say(
            cuts.CheckpointManifestOrdered(term=1, host=place.host, path="", manifest=content, **about(cut))
        )
        written = await self.heard(cuts.HostManifestWritten, cut)
        assert isinstance(written, cuts.HostManifestWritten)
        await self.say(cuts.CheckpointReady(path=written.path, **about(cut)))
        return written

    def assert_stored(self, cut: int, state: dict[str, np.ndarray]) -> None:
        manifest, parts, refused = restore(find_run(self.storage, "ads").files)
        assert (manifest.cut, refused) == (cut, [])
        np.testing.assert_array_equal(parts["ps-0"].arrays["emb"], state["emb"])


def live(stage: Stage, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        try:
            await body()
        finally:
            await stage.close()

    asyncio.run(run())


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_staged_parts_become_checkpoints_the_later_ones_as_deltas_and_retention_follows_the_log(
    stage: Stage,
) -> None:
    async def body() -> None:
        await stage.open(keep=2)
        host = await stage.host("host-a")
        for cut in range(1, 6):
            place = await host.stage_cut(cut, None if cut == 1 else [cut, 77])
            await stage.make_ready(cut, place)
            stage.assert_stored(cut, host.state)
        (last,) = stage.find(cuts.HostPartPersisted, 5)
        assert isinstance(last, cuts.HostPartPersisted)
        assert len(last.files) > 1
        files = find_run(stage.storage, "ads").files
        await stage.until(lambda: [item.cut for item in list_manifests(files)[0]] == [5, 4], "pruned")

    live(stage, body)


def test_a_daemon_killed_after_the_order_is_succeeded_by_one_that_answers_it(stage: Stage) -> None:
    async def body() -> None:
        await stage.open()
        host = await stage.host("host-a")
        place = await host.stage_cut(1)
        await stage.heard(cuts.HostPartDigested, 1)
        await host.stop()
        await stage.order(1, place)
        await host.start()
        await stage.make_ready(1, place)
        stage.assert_stored(1, host.state)

    live(stage, body)


def test_another_host_holds_a_copy_and_gives_it_to_a_server_when_the_owner_is_gone(stage: Stage) -> None:
    async def body() -> None:
        await stage.open(copies=1, persist=False)
        owner, holder, third = [await stage.host(name) for name in ("host-a", "host-b", "host-c")]
        for cut in (1, 2, 3):
            place = await owner.stage_cut(cut, None if cut == 1 else [cut])
            mirrored = await stage.heard(cuts.HostPartMirrored, cut)
            assert isinstance(mirrored, cuts.HostPartMirrored)
            assert mirrored.of == "host-a"
        assert len({fact.host for fact in stage.said if isinstance(fact, cuts.HostPartMirrored)}) == 1
        expected = owner.state["emb"].copy()
        await owner.stop()
        assert owner.store
        owner.store.close()
        owner.store = None
        shutil.rmtree(owner.root)  # the host is gone with its memory
        stage.hosts.remove(owner)
        order = RestoreOrder(uid="0000000000a1", timeline=0, generation=0, cut=3)
        for host in (holder, third):  # the holder has it already, the other fetches it
            found = await asyncio.to_thread(ask_daemon(stage.bus, host.name, "ads"), order, place, False, [])
            assert found is not None
            staged, source = found
            assert source == "peer"
            np.testing.assert_array_equal(staged.arrays["emb"], expected)
            del staged, found
        await stage.say(facts.JobEnded(job="ads", state="completed"))
        for host in (holder, third):
            await stage.until(
                lambda host=host: not host.root.exists() or not any(host.root.iterdir()), "swept"
            )

    live(stage, body)


def test_a_copy_that_was_on_its_way_when_its_job_ended_does_not_stay(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def connect(*wanted: Any, **more: Any) -> PeerSource:
        begun.set()
        go_on.wait(PATIENCE_S)
        return PeerSource(*wanted, **more)

    monkeypatch.setattr(tasks, "PeerSource", connect)

    async def body() -> None:
        await stage.open(copies=1, persist=False)
        owner, holder = [await stage.host(name) for name in ("host-a", "host-b")]
        await owner.stage_cut(1)
        await stage.until(begun.is_set, "a copy is on its way")
        await stage.say(facts.JobEnded(job="ads", state="completed"))
        await asyncio.sleep(0.5)  # a sweep that waits for nothing is over by now
        go_on.set()
        await stage.until(lambda: not holder.persister.state.running, "the copy is there, or called off")
        await stage.until(lambda: not holder.root.exists() or not any(holder.root.iterdir()), "swept")

    live(stage, body)


@pytest.mark.parametrize(("kept", "source"), [({"copies": 1}, "peer"), ({"parity": 1}, "parity")])
def test_a_daemon_that_starts_anew_gives_what_it_held_for_a_host_that_is_gone_since(
    stage: Stage, kept: dict[str, int], source: str
) -> None:
    a_part_of_a_host_that_is_gone_comes_back(stage, kept, source)


def a_part_of_a_host_that_is_gone_comes_back(stage: Stage, kept: dict[str, int], source: str) -> None:
    async def body() -> None:
        await stage.open(persist=False, **kept)
        hosts = {name: await stage.host(name) for name in ("host-a", "host-b", "host-c")}
        owner = hosts.pop("host-a")
        place = await owner.stage_cut(1)
        await stage.say(cuts.CheckpointStaged(parts=[place], **about(1)))
        holder = hosts.pop((await stage.heard(cuts.HostPartMirrored, 1)).host)
        (third,) = hosts.values()
        await holder.stop()
        await owner.stop()
        assert owner.store
        owner.store.close()
        owner.store = None
        shutil.rmtree(owner.root)
        stage.hosts.remove(owner)
        await holder.start()
        order = RestoreOrder(uid="0000000000a1", timeline=0, generation=0, cut=1)
        await stage.until(lambda: holder.persister.serves_at, "it serves again")
        found = await asyncio.to_thread(ask_daemon(stage.bus, third.name, "ads"), order, place, False, [])
        assert found is not None
        staged, said = found
        assert said == source
        np.testing.assert_array_equal(staged.arrays["emb"], owner.state["emb"])
        del staged, found

    live(stage, body)


def test_a_part_that_was_rebuilt_is_never_taken_for_a_copy(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rebuild = tasks.rebuild_part

    def and_dwell(*given: Any) -> None:
        rebuild(*given)
        time.sleep(1.0)  # the file is there, its task goes on

    monkeypatch.setattr(tasks, "rebuild_part", and_dwell)
    a_part_of_a_host_that_is_gone_comes_back(stage, {"parity": 1}, "parity")


def test_a_part_that_nobody_has_is_said_to_be_absent(stage: Stage) -> None:
    async def body() -> None:
        await stage.open(copies=1)
        await stage.host("host-a")
        request = encode(PartRequest(job="ads", uid="0000000000a1", part="ps-0", generation=0, cut=4))
        replies = []

        async def ask() -> None:
            try:
                answer = await stage.bus.request(daemon("host-a", "part"), request, timeout_s=5.0)
            except BusError:  # it does not serve yet
                return
            replies.append(decode(answer.body, PartReply))

        while not replies or replies[-1].state != "absent":
            await ask()
            await asyncio.sleep(0.02)
            assert len(replies) < 500
        assert "no daemon is known that has ps-0 of cut 4" in replies[-1].problem

    live(stage, body)


@pytest.mark.skipif(os.geteuid() != 0, reason="a small tmpfs can only be mounted by root")
def test_a_full_disk_fails_the_cut_in_one_line_and_the_next_is_stored_when_there_is_room(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage.patient = StorageSettings(patience_s=1.0)
    monkeypatch.setattr(evolution, "RETRY_FIRST_S", 0.2)
    stage.storage.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(stage.storage)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")

    async def body() -> None:
        await stage.open()
        host = await stage.host("host-a")
        await stage.make_ready(1, await host.stage_cut(1))
        before = host.state["emb"].copy()
        (stage.storage / "ballast").write_bytes(bytes(100 << 10))
        place = await host.stage_cut(2)
        await stage.order(2, place)
        failed = await stage.heard(cuts.HostPartFailed, 2)
        assert isinstance(failed, cuts.HostPartFailed)
        assert failed.step == "persist"
        assert "No space left on device" in failed.reason
        stage.assert_stored(1, {"emb": before})
        await stage.say(cuts.CheckpointFailed(reason=failed.reason, **about(2)))
        (stage.storage / "ballast").unlink()
        await stage.make_ready(3, await host.stage_cut(3))
        stage.assert_stored(3, host.state)

    try:
        live(stage, body)
    finally:
        subprocess.run(["umount", "-l", str(stage.storage)], check=True)
