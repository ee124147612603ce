"""`rover upgrade`: raised when every process reads the format, in every account; else refused, by name, and nothing has changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from outside import rover
from patience import PATIENCE_S

from rover_bus.auth.vault import Vault
from rover_bus.cli import upgrading
from rover_bus.cli.home import Home
from rover_bus.cli.stack import RunningStack
from rover_bus.cli.upgrading import raise_format
from rover_bus.events.errors import AccessDenied, Refused
from rover_bus.events.formats import FORMAT, noted_format
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import FORMAT_KEY, POSITIONS, SETTINGS

pytestmark = pytest.mark.broker
FORMER = b'{"format":1,"release":"0.3.0"}'  # as that release notes it
STANDBY = b'{"stream": "ROVER_LOG", "subjects": ["rover.job.ads.log"], "position": 3}'  # as it reports
T = TypeVar("T")


def test_an_older_process_of_a_tenant_keeps_the_format_from_being_raised(tmp_path: Path) -> None:
    home = tmp_path / ".rover"
    with RunningStack(home) as stack:
        assert rover("upgrade", home=home).stdout.endswith("already\n")
        assert rover("auth", "add", "ads", home=home).returncode == 0
        said = json.loads(rover("upgrade", "--check", "-o", "json", home=home).stdout)
        assert {"brain", "host"} <= {each["role"] for each in said}
        assert {each["reads"] for each in said} == {FORMAT}
        assert f"writes format {FORMAT}" in releases(home)

        async def age(bus: NatsBus) -> None:
            await bus.put(SETTINGS, FORMAT_KEY, FORMER)
            await bus.of("ads").put(POSITIONS, "job.demo.master-1.1", STANDBY)

        as_owner(stack, age)
        assert rover("auth", "credentials", "ads", "--out", str(tmp_path / "c"), home=home).returncode == 0
        denied = rover("upgrade", "--url", stack.url, "--secret-file", str(tmp_path / "c"))
        assert denied.returncode == AccessDenied.exit_code, denied.stderr
        for words in (("upgrade",), ("upgrade", "--check")):
            refused = rover(*words, home=home)
            assert refused.returncode == 3
            [line] = refused.stderr.splitlines()
            assert "master master-1.1 of ads/demo (0.3.0) does not read format 2" in line
        assert "master master-1.1 of ads/demo (0.3.0) does not read format 2: replace them" in releases(home)
        assert as_owner(stack, noted_format)[0].writes == 1
        as_owner(stack, lambda bus: bus.of("ads").delete(POSITIONS, "job.demo.master-1.1"))
        assert "all read 2: `rover upgrade` raises it" in releases(home)
        raised = rover("upgrade", home=home)
        assert raised.returncode == 0, raised.stderr
        assert as_owner(stack, noted_format)[0].writes == FORMAT


def test_a_process_that_appears_between_the_steps_and_a_step_that_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrading, "SETTLE_S", 0.3)

    async def play(bus: NatsBus) -> None:
        await bus.put(SETTINGS, FORMAT_KEY, FORMER)
        raising = asyncio.ensure_future(raise_format(bus))
        await asyncio.wait_for(is_noted(bus), PATIENCE_S)
        assert (await noted_format(bus))[0].writes == 1
        await bus.put(POSITIONS, "all.late.daemon", STANDBY)
        with pytest.raises(Refused, match="late"):
            await raising
        assert (await noted_format(bus))[0].format == 1
        await bus.delete(POSITIONS, "all.late.daemon")
        cut_off = asyncio.ensure_future(raise_format(bus))
        await asyncio.wait_for(is_noted(bus), PATIENCE_S)
        cut_off.cancel()
        await asyncio.gather(cut_off, return_exceptions=True)
        assert (await noted_format(bus))[0].format == 1
        await bus.put(
            SETTINGS, FORMAT_KEY, b'{"format":2,"release":"0.4.0","before":1}'
        )  # as one that was killed
        assert (await upgrading.read_stack(bus)).raising == FORMAT
        assert await raise_format(bus)
        assert (await noted_format(bus))[0].writes == FORMAT
        assert not await raise_format(bus)

    with RunningStack(tmp_path / ".rover") as stack:
        as_owner(stack, play)


def releases(home: Path) -> str:
    """Return what `rover doctor` says of releases."""
    [line] = [line for line in rover("doctor", home=home).stdout.splitlines() if "releases:" in line]
    return line


async def is_noted(bus: NatsBus) -> None:
    """Wait for the first step."""
    noted = asyncio.Event()
    watching = await bus.watch(
        SETTINGS, FORMAT_KEY, lambda entry: noted.set() if b":2" in entry.value else None
    )
    await noted.wait()
    await watching.stop()


def as_owner(stack: RunningStack, work: Callable[[NatsBus], Awaitable[T]]) -> T:
    """Work with the rights of all accounts' owner, as an older release would have written."""

    async def run() -> T:
        bus = await NatsBus.connect(stack.url, secret=Vault(Home(stack.home.root).auth).owner_credentials())
        try:
            return await work(bus)
        finally:
            await bus.close()

    return asyncio.run(run())
