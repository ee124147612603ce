"""A stack that writes a later format: a release that comes after a later one refuses to start, in one line with the way back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from outside import rover

from rover_bus.auth.vault import Vault
from rover_bus.cli.home import Home
from rover_bus.cli.stack import RunningStack
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import FORMAT_KEY, SETTINGS

pytestmark = pytest.mark.broker


def test_a_downgrade_across_a_change_of_format_is_refused_with_the_way_back(tmp_path: Path) -> None:
    home = tmp_path / ".rover"

    async def say(url: str, value: bytes) -> bytes | None:
        bus = await NatsBus.connect(url, secret=Vault(Home(home).auth).owner_credentials())
        try:
            noted = await bus.get(SETTINGS, FORMAT_KEY)
            if value:
                await bus.put(SETTINGS, FORMAT_KEY, value)
            return noted.value if noted else None
        finally:
            await bus.close()

    with RunningStack(home) as stack:
        noted = asyncio.run(say(stack.url, b'{"format": 3, "release": "9.0.0"}'))
        assert noted == b'{"format":2,"release":"0.4.0"}'
    refused = rover("up", "--detach", home=home)
    assert refused.returncode == 9, refused.stderr
    [line] = [each for each in refused.stderr.splitlines() if "format" in each]
    assert "go on with release 9.0.0 or a later one" in line
    assert not Home(home).is_held()
