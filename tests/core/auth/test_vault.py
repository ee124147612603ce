"""The keys of a stack on disk: made once, for their owner alone, and never more in a member's hands than its own."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from rover_bus.auth.roles import ASKING_ROLES, MEMBER_ROLES, ROLES, RUN_ROLES, TENANT_ROLES
from rover_bus.auth.vault import RunOfJob, Vault
from rover_bus.events import credentials
from rover_bus.events.errors import InputError, NameRefused


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    made = Vault(tmp_path / "auth")
    made.write_credentials("h1")
    made.server_configuration(tmp_path / "accounts")
    made.member_credentials("ps", "demo", "u1", "ps-0.1", "h1")
    return made


def test_every_file_is_for_its_owner_alone(vault: Vault) -> None:
    for path in (vault.root, *vault.root.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_keys_are_made_once_and_kept(vault: Vault, tmp_path: Path) -> None:
    kept = {path: path.read_text() for path in (vault.root / "keys").iterdir()}
    again = Vault(vault.root)
    again.write_credentials("h1")
    assert {path: path.read_text() for path in (vault.root / "keys").iterdir()} == kept
    assert again.job_secret("demo", "u1") == vault.job_secret("demo", "u1")


def test_one_of_a_hosts_credentials_is_written_alone(vault: Vault) -> None:
    """An operator is a daemon for each of a hundred nodes, and needs nothing else there."""
    vault.write_credentials("h2", only="daemon")
    assert vault.credentials_file("daemon", "h2").exists()
    assert not vault.credentials_file("agent", "h2").exists()


def test_a_key_that_others_can_read_is_refused(vault: Vault) -> None:
    path = vault.root / "keys" / "operator.nk"
    path.chmod(0o644)
    with pytest.raises(InputError, match="others can read"):
        vault.server_configuration(vault.root)


def test_the_brokers_configuration_holds_no_seed(vault: Vault) -> None:
    text = vault.server_configuration(vault.root)
    assert not re.search(r"\bS[OAU][A-Z2-7]{56}\b", text)
    for path in (vault.root / "keys").iterdir():
        assert path.suffix == ".pub" or path.read_text().strip() not in text


def test_members_have_credentials_of_their_own_and_their_runs_secret(vault: Vault) -> None:
    texts = [vault.member_credentials("worker", "demo", "u1", "worker-0.1", "h1") for _ in range(2)]
    one, other = (credentials.read(text) for text in texts)
    assert one is not None
    assert other is not None
    assert one.user != other.user
    assert one.sockets == other.sockets == vault.job_secret("demo", "u1")
    assert len({vault.job_secret(job, uid) for job in ("a", "b") for uid in ("u1", "u2")}) == 4
    assert vault.host_secret.decode() not in texts[0]


@pytest.mark.parametrize("job", ["*", ">", "a.b", "", "a b"])
def test_no_name_widens_what_its_credentials_reach(vault: Vault, job: str) -> None:
    with pytest.raises(NameRefused):
        vault.member_credentials("worker", job, "u1", "worker-0.1", "h1")


def test_a_vault_is_found_by_any_credentials_that_lie_in_it(vault: Vault, tmp_path: Path) -> None:
    for role in ROLES.values():
        path = vault.credentials_file(role.name, "h1")
        assert path.exists() == (role.name not in (*RUN_ROLES, *TENANT_ROLES, *ASKING_ROLES))
        assert Vault.beside(path) == vault
    assert Vault.beside(tmp_path / "elsewhere" / "secret") is None


def test_a_host_makes_its_members_credentials_with_their_signing_keys_alone(
    vault: Vault, tmp_path: Path
) -> None:
    made_by_stack = {
        role: vault.member_credentials(role, "demo", "u1", f"{role}-0.1", "h2") for role in MEMBER_ROLES
    }
    host = Vault(tmp_path / "host" / "auth")
    (host.root / "keys").mkdir(parents=True, mode=0o700)
    for role in ("master", "worker", "ps"):
        name = f"role-{role}.nk"
        (host.root / "keys" / name).write_text((vault.root / "keys" / name).read_text())
        (host.root / "keys" / name).chmod(0o600)
    (host.root / "keys" / "sockets").write_text((vault.root / "keys" / "sockets").read_text())
    (host.root / "keys" / "sockets").chmod(0o600)
    for path in (vault.root / "keys").glob("*.pub"):
        (host.root / "keys" / path.name).write_text(path.read_text())
    for role in MEMBER_ROLES:
        made = credentials.read(host.member_credentials(role, "demo", "u1", f"{role}-0.1", "h2"))
        same = credentials.read(made_by_stack[role])
        assert made is not None
        assert same is not None
        assert [claims_of(made.token)[each] for each in ("iss", "nats")] == [
            claims_of(same.token)[each] for each in ("iss", "nats")
        ]
    assert Vault.beside(host.root / "creds" / "daemon-h2.creds") == host
    assert sorted(path.name for path in (host.root / "keys").glob("account-*")) == [
        "account-control.pub",
        "account-members.pub",
    ], "no seed of an account was made"


def claims_of(token: str) -> dict[str, Any]:
    body = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return claims


def test_a_host_makes_credentials_of_a_tenants_members_once_it_knows_its_accounts(
    vault: Vault, tmp_path: Path
) -> None:
    vault.note_tenants(["ads"])
    ours = credentials.read(vault.member_credentials("worker", "ads/demo", "u1", "worker-0.1", "h1"))
    assert ours is not None
    (vault.root / "keys" / "account-control.pub").unlink(missing_ok=True)
    host = Vault(tmp_path / "host" / "auth")
    (host.root / "keys").mkdir(parents=True, mode=0o700)
    for name in ("role-worker.nk", "sockets"):
        (host.root / "keys" / name).write_text((vault.root / "keys" / name).read_text())
        (host.root / "keys" / name).chmod(0o600)
    with pytest.raises(InputError, match="no tenant 'ads'"):
        host.member_credentials("worker", "ads/demo", "u1", "worker-0.1", "h2")
    host.learn_keys(vault.keys_of_tenant("ads"))
    theirs = credentials.read(host.member_credentials("worker", "ads/demo", "u1", "worker-0.1", "h2"))
    assert theirs is not None
    for each in ("iss", "aud"):
        assert claims_of(theirs.token).get(each) == claims_of(ours.token).get(each)
    of_account = {claims_of(each.token)["nats"]["issuer_account"] for each in (ours, theirs)}
    assert of_account == {vault.public_key("account-members-ads")}
    assert not list((host.root / "keys").glob("account-*.nk"))


def test_runs_of_one_name_in_two_tenants_share_no_key_and_no_secret(vault: Vault) -> None:
    vault.note_tenants(["ads", "maps"])
    made = [
        credentials.read(vault.member_credentials("ps", job, "u1", "ps-0.1", "h1"))
        for job in ("demo", "ads/demo", "maps/demo")
    ]
    tokens = [claims_of(each.token) for each in made if each is not None]
    assert len({each["iss"] for each in tokens}) == 3
    assert len({each["nats"]["issuer_account"] for each in tokens}) == 3
    assert len({each.sockets for each in made if each is not None}) == 3


def test_only_accounts_whose_runs_changed_are_told_to_the_broker(vault: Vault) -> None:
    vault.note_tenants(["ads", "maps"])
    vault.admit([RunOfJob("demo", "u1"), RunOfJob("ads/demo", "u1")])
    told = vault.admit([RunOfJob("demo", "u1"), RunOfJob("ads/demo", "u1"), RunOfJob("maps/demo", "u1")])
    assert told == list(vault.keys_of_tenant("maps"))
