"""`rover auth add --store` on a running stack: what a tenant may store is listed, and more than the broker has left is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from outside import rover

from rover_bus.cli.own_broker import OwnBroker
from rover_bus.cli.stack import RunningStack

STORE_BYTES = 1 << 30


@pytest.mark.broker
def test_a_limit_is_kept_and_one_that_the_broker_cannot_set_aside_is_refused(tmp_path: Path) -> None:
    home = tmp_path / ".rover"
    with RunningStack(home, broker=OwnBroker(max_file_store_bytes=STORE_BYTES)):
        unlimited = rover("auth", "add", "ads", home=home)
        assert (unlimited.returncode, "ads may fill the whole store" in unlimited.stderr) == (0, True)
        assert "may fill the whole store, which stops every job: ads" in rover("doctor", home=home).stdout
        limited = rover("auth", "add", "ads", "--store", "64MiB", home=home)
        assert (limited.returncode, limited.stderr) == (0, "")
        assert "may fill the whole store" not in rover("doctor", home=home).stdout
        # Two of 64 MiB are set aside, and their copies: what is left is for the tenant and its copies, half each.
        refused = rover("auth", "add", "maps", "--store", "500MiB", home=home)
        assert refused.returncode == 2
        assert "MiB for each are left" in refused.stderr
        assert rover("auth", "add", "maps", "--store", "1MiB", home=home).returncode == 2
        done = rover("auth", "add", "ads", "--store", "128MiB", home=home)
        assert done.returncode == 0, done.stderr
        listed = json.loads(rover("auth", "list", "-o", "json", home=home).stdout)
        assert {each["tenant"]: each["store_bytes"] for each in listed}["ads"] == 128 << 20
