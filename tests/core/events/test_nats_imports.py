"""What every process pays before it can speak to the broker."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_bus_loads_no_web_client_and_who_wants_one_has_it_afterwards() -> None:
    program = (
        "import sys, rover_bus.events.nats_bus\n"
        "print(sorted({'aiohttp', 'multidict', 'attr', 'numpy', 'click'} & set(sys.modules)))\n"
        "import nats.aio.transport\n"
        "print(nats.aio.transport.aiohttp)"
    )
    assert run(program).split("\n") == ["[]", "None"]
    pytest.importorskip("aiohttp")
    assert run("import rover_bus.events.nats_bus, aiohttp; print(aiohttp.__name__)") == "aiohttp"
    before = "import aiohttp, rover_bus.events.nats_bus, nats.aio.transport as t; print(t.aiohttp is aiohttp)"
    assert run(before) == "True"
