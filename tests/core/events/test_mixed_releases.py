"""Past releases and this one on one bus: each reads what the other writes, or says that it does not know the type.

The past is its own code: the wheels under tests/upgrade, imported by an interpreter of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rover_bus.cli.samples import sample
from rover_bus.cli.schemas import TYPES
from rover_bus.events.codec import decode, encode

WHEELS = sorted((Path(__file__).parents[2] / "upgrade").glob("*.whl"))
WRITES = """
import json, sys
import rover_bus
assert ".whl" in rover_bus.__file__, "this is not the release"
from rover_bus.cli.samples import sample
from rover_bus.cli.schemas import TYPES
from rover_bus.events.codec import encode
json.dump({tag: encode(sample(kind)).hex() for tag, kind in TYPES.items()}, sys.stdout)
"""
READS = """
import json, sys
import rover_bus
assert ".whl" in rover_bus.__file__, "this is not the release"
from rover_bus.cli.schemas import TYPES
from rover_bus.events.codec import decode
from rover_bus.events.errors import BadMessage
for tag, body in json.load(sys.stdin).items():
    if tag not in TYPES:
        continue
    try:
        decode(bytes.fromhex(body), TYPES[tag])
    except BadMessage as error:
        # A kind of record that it does not know is refused by name: a master never passes over what it cannot evolve.
        if tag not in ("log.batch.v1", "brain.batch.v1") or not (str(error).endswith(".type`") and "Invalid value" in str(error)):
            raise
json.dump(sorted(TYPES), sys.stdout)
"""


def _in_release(wheel: Path, program: str, given: str = "") -> Any:
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(wheel)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_wheel_of_the_first_release_is_kept() -> None:
    assert any(wheel.name.startswith("rover_bus-0.1.0-") for wheel in WHEELS)


@pytest.mark.parametrize("wheel", WHEELS, ids=lambda wheel: wheel.name.split("-")[1])
def test_we_read_what_a_past_release_writes(wheel: Path) -> None:
    written: dict[str, str] = _in_release(wheel, WRITES)
    assert written.keys() <= TYPES.keys(), "a type of a past release is gone: its history cannot be replayed"
    for tag, body in written.items():
        decode(bytes.fromhex(body), TYPES[tag])


@pytest.mark.parametrize("wheel", WHEELS, ids=lambda wheel: wheel.name.split("-")[1])
def test_a_past_release_reads_what_we_write_of_its_types(wheel: Path) -> None:
    written = {tag: encode(sample(kind)).hex() for tag, kind in TYPES.items()}
    known = _in_release(wheel, READS, json.dumps(written))
    assert set(known) <= written.keys()
