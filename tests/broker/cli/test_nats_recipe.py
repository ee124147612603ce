"""docs/cli.md, "With the nats CLI": its lines as printed, spoken over nats-py where the CLI cannot be installed."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import nats
import pytest

from rover_bus.cli.stack import RunningStack
from rover_bus.events.streams import FACTS

DOCS = Path(__file__).parents[3] / "docs" / "cli.md"


def lines() -> list[str]:
    section = DOCS.read_text().partition("## With the nats CLI")[2]
    return re.findall(r"^    (\S.*)$", section, re.MULTILINE)


async def newest_fact(url: str) -> bytes:
    client = await nats.connect(url, max_reconnect_attempts=0)
    try:
        stored = await client.jetstream().get_last_msg(FACTS, "rover.host.*.registered")
        assert stored.data is not None
        return stored.data
    finally:
        await client.close()


@pytest.mark.broker
def test_the_printed_line_names_server_and_credential_and_bodies_decode(tmp_path: Path) -> None:
    [export] = [line for line in lines() if line.startswith("export NATS_URL=")]
    with RunningStack(tmp_path / ".rover"):
        shown = subprocess.run(
            ["bash", "-c", f'{export}; echo "$NATS_URL"'],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        body = asyncio.run(newest_fact(shown.stdout.strip()))
    command = [sys.executable, "-m", "rover_bus.cli.entry", "decode"]
    decoded = subprocess.run(command, input=body, capture_output=True, check=True)
    assert json.loads(decoded.stdout)["type"] == "host.registered.v1"


def test_the_recipe_translates_by_a_command_of_ours() -> None:
    translated = [line for line in lines() if line.startswith("nats") and "--translate" in line]
    assert len(translated) >= 2
    assert all('--translate "rover decode"' in line for line in translated)
