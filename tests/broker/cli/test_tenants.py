"""Tenants as their people meet them: two jobs of one name run side by side, each is seen by its own and by the operator."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from outside import rover
from patience import until

from rover_bus.cli.stack import RunningStack

pytestmark = pytest.mark.broker
FILE = """
name = "demo"
program = "dlrm"
[data]
train = "t.csv"
batch_size = 32
epochs = 1
schema = { label = "label", categorical = ["user"] }
[plan]
tenant = "TENANT"
[workers]
count = 1
[servers]
count = 1
"""
ROWS = 320


@pytest.mark.timeout(180)
def test_two_jobs_of_one_name_run_side_by_side_in_two_tenants(tmp_path: Path) -> None:
    home = tmp_path / "state"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return rover(*words, home=home, cwd=tmp_path, timeout_s=60.0)

    def said(*words: str) -> str:
        done = run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (tmp_path / "t.csv").write_text("label,user\n" + "".join(f"{n % 2},u{n % 7}\n" for n in range(ROWS)))
    for tenant in ("ads", "maps"):
        (tmp_path / f"{tenant}.toml").write_text(FILE.replace("TENANT", tenant))
    with RunningStack(home) as stack:
        said("auth", "add", "ads", "maps")
        said("auth", "credentials", "ads", "--out", "ads.creds")
        said("auth", "credentials", "ads", "--role", "viewer", "--out", "look.creds")
        as_ads = ("--url", stack.url, "--secret-file", "ads.creds")
        refused = run("submit", "maps.toml", *as_ads)
        assert refused.returncode == 2
        assert "[plan] tenant is 'maps'" in refused.stderr
        assert "[plan] tenant is 'ads'" in run("submit", "ads.toml").stderr
        said("submit", "ads.toml", *as_ads)
        said("submit", "maps.toml", "--tenant", "maps")
        until(lambda: states(said) == {"ads/demo": "completed", "maps/demo": "completed"}, "the ends")
        for job in ("ads/demo", "maps/demo"):
            counted = json.loads(said("witness", job, "--json"))
            assert (counted["applied"], counted["missing"], counted["duplicated"]) == (ROWS, 0, 0)
        assert states(said, "--tenant", "maps") == {"demo": "completed"}
        assert states(said, "--url", stack.url, "--secret-file", "look.creds") == {"demo": "completed"}
        assert run("stop", "maps/demo", *as_ads).returncode == 2
        forbidden = run("cancel", "demo", "--url", stack.url, "--secret-file", "look.creds")
        assert forbidden.returncode != 0
        looking = ("--url", stack.url, "--secret-file", "look.creds")
        for logs in (said("logs", "ads/demo", "ps-0"), said("logs", "demo", "ps-0", *looking)):
            assert "ps-0.1 | " in logs
        assert "3 streams and 4 buckets are as this release wants them" in run("doctor", *looking).stdout
        seen = said("events", *as_ads, "--json")
        assert "maps" not in seen.replace("maps.toml", "")
        removed = run("auth", "remove", "maps")
        if removed.returncode:  # its rights end 30 s after it
            assert "maps/demo runs, or ended" in removed.stderr
            until(lambda: run("auth", "remove", "maps").returncode == 0, "the removal")
        assert states(said) == {"ads/demo": "completed"}
        assert json.loads(said("auth", "list", "-o", "json"))[0]["tenant"] == "default"


def states(said: Callable[..., str], *options: str) -> dict[str, str]:
    return {each["job"]: each["state"] for each in json.loads(said("jobs", "-o", "json", *options))}
