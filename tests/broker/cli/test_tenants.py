"""Tenants as their people meet them: two jobs of one name run side by side, each is seen by its own and by the operator."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from outside import rover
from patience import PATIENCE_S, until

from rover_bus.auth.vault import Vault
from rover_bus.cli.stack import RunningStack
from rover_bus.events import subjects
from rover_bus.events.codec import type_of
from rover_bus.events.nats_bus import NatsBus
from rover_bus.events.streams import FACTS

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


@pytest.mark.timeout(900)
def test_two_jobs_of_one_name_run_side_by_side_in_two_tenants(tmp_path: Path) -> None:
    home = tmp_path / "state"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return rover(*words, home=home, cwd=tmp_path, timeout_s=PATIENCE_S)

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
        until(
            lambda: states(said) == {"ads/demo": "completed", "maps/demo": "completed"},
            "the ends",
            look_s=1.0,
        )
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
        shown = run("top", "--once", *looking)
        assert (shown.returncode, "demo" in shown.stdout) == (0, True), shown.stderr
        seen = said("events", *as_ads, "--json")
        assert "maps" not in seen.replace("maps.toml", "")
        check_every_command(
            run, said, as_ads, {"ROVER_URL": stack.url, "ROVER_SECRET_FILE": "ads.creds"}, tmp_path
        )
        removed = run("auth", "remove", "maps")
        if removed.returncode:  # its rights end 3 s after the grace of its members
            assert "maps/demo runs, or its members may still be leaving" in removed.stderr
            until(lambda: run("auth", "remove", "maps").returncode == 0, "the removal", look_s=1.0)
        assert states(said) == {}
        assert json.loads(said("auth", "list", "-o", "json"))[0]["tenant"] == "default"


@pytest.mark.timeout(900)
def test_checkpoints_of_a_tenants_job_are_found_and_started_from_by_its_people_and_the_operator(
    tmp_path: Path,
) -> None:
    home = tmp_path / "state"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return rover(*words, home=home, cwd=tmp_path, timeout_s=PATIENCE_S)

    def said(*words: str) -> str:
        done = run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (tmp_path / "t.csv").write_text("label,user\n" + "".join(f"{n % 2},u{n % 7}\n" for n in range(ROWS)))
    checkpointed = FILE + '[checkpoint]\nevery = "0.3s"\n'
    for tenant in ("ads", "maps"):
        for name, epochs in (("demo", 60), ("again", 61)):
            text = checkpointed.replace("TENANT", tenant).replace('"demo"', f'"{name}"')
            (tmp_path / f"{tenant}-{name}.toml").write_text(text.replace("epochs = 1", f"epochs = {epochs}"))
    with RunningStack(home, disposable=True) as stack:
        said("auth", "add", "ads", "maps")
        people = {}
        for tenant in ("ads", "maps"):
            said("auth", "credentials", tenant, "--out", f"{tenant}.creds")
            people[tenant] = ("--url", stack.url, "--secret-file", f"{tenant}.creds")
        said("submit", "ads-demo.toml", "--wait", *people["ads"])
        assert forms_of_members(stack, "ads", "demo") == {"members.desired.v2"}, "in the stack's format"
        assert json.loads(said("checkpoint", "list", "ads/demo", "-o", "json"))
        assert json.loads(said("checkpoint", "list", "demo", "-o", "json", *people["ads"]))
        of_maps = run("checkpoint", "list", "demo", *people["maps"])
        assert of_maps.returncode != 0, of_maps.stdout
        stolen = run("submit", "maps-again.toml", "--from-checkpoint", "ads/demo", *people["maps"])
        assert stolen.returncode == 2, stolen.stderr
        assert "ads" in stolen.stderr
        said("submit", "ads-again.toml", "--from-checkpoint", "demo", "--wait", *people["ads"])
        (tmp_path / "ads-third.toml").write_text(
            (tmp_path / "ads-again.toml").read_text().replace('"again"', '"third"')
        )
        said("submit", "ads-third.toml", "--from-checkpoint", "ads/demo", "--wait", "--tenant", "ads")
        for job in ("ads/again", "ads/third"):
            (submitted,) = said("events", job, "-k", "job.submitted", "--json").splitlines()
            assert json.loads(submitted)["body"]["spec"]["start_from"]
        assert set(states(said).values()) == {"completed"}


def forms_of_members(stack: RunningStack, tenant: str, job: str) -> set[str]:
    """Return in which forms the master of a tenant's job stored the members that it wants."""

    async def read() -> set[str]:
        secret = Vault(stack.home.auth).owner_credentials(tenant)
        bus = await NatsBus.connect(stack.url, secret=secret)
        try:
            facts = bus.read(FACTS, subjects.job_fact(job, "members.desired"))
            return {type_of(each.body) async for each in facts}
        finally:
            await bus.close()

    return asyncio.run(read())


def check_every_command(
    run: Callable[..., subprocess.CompletedProcess[str]],
    said: Callable[..., str],
    as_ads: tuple[str, ...],
    of_ads: dict[str, str],
    cwd: Path,
) -> None:
    """What takes a job takes one of a tenant, by its full name and with --tenant; what is not for a tenant's people says so."""
    for words in (("story", "maps/demo/worker-0"), ("story", "demo/worker-0", "--tenant", "maps")):
        assert "worker-0.1" in said(*words)
    assert said("explain", "maps/demo") == said("explain", "demo", "--tenant", "maps")
    assert "maps/demo" in said("explain", "maps/demo") + said("history", "--tenant", "maps") + said("history")
    assert "has ended already" in run("plan", "mode", "maps/demo", "observe").stderr
    assert "leave --tenant out" in run("plan", "mode", "--cluster", "auto", "--tenant", "maps").stderr
    assert (
        "3 streams and 4 buckets are as this release wants them" in run("doctor", "--tenant", "maps").stdout
    )
    assert '"of": "job"' in said("doctor", "--settings", "--job", "maps/demo", "-o", "json")
    assert "no checkpoint of 'maps/demo'" in run("checkpoint", "list", "demo", "--tenant", "maps").stderr
    environment = said("run", "--job", "maps/demo", "--", "env").splitlines()
    assert "ROVER_JOB=demo" in environment
    assert "there is no tenant 'nosuch'" in run("jobs", "--tenant", "nosuch").stderr
    as_people = rover("run", "--job", "demo", "--", "env", timeout_s=60.0, cwd=cwd, **of_ads)
    assert as_people.returncode == 5, as_people.stderr
    assert "run `rover run --job` on a host of it" in as_people.stderr
    assert run("quota", "list", *as_ads).returncode == 5
    what_if = run("what-if", "demo", "--workers", "2", *as_ads)
    assert what_if.returncode == 3, "it has ended"
    assert said("forget", "demo", "-y", *as_ads) == "demo: forgotten\n"


def states(said: Callable[..., str], *options: str) -> dict[str, str]:
    return {each["job"]: each["state"] for each in json.loads(said("jobs", "-o", "json", *options))}
