"""A stack on a NATS that is not its own: with the rights that docs/rights.md asks for and no others; saved, and put back."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from outside import rover
from small_job import SmallJob

from rover_bus.auth import tokens
from rover_bus.auth.secret_files import write_secret
from rover_bus.cli.stack import Here, OtherBroker, RunningStack
from rover_bus.events import credentials
from rover_bus.events.broker import EmbeddedBroker

pytestmark = pytest.mark.broker
PAGE = Path(__file__).parents[3] / "docs" / "rights.md"
REFUSED = "Violation"  # "Publish Violation", "Subscription Violation": as the server's log has them


def asked_for() -> dict[str, Any]:
    """Return the rights that the page asks an owner for."""
    block = (
        PAGE.read_text()
        .partition("## A broker of another owner")[2]
        .partition("```json")[2]
        .partition("```")[0]
    )
    found: dict[str, Any] = json.loads(block)
    return found


class TheirNats(NamedTuple):
    """A server in operator mode that knows nothing of ours: an account, and one user with the rights of the page."""

    broker: EmbeddedBroker
    secret_file: Path

    @property
    def refusals(self) -> list[str]:
        return [line for line in self.broker.log_file.read_text().splitlines() if REFUSED in line]


@contextmanager
def theirs(directory: Path) -> Iterator[TheirNats]:
    now_s = int(time.time())
    kinds = dict.fromkeys(("system", "account", "key"), "account") | {"operator": "operator", "user": "user"}
    seeds = {
        name: tokens.new_seed(kind, secrets.token_bytes(tokens.SEED_BYTES))  # type: ignore[arg-type]
        for name, kind in kinds.items()
    }
    keys = {name: tokens.public(seed) for name, seed in seeds.items()}
    plain = tokens.account_body(stores=False, scopes=[], exports=[], imports=[])
    scope = tokens.scope(keys["key"], "rover", asked_for())
    body = tokens.account_body(stores=True, scopes=[scope], exports=[], imports=[])
    system = tokens.account_token(seeds["operator"], keys["system"], "SYS", plain, now_s)
    account = tokens.account_token(seeds["operator"], keys["account"], "team", body, now_s)
    operator = tokens.operator_token(seeds["operator"], "theirs", keys["system"], now_s)

    def rights(_: Path) -> str:
        preload = f'  {keys["system"]}: "{system}"\n  {keys["account"]}: "{account}"\n'
        return (
            f'operator: "{operator}"\nsystem_account: {keys["system"]}\n'
            f"resolver: MEMORY\nresolver_preload {{\n{preload}}}\n"
        )

    token = tokens.user_token(seeds["key"], keys["account"], keys["user"], "rover", {}, now_s)
    file = directory / "given" / "rover.creds"
    directory.mkdir()
    write_secret(file, credentials.write(credentials.Credential(token, seeds["user"])))
    with EmbeddedBroker(directory / "broker", rights=rights) as broker:
        yield TheirNats(broker, file)


def test_a_job_trains_with_the_rights_that_the_page_asks_for_and_goes_on_from_a_backup(
    tmp_path: Path,
) -> None:
    with theirs(tmp_path / "theirs") as nats:
        run_and_restore(nats, tmp_path)
        assert nats.refusals == []


def run_and_restore(nats: TheirNats, folder: Path) -> None:
    home, saved = folder / "state", folder / "saved"
    other = OtherBroker(nats.broker.url, nats.secret_file)
    at = ("--url", nats.broker.url, "--secret-file", str(nats.secret_file))
    stored = f'every = "1s"\nkeep = 50\npath = "{folder / "stored"}"'
    job = SmallJob(
        folder=folder,
        home=home,
        rows=2_000,
        epochs=2,
        workers=1,
        servers=1,
        pace_s=0.3,  # it trains on while it is backed up: what waits at its last batch takes no checkpoint
        leases='heartbeat = "5s"',  # a machine that is busy makes nothing silent
        checkpoint=stored,
    )
    with RunningStack(home, broker=other, here=Here(page="127.0.0.1")):
        job.submit()
        job.until(lambda: job.facts("checkpoint.ready"), "a checkpoint")
        done = rover("backup", str(saved), home=home)
        assert done.returncode == 0, done.stderr
        known = len(job.facts("checkpoint.ready"))
        job.until(lambda: len(job.facts("checkpoint.ready")) > known, "a checkpoint after the backup")
        context = json.loads(rover("nats", home=home).stdout)
        assert context["creds"] == str(nats.secret_file)
        refused = rover("restore", str(saved), *at, home=folder / "nothing")
        assert refused.returncode == 2
        assert "connected to the broker" in refused.stderr
    refused = rover("restore", str(saved), *at, home=folder / "nothing")
    assert refused.returncode == 2
    assert "ROVER_FACTS" in refused.stderr
    assert "nats stream rm" in refused.stderr
    nats.broker.stop()
    shutil.rmtree(nats.broker.directory / "store")
    nats.broker.start()
    done = rover("restore", str(saved), *at, home=folder / "nothing")
    assert done.returncode == 0, done.stderr
    assert f"goes on with {job.name}" in done.stdout
    with RunningStack(home, broker=other):
        job.until(lambda: job.facts("ledger.rewound"), "the way back")
        [back] = job.facts("ledger.rewound")
        assert "restored from a backup" in back["reason"]
        job.complete()


def test_a_backup_with_tenants_is_refused_to_a_broker_with_one_account(tmp_path: Path) -> None:
    home, saved = tmp_path / "state", tmp_path / "saved"
    with RunningStack(home, brain=None):
        assert rover("auth", "add", "ads", home=home).returncode == 0
        assert rover("backup", str(saved), home=home).returncode == 0
    with theirs(tmp_path / "theirs") as nats:
        words = ("restore", str(saved), "--url", nats.broker.url, "--secret-file", str(nats.secret_file))
        refused = rover(*words, home=tmp_path / "nothing")
        assert refused.returncode == 2
        assert "tenant ads" in refused.stderr
        assert "has one account" in refused.stderr


def test_a_context_with_the_one_word_of_a_broker_is_for_its_owner_alone(tmp_path: Path) -> None:
    home = tmp_path / "state"
    with EmbeddedBroker(tmp_path / "theirs") as broker:
        at = ("--url", broker.url, "--secret-file", str(broker.secret_file))
        printed = rover("nats", *at, home=home)
        assert printed.returncode == 2
        assert broker.secret not in printed.stdout + printed.stderr
        kept = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": ""}
        assert rover("nats", "--save", "theirs", *at, home=home, **kept).returncode == 0
        file = tmp_path / ".config/nats/context/theirs.json"
        assert json.loads(file.read_text())["token"] == broker.secret
        assert file.stat().st_mode & 0o077 == 0
