"""docs/cli.md, "With the nats CLI": its lines as printed, spoken over nats-py where the CLI cannot be installed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nats
import pytest
from outside import rover

from rover_bus.cli.stack import RunningStack
from rover_bus.events.streams import FACTS

DOCS = Path(__file__).parents[3] / "docs" / "cli.md"


def lines() -> list[str]:
    section = DOCS.read_text().partition("## With the nats CLI")[2]
    return re.findall(r"^    (\S.*)$", section, re.MULTILINE)


async def newest_fact(context: dict[str, str]) -> bytes:
    """Read as the nats CLI does: by the context's server, credentials and inbox."""
    client = await nats.connect(
        context["url"],
        user_credentials=context["creds"],
        inbox_prefix=context["inbox_prefix"],
        max_reconnect_attempts=0,
    )
    try:
        stored = await client.jetstream().get_last_msg(FACTS, "rover.host.*.registered")
        assert stored.data is not None
        with pytest.raises(nats.errors.TimeoutError):
            await client.jetstream(timeout=0.5).purge_stream(FACTS)
        return stored.data
    finally:
        await client.close()


@pytest.mark.broker
def test_the_printed_context_shows_facts_and_lets_nothing_be_changed(tmp_path: Path) -> None:
    [saved] = [line for line in lines() if "rover nats >" in line]
    with RunningStack(tmp_path / ".rover"):
        subprocess.run(
            ["bash", "-c", saved.replace("rover nats", f"{sys.executable} -m rover_bus.cli.entry nats")],
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path)},
            check=True,
        )
        context = json.loads((tmp_path / ".config/nats/context/rover.json").read_text())
        body = asyncio.run(newest_fact(context))
        for named, exit_code in (("other", 0), ("../other", 2)):
            done = rover(
                "nats", "--save", named, home=tmp_path / ".rover", HOME=str(tmp_path), XDG_CONFIG_HOME=""
            )
            assert done.returncode == exit_code, done.stderr
        assert json.loads((tmp_path / ".config/nats/context/other.json").read_text()) == context
    command = [sys.executable, "-m", "rover_bus.cli.entry", "decode"]
    decoded = subprocess.run(command, input=body, capture_output=True, check=True)
    assert json.loads(decoded.stdout)["type"] == "host.registered.v1"


def test_the_recipe_translates_by_a_command_of_ours() -> None:
    translated = [line for line in lines() if line.startswith("nats") and "--translate" in line]
    assert len(translated) >= 2
    assert all('--translate "rover decode"' in line for line in translated)
