"""Two tenants on one broker: each has its streams, members and rights; the control account has what they store, by their names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tenants_stage import TENANTS, Stage, stage

from rover_bus.auth.key_names import changed_with
from rover_bus.auth.rights import RoleName
from rover_bus.auth.store_limits import StoreLimits
from rover_bus.auth.vault import RunOfJob
from rover_bus.cli.account_claims import tell_accounts
from rover_bus.cli.staged_cuts import _read_runs
from rover_bus.cli.submission import request_checkpoint, submit
from rover_bus.cli.tenants import of_registrar, remove_tenant
from rover_bus.events import credentials, subjects
from rover_bus.events.bus import MESSAGE_ID, Stored
from rover_bus.events.codec import decode, encode
from rover_bus.events.errors import AccessDenied, BusError, InputError, RoverError, StreamFull
from rover_bus.events.facts import JobEnded, JobSubmitted
from rover_bus.events.forgetting import ask_to_forget, forget_job
from rover_bus.events.host_facts import HostLeft
from rover_bus.events.job import DataSpec, JobSpec, PlanSpec
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.purging import keep_purging
from rover_bus.events.streams import FACTS, LEADERS, LOG, PRESENCE, PROFILES, SETTINGS
from rover_bus.node.outbox import Letter, Outboxes
from rover_bus.node.tenants import WatchedTenants

pytestmark = pytest.mark.broker
PATIENCE_S = 20.0


async def until(
    bus: NatsBus, stream: str, subject: str, is_meant: Callable[[Stored], bool] = lambda found: True
) -> Stored:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await bus.last(stream, subject)
            if found is not None and is_meant(found):
                return found
            await asyncio.sleep(0.01)


FACT = subjects.job_fact("demo", "plan.applied")


def test_facts_of_two_tenants_lie_apart_and_the_control_account_has_both(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            for tenant in TENANTS:
                master = await on.connect("master", tenant)
                assert await master.append(FACTS, FACT, tenant.encode()) == 1
                assert await master.append(LOG, subjects.job_log("demo"), tenant.encode()) == 1
                await master.put(LEADERS, "demo", tenant.encode(), ttl_s=5)
            brain = await on.connect("brain")
            for tenant in TENANTS:
                copy = await until(brain, FACTS, subjects.of_tenant(tenant, FACT))
                assert copy.body == tenant.encode()
                viewer = await on.connect("viewer", tenant)
                assert [each.body async for each in viewer.read(FACTS, "rover.>")] == [tenant.encode()]
                assert [each.body async for each in viewer.read(LOG, "rover.>")] == [tenant.encode()]
                led = await viewer.get(LEADERS, "demo")
                assert led is not None
                assert led.value == tenant.encode()
            assert await brain.last(LOG, subjects.job_log("demo")) is None

    asyncio.run(run())


def test_what_the_control_account_says_to_a_tenant_is_acknowledged_by_the_tenants_stream(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            brain, master = await on.connect("brain"), await on.connect("master", "ads")
            heard: asyncio.Queue[Stored] = asyncio.Queue()
            proposed = subjects.job_fact("demo", "plan.proposed")
            await master.follow(FACTS, [proposed], heard.put_nowait)
            await brain.append(FACTS, proposed, b"own")  # another number than the tenant's
            assert await brain.of("ads").append(FACTS, proposed, b"plan", headers={"Nats-Msg-Id": "p1"}) == 1
            assert await brain.of("ads").append(FACTS, proposed, b"plan", headers={"Nats-Msg-Id": "p1"}) == 1
            assert (await asyncio.wait_for(heard.get(), PATIENCE_S)).body == b"plan"
            await until(brain, FACTS, subjects.of_tenant("ads", proposed))
            assert await brain.last(FACTS, subjects.of_tenant("maps", proposed)) is None

    asyncio.run(run())


def test_members_of_a_tenant_reach_their_own_master_and_daemon_and_no_others(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            daemon, brain = await on.connect("daemon"), await on.connect("brain")
            asked = subjects.everywhere(subjects.daemon("h1", "part"))
            await daemon.serve("d", dict.fromkeys(asked, lambda each: each.respond(each.subject.encode())))
            for tenant in TENANTS:
                master = await on.connect("master", tenant)
                answer = tenant.encode()
                await master.serve(
                    "m", {subjects.rpc("demo", 1, "lease"): lambda each, answer=answer: each.respond(answer)}
                )
                await master.put(LEADERS, "demo", answer, ttl_s=5)
            for tenant in TENANTS:
                worker = await on.connect("worker", tenant, direct=True)
                server = await on.connect("ps", tenant, direct=True)
                reply = await worker.request(subjects.rpc("demo", 1, "lease"), b"", timeout_s=5)
                assert reply.body == tenant.encode()
                led = await worker.get(LEADERS, "demo")
                assert led is not None
                assert led.value == tenant.encode()
                reply = await server.request(subjects.daemon("h1", "part"), b"", timeout_s=5)
                assert reply.body.decode() == subjects.of_tenant(tenant, subjects.daemon("h1", "part"))
                sample = subjects.member_profile("demo", "worker", 0)
                await worker.publish(sample, tenant.encode())
                stored = await until(brain, PROFILES, subjects.of_tenant(tenant, sample))
                assert stored.body == tenant.encode()

    asyncio.run(run())


def test_a_person_of_a_tenant_looks_up_hosts_and_settings_of_the_cluster_and_follows_its_facts(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            daemon, submitter = await on.connect("daemon"), await on.connect("submitter", "ads")
            await daemon.put(PRESENCE, "h1", b"here", ttl_s=5)
            await (await on.connect("brain")).put(SETTINGS, "cluster", b"{}")
            assert {key: each.value for key, each in (await submitter.entries(PRESENCE, "*")).items()} == {
                "h1": b"here"
            }
            entry = await submitter.get(SETTINGS, "cluster")
            assert entry is not None
            assert entry.value == b"{}"
            assert await submitter.get(PRESENCE, "h9") is None
            heard: asyncio.Queue[Stored] = asyncio.Queue()
            await submitter.follow(FACTS, ["rover.>"], heard.put_nowait)
            registered = subjects.host_fact("h1", "registered")
            await daemon.of("ads").append(FACTS, registered, b"host")
            await daemon.append(FACTS, subjects.host_fact("h1", "left"), b"not for tenants")
            assert (await asyncio.wait_for(heard.get(), PATIENCE_S)).subject == registered
            assert heard.empty()

    asyncio.run(run())


def test_the_operator_reads_follows_and_asks_as_one_of_the_tenant_does(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            master, operator = await on.connect("master", "ads"), await on.connect("operator")
            inside = operator.of("ads")
            heard: asyncio.Queue[Stored] = asyncio.Queue()
            await inside.follow(LOG, [subjects.job_log("demo")], heard.put_nowait, start="first")
            for body in (b"1", b"2"):
                await master.append(LOG, subjects.job_log("demo"), body)
            assert [(await asyncio.wait_for(heard.get(), PATIENCE_S)).body for _ in range(2)] == [b"1", b"2"]
            assert [each.body async for each in inside.read(LOG, subjects.job_log("demo"))] == [b"1", b"2"]
            await master.put(LEADERS, "demo", b"led", ttl_s=5)
            assert set(await inside.entries(LEADERS, "*")) == {"demo"}
            stop = subjects.job_fact("demo", "job.stop_requested")
            assert await inside.append(FACTS, stop, b"stop") == 1
            back = asyncio.Event()
            master.on_connection(lambda state: back.set() if state == "connected" else None)
            on.broker.restart()
            async with asyncio.timeout(PATIENCE_S):
                await back.wait()
                await master.append(LOG, subjects.job_log("demo"), b"3")
                assert (await heard.get()).body == b"3"
                await master.append(FACTS, FACT, b"after")
            await until(operator, FACTS, subjects.of_tenant("ads", FACT))

    asyncio.run(run())


def test_a_masters_purge_is_of_its_own_tenant(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            keeping = asyncio.create_task(keep_purging(await on.connect("brain")))
            masters = [
                await on.connect("master", tenant, keeper=subjects.keeper("demo", "purge"))
                for tenant in TENANTS
            ]
            try:
                for master in masters:
                    await master.append(LOG, subjects.job_log("demo"), b"old")
                await asyncio.sleep(0.1)
                await masters[0].purge(LOG, subjects.job_log("demo"))
                left = [await each.last(LOG, subjects.job_log("demo")) for each in masters]
                assert [each is None for each in left] == [True, False]
                with pytest.raises(BusError, match="may not purge"):
                    await masters[0].purge(LOG, subjects.job_log("other"))
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(run())


def test_a_removed_tenant_leaves_nothing_and_its_credentials_are_worth_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            master, other = await on.connect("master", "ads"), await on.connect("master", "maps")
            for each in (master, other):
                await each.append(FACTS, FACT, b"x")
            for tenant in TENANTS:
                await until(on.owner, FACTS, subjects.of_tenant(tenant, FACT))
            secret = on.vault.person_credentials("viewer", "ads")
            await remove_tenant(on.owner, on.system, on.vault, "ads")
            with pytest.raises(AccessDenied):
                await NatsBus.connect(on.broker.url, secret=secret)
            assert await on.owner.last(FACTS, subjects.of_tenant("ads", FACT)) is None
            assert await on.owner.last(FACTS, subjects.of_tenant("maps", FACT)) is not None
            await other.append(FACTS, FACT, b"y")
            await on.make("ads")
            viewer = await on.connect("viewer", "ads")
            assert await viewer.last(FACTS, FACT) is None
            with pytest.raises(RoverError):
                await NatsBus.connect(on.broker.url, secret=secret)

    asyncio.run(run())


def test_a_stack_that_goes_down_knows_the_jobs_of_tenants_and_asks_them_for_a_checkpoint(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            submitter, operator = await on.connect("submitter", "ads"), await on.connect("operator")
            spec = JobSpec(name="demo", program=["t"], data=DataSpec(train="t"))
            await submit(submitter, spec)
            await until(
                operator, FACTS, subjects.of_tenant("ads", subjects.job_fact("demo", "job.submitted"))
            )
            runs = await _read_runs(operator)
            assert list(runs.going_on.values()) == ["ads/demo"], "else what it staged would be freed"
            await request_checkpoint(operator, "ads/demo", "down", "a test")
            asked = await submitter.last(FACTS, subjects.job_fact("demo", "checkpoint.requested"))
            assert asked is not None
            with pytest.raises(InputError, match=r"\[plan\] tenant is 'maps'"):
                await submit(submitter, spec.replace(name="other", plan=PlanSpec(tenant="maps")))

    asyncio.run(run())


def test_a_forgotten_job_is_gone_from_the_control_accounts_copy_as_well(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            master, operator = await on.connect("master", "ads"), await on.connect("operator")
            for _ in range(3):
                await master.append(FACTS, FACT, b"x")
            await (await on.connect("master", "maps")).append(FACTS, FACT, b"x")
            for tenant in TENANTS:
                await until(operator, FACTS, subjects.of_tenant(tenant, FACT))
            await forget_job(operator.of("ads"), "demo", "0123456789ab", by="a test", reason="over")
            left = [each.subject async for each in operator.read(FACTS, subjects.of_tenant("*", "rover.>"))]
            forgotten = subjects.job_fact("demo", "job.forgotten")
            assert left == [subjects.of_tenant("maps", FACT), subjects.of_tenant("ads", forgotten)]
            assert [each.subject async for each in operator.of("ads").read(FACTS, "rover.>")] == [forgotten]

    asyncio.run(run())


@pytest.mark.parametrize("guessed_as", ["master", "submitter"])
def test_a_message_id_that_a_tenant_uses_first_makes_nothing_of_others_a_repeat(
    tmp_path: Path, guessed_as: RoleName
) -> None:
    """The control account copies all tenants' facts into the stream that has its own: one id there is one message."""

    async def guess(on: Stage, ids: list[str]) -> None:
        user = credentials.read(
            on.vault.person_credentials("submitter", "ads")
            if guessed_as == "submitter"
            else on.vault.member_credentials("master", "ads/demo", "u1", "master-0.1", "h1")
        )
        assert user is not None
        plain = credentials.write(replace(user, messages=""))  # its writer says what id it will
        async with of_registrar(on.broker.url, plain) as attacker:
            fact = subjects.job_fact("demo", "plan.applied" if guessed_as == "master" else "plan.requested")
            for number in ids:
                await attacker.append(FACTS, fact, b"forged", headers={MESSAGE_ID: number})
            await until(on.owner, FACTS, subjects.of_tenant("ads", fact))

    async def run() -> None:
        async with stage(tmp_path) as on:
            brain, daemon = await on.connect("brain"), await on.connect("daemon")
            maps = await on.connect("master", "maps")
            names = ["brain/0/1/7/0", "brain/0/1/7/1", "h1.registered.1", "demo/0/1/3/0"]
            guesses = [*names, *(f"tenant.maps.into.{each}" for each in names)]
            await guess(on, guesses)
            proposed, registered = (
                subjects.job_fact("demo", "plan.proposed"),
                subjects.host_fact("h1", "registered"),
            )
            for inside in (brain, brain.of("maps")):
                await inside.append(FACTS, proposed, b"plan", headers={MESSAGE_ID: names[0]})
            for inside in (daemon, daemon.of("maps")):
                await inside.append(FACTS, registered, b"host", headers={MESSAGE_ID: names[2]})
            first = await maps.append(FACTS, FACT, b"applied", headers={MESSAGE_ID: names[3]})
            assert await maps.append(FACTS, FACT, b"applied", headers={MESSAGE_ID: names[3]}) == first
            for subject in (proposed, registered):
                assert await brain.count(FACTS, subject) == 1
                await until(brain, FACTS, subjects.of_tenant("maps", subject))
            await until(brain, FACTS, subjects.of_tenant("maps", FACT))

    asyncio.run(run())


def test_a_submitter_forgets_an_ended_job_of_its_tenant_and_no_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            keeping = asyncio.create_task(keep_purging(await on.connect("brain")))
            spec = JobSpec(name="demo", program=["t"], data=DataSpec(train="t"))
            people = {tenant: await on.connect("submitter", tenant) for tenant in TENANTS}
            uids = {}
            for tenant, submitter in people.items():
                await submit(submitter, spec)
                stored = await submitter.last(FACTS, subjects.job_fact("demo", "job.submitted"))
                uids[tenant] = decode(stored.body, JobSubmitted).uid  # type: ignore[union-attr]
                await (await on.connect("master", tenant)).append(LOG, subjects.job_log("demo"), b"decided")
            mine, viewer = people["ads"], await on.connect("viewer", "ads")
            try:
                with pytest.raises(BusError, match="job 'demo' has not ended"):
                    await ask_to_forget(mine, "demo", uids["ads"], by="p", reason="")
                ended = encode(JobEnded(job="demo", state="completed"))
                for tenant in TENANTS:
                    await on.owner.of(tenant).append(FACTS, subjects.job_fact("demo", "job.ended"), ended)
                with pytest.raises(BusError, match="has no run"):
                    await ask_to_forget(mine, "demo", uids["maps"], by="p", reason="")
                with pytest.raises(AccessDenied):
                    await ask_to_forget(viewer, "demo", uids["ads"], by="p", reason="")
                with pytest.raises(AccessDenied):
                    await mine.purge(LOG, subjects.job_log("demo"))
                await ask_to_forget(mine, "demo", uids["ads"], by="p", reason="over")
                forgotten = subjects.job_fact("demo", "job.forgotten")
                assert [each.subject async for each in mine.read(FACTS, "rover.>")] == [forgotten]
                assert await mine.last(LOG, subjects.job_log("demo")) is None
                assert await people["maps"].last(LOG, subjects.job_log("demo")) is not None
                assert await people["maps"].count(FACTS, "rover.>") == 2
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(run())


def test_a_daemon_is_told_of_all_tenants_at_once_and_posts_nothing_to_one_that_is_gone(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            daemon, told, learnt = await on.connect("daemon"), asyncio.Queue[frozenset[str]](), list[bytes]()
            watched = WatchedTenants(daemon, learnt.append, told.put_nowait)
            outboxes = Outboxes(daemon, "h1", lambda: None)
            tasks = [asyncio.create_task(each.run()) for each in (watched, outboxes)]
            try:
                assert await asyncio.wait_for(told.get(), PATIENCE_S) == set(TENANTS)
                assert len(learnt) == 2
                outboxes.post(Letter(HostLeft(host="h1"), "1"), "maps")
                await until(on.owner, FACTS, subjects.of_tenant("maps", subjects.host_fact("h1", "left")))
                await remove_tenant(on.owner, on.system, on.vault, "maps")
                assert await asyncio.wait_for(told.get(), PATIENCE_S) == {"ads"}
                outboxes.keep(frozenset({"ads"}))
                for tenant in TENANTS:
                    outboxes.post(Letter(HostLeft(host="h1"), "2"), tenant)
                assert await outboxes.flush(PATIENCE_S), (
                    "else a host would wait at its end for a tenant that is gone"
                )
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


def test_a_tenant_that_fills_its_store_is_told_so_and_harms_no_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path, ()) as on:
            limit = 8 << 20
            StoreLimits(on.vault.root).note(["ads"], limit)
            on.vault.admit(RunOfJob(f"{tenant}/demo", "u1") for tenant in TENANTS)
            for tenant in TENANTS:
                await on.make(tenant)
            full, other = await on.connect("master", "ads"), await on.connect("master", "maps")

            async def fill() -> None:
                for _ in range(2 * limit // 500_000):
                    await full.append(LOG, subjects.job_log("demo"), b"x" * 500_000)

            with pytest.raises(StreamFull, match="nothing was stored"):
                await fill()
            assert await other.append(LOG, subjects.job_log("demo"), b"y" * 500_000) == 1
            brain = await on.connect("brain")
            assert await brain.append(LOG, subjects.BRAIN_LOG, b"z") == 1
            usage = await (await on.connect("viewer", "ads")).usage()
            assert usage.limit_bytes == limit >= usage.stored_bytes
            StoreLimits(on.vault.root).note(["ads"], 2 * limit)
            await tell_accounts(on.system, on.vault, changed_with(["ads"]))
            await full.append(LOG, subjects.job_log("demo"), b"x" * 500_000)

            sent = 0

            async def fill_facts() -> None:
                nonlocal sent
                while True:
                    await full.append(FACTS, FACT, b"x" * 500_000, headers={"n": str(sent + 1)})
                    sent += 1

            with pytest.raises(StreamFull):
                await fill_facts()
            last = str(sent)
            await until(
                on.owner, FACTS, subjects.of_tenant("ads", FACT), lambda copy: copy.headers.get("n") == last
            )
            assert 0 < await on.owner.size(FACTS) < 2 * limit, "what is set aside for the copy must hold it"

    asyncio.run(run())
