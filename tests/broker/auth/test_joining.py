"""A host joins over an encrypted broker: once a token, what it gets is for it alone, and is enough to be a host."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from rover_bus.auth.host_vault import HostVault
from rover_bus.auth.joining import JoiningKeys, JoinToken, write_token
from rover_bus.auth.roles import JOIN
from rover_bus.auth.secret_files import write_secret
from rover_bus.auth.vault import RunOfJob, Vault
from rover_bus.cli.admitting import admit_hosts
from rover_bus.cli.home import Home
from rover_bus.cli.joining import join
from rover_bus.cli.stack import Here
from rover_bus.events import credentials, subjects
from rover_bus.events.broker import EmbeddedBroker
from rover_bus.events.codec import decode, encode
from rover_bus.events.errors import AccessDenied, InputError, Refused
from rover_bus.events.join_requests import HostJoinReply, HostJoinRequest
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import BUCKETS, PRESENCE, STREAMS

pytestmark = pytest.mark.broker
ADDRESS = "127.0.0.2"


class Stage(NamedTuple):
    broker: EmbeddedBroker
    vault: Vault
    directory: Path

    def token(self, name: str = "token", valid_s: int = 60) -> tuple[JoinToken, str]:
        made = self.vault.join_token(self.broker.url, valid_s)
        write_secret(self.directory / name, write_token(made))
        return made, str(self.directory / name)

    async def join(self, host: str, file: str) -> HostVault:
        """Join as `rover join` does, in a directory of the host's name."""
        home = Home(self.directory / host)
        await asyncio.to_thread(join, home, file, Here(host, ""))
        return HostVault(home.auth)

    async def bus(self, text: str) -> NatsBus:
        return await NatsBus.connect(self.broker.url, secret=text)


@asynccontextmanager
async def stage(directory: Path) -> AsyncIterator[Stage]:
    """An encrypted broker whose Brain's process answers hosts that ask to join."""
    vault = Vault(directory / "auth")
    vault.certificate(ADDRESS)
    vault.write_credentials("one")
    broker = EmbeddedBroker(directory / "broker", host=ADDRESS, rights=vault.server_configuration)
    with broker.encrypt(vault.certificate):
        brain = await NatsBus.connect(broker.url, secret=vault.credentials_file("brain").read_text())
        await brain.ensure(STREAMS, BUCKETS)
        admitting = asyncio.create_task(admit_hosts(brain, vault))
        try:
            yield Stage(broker, vault, directory)
        finally:
            admitting.cancel()
            await asyncio.gather(admitting, return_exceptions=True)
            await brain.close()


def test_a_host_that_joined_has_what_a_host_needs(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            _, file = on.token()
            host = await on.join("two", file)
            daemon = await on.bus(host.credentials_file("daemon", "two").read_text())
            await daemon.put(PRESENCE, "two", b"here", ttl_s=5)
            on.vault.admit([RunOfJob("demo", "u1")])
            with pytest.raises(AccessDenied):
                await daemon.put(PRESENCE, "one", b"here", ttl_s=5)
            await daemon.close()
            on.broker.restart()
            member = await on.bus(host.member_credentials("worker", "demo", "u1", "worker-0.1", "two"))
            await member.close()

    asyncio.run(run())


def test_a_token_lets_one_host_in_and_a_host_that_joined_needs_none(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            _, file = on.token()
            host = await on.join("two", file)
            with pytest.raises(AccessDenied, match="used already"):
                await on.join("three", file)
            kept = host.record
            await on.join("two", file)
            await on.join("two", "")
            await on.join("two", str(tmp_path / "removed"))
            assert host.record == kept
            await on.join("three", on.token("another")[1])

    asyncio.run(run())


def test_two_hosts_with_one_token_at_once_are_one_host(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            _, file = on.token()
            second = await on.bus(on.vault.credentials_file("brain").read_text())
            answering = asyncio.create_task(admit_hosts(second, on.vault))  # of a Brain that stands by
            names = [f"h{number}" for number in range(6)]
            ended = await asyncio.gather(*(on.join(name, file) for name in names), return_exceptions=True)
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            await second.close()
            assert [type(each) for each in ended].count(HostVault) == 1, ended
            assert [type(each) for each in ended].count(AccessDenied) == 5, ended

    asyncio.run(run())


def test_an_answer_that_was_lost_is_given_again_to_the_same_asker_alone(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            token, _ = on.token()
            asker, keys = await on.bus(credentials.write(token.credential)), JoiningKeys()

            async def ask(request: HostJoinRequest) -> HostJoinReply:
                subject = subjects.registrar(token.credential.user, JOIN)
                answer = await asker.request(subject, encode(request), timeout_s=5)
                return decode(answer.body, HostJoinReply)

            first, again = [await ask(keys.request("two")) for _ in range(2)]
            assert keys.unseal(first.sealed).seeds == keys.unseal(again.sealed).seeds
            other = await ask(JoiningKeys().request("two"))
            assert (other.code, other.sealed) == ("access_denied", b"")
            await asker.close()

    asyncio.run(run())


def test_a_token_that_has_expired_is_refused_in_one_line(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            token, file = on.token(valid_s=1)
            while time.time() <= token.expires_s + 1:  # noqa: ASYNC110 - the clock is waited for
                await asyncio.sleep(0.1)
            with pytest.raises(AccessDenied, match="has expired"):
                await on.join("two", file)

    asyncio.run(run())


def test_a_token_of_another_stack_is_refused_before_it_is_shown(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            other = Vault(tmp_path / "other")
            other.certificate(ADDRESS)
            write_secret(tmp_path / "foreign", write_token(other.join_token(on.broker.url, 60)))
            with pytest.raises(AccessDenied, match="not of the stack"):
                await on.join("two", str(tmp_path / "foreign"))
            _, file = on.token()
            await on.join("two", file)
            with pytest.raises(AccessDenied, match="another stack"):
                await on.join("two", str(tmp_path / "foreign"))

    asyncio.run(run())


def test_the_name_of_a_living_host_is_refused_and_costs_no_token(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            _, file = on.token()
            daemon = await on.bus(on.vault.credentials_file("daemon", "one").read_text())
            await daemon.put(PRESENCE, "one", b"here", ttl_s=60)
            with pytest.raises(Refused, match="'one' is there already"):
                await on.join("one", file)
            await daemon.close()
            await on.join("two", file)

    asyncio.run(run())


def test_the_directory_of_a_stack_joins_no_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            Vault(tmp_path / "mine" / "auth").root.parent.mkdir()
            Vault(tmp_path / "mine" / "auth").server_configuration(tmp_path / "accounts")
            with pytest.raises(InputError, match="directory of a stack"):
                await on.join("mine", on.token()[1])
            with pytest.raises(InputError, match="joined no stack yet"):
                await on.join("two", "")

    asyncio.run(run())


def test_foreign_bytes_are_answered_and_use_up_no_token(tmp_path: Path) -> None:
    async def run() -> None:
        async with stage(tmp_path) as on:
            token, file = on.token()
            asker = await on.bus(credentials.write(token.credential))
            subject = subjects.registrar(token.credential.user, JOIN)
            good = JoiningKeys().request("two")
            for body in (
                b"",
                b"\xc1",
                bytes(100_000),
                encode(msgspec.structs.replace(good, host="a b")),
                encode(msgspec.structs.replace(good, seal=bytes(32))),
                encode(msgspec.structs.replace(good, user="U")),
            ):
                answer = await asker.request(subject, body, timeout_s=5)
                assert decode(answer.body, HostJoinReply).code == "bad_input"
            await asker.close()
            await on.join("two", file)

    asyncio.run(run())
