"""The keys of a stack as a folder: what any process of the stack is given of them signs and knows the same."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest

from rover_bus.auth.agents import AgentKeys, AgentVault
from rover_bus.auth.joining import JoiningKeys
from rover_bus.auth.key_folder import PARTS, part_of, read_keys, take_keys, whole_keys
from rover_bus.auth.revoking import revoke_people, revoke_user
from rover_bus.auth.roles import RUN_ROLES
from rover_bus.auth.store_limits import StoreLimits
from rover_bus.auth.vault import RunOfJob, Vault
from rover_bus.events import credentials
from rover_bus.events.errors import InputError


def vault_of(folder: Path, files: dict[str, str]) -> Vault:
    folder.mkdir()
    vault = Vault(folder / "auth")
    take_keys(vault, files)
    return vault


def written(vault: Vault) -> dict[str, str]:
    return {
        str(each.relative_to(vault.root)): each.read_text() for each in (vault.root / "keys").glob("*.nk")
    }


def test_two_processes_with_the_same_keys_make_none_of_their_own(tmp_path: Path) -> None:
    files = whole_keys(vault_of(tmp_path / "a", {}))
    one, other = vault_of(tmp_path / "b", files), vault_of(tmp_path / "c", files)
    before = written(one)
    for vault in (one, other):
        vault.server_configuration(tmp_path)
        vault.write_credentials("h")
        vault.member_credentials("worker", "clicks", "u1", "worker-0.1", "h")
        vault.person_credentials("submitter", "default")
        vault.certificate("127.0.0.2", ["rover-broker.rover.svc"])
    assert written(one) == written(other) == before
    assert one.authority == other.authority != ""


def test_what_is_missing_is_made_and_nothing_is_made_again(tmp_path: Path) -> None:
    files = whole_keys(vault_of(tmp_path / "a", {}))
    lost = {name: text for name, text in files.items() if name != "role-brain.nk"}
    again = whole_keys(vault_of(tmp_path / "b", lost))
    assert {name for name in again if again[name] != files.get(name)} == {"role-brain.nk"}


@pytest.fixture
def parts(tmp_path: Path) -> dict[str, Vault]:
    """The whole of a stack's keys, and what each process has of them."""
    whole = vault_of(tmp_path / "whole", {})
    files = {process: part_of(whole, process) for process in PARTS}
    return {"whole": whole} | {each: vault_of(tmp_path / each, files[each]) for each in PARTS}


def accounts_of(vault: Vault, folder: Path) -> list[str]:
    """What a broker is told, but for times and signatures."""
    tokens = re.findall(r'(A[A-Z2-7]{55}): "[^.]+\.([^.]+)', vault.server_configuration(folder))
    claims = [(key, json.loads(base64.urlsafe_b64decode(body + "=="))) for key, body in tokens]
    return sorted(f"{key} {said['iss']} {json.dumps(said['nats'], sort_keys=True)}" for key, said in claims)


def test_a_broker_gives_the_same_rights_by_its_part_of_the_keys(
    parts: dict[str, Vault], tmp_path: Path
) -> None:
    made = credentials.read(parts["whole"].person_credentials("viewer", "default"))
    assert made is not None
    revoke_user(parts["whole"], made.user, made.account)
    for each in ("broker", "brain"):
        take_keys(parts[each], part_of(parts["whole"], each))
    told = accounts_of(parts["whole"], tmp_path)
    assert len(told) == 4
    assert sum(made.user in each for each in told) == 1
    assert accounts_of(parts["broker"], tmp_path) == told == accounts_of(parts["brain"], tmp_path)
    assert parts["broker"].certificate("127.0.0.2")
    assert parts["broker"].cluster_secret == parts["whole"].cluster_secret


def test_accounts_of_tenants_have_the_same_rights_by_each_part_that_gives_them(tmp_path: Path) -> None:
    whole = vault_of(tmp_path / "whole", {})
    whole.note_tenants(["ads", "maps"])
    StoreLimits(whole.root).note(["ads"], 64 << 20)
    files = {process: part_of(whole, process) for process in PARTS}
    broker, brain = (vault_of(tmp_path / each, files[each]) for each in ("broker", "brain"))
    told = accounts_of(whole, tmp_path)
    assert len(told) == 4 + 2 * 3
    assert accounts_of(broker, tmp_path) == told == accounts_of(brain, tmp_path)
    runs = [RunOfJob("ads/clicks", "u1"), RunOfJob("clicks", "u2")]
    for every in (True, False):
        told = brain.admit(runs, every)
        assert told == whole.admit(runs, every)
        for each in told:
            assert brain.claims(each) == whole.claims(each)
            assert said_of(brain.account_token(each, 7)) == said_of(whole.account_token(each, 7))
        runs = [*runs, RunOfJob("maps/clicks", "u3")]
    seeds = {process: [name for name in part if name.endswith("-ads.nk")] for process, part in files.items()}
    assert seeds.pop("brain") == ["account-tenant-ads.nk"], "backups are taken with these keys"
    assert not any(seeds.values()), "no seed of a tenant's account"
    assert brain.owner_credentials("ads")
    again = whole_keys(vault_of(tmp_path / "again", whole_keys(whole)))
    assert again == whole_keys(whole)
    assert {"account-tenant-ads.nk", "tenants", "limits"} <= again.keys()


def test_an_operator_makes_members_and_agents_and_gives_no_account_a_right(
    parts: dict[str, Vault], tmp_path: Path
) -> None:
    operator, whole = parts["operator"], parts["whole"]
    operator.write_credentials("h")
    made = {path.stem for path in (operator.root / "creds").iterdir()}
    assert made == {"daemon-h", "operator", "registrar", "agent-h"}
    shared, agents = AgentVault(whole.root).shared_pass, AgentVault(operator.root)
    assert agents.grant_agent(agents.read(AgentKeys(shared).apply("t")), "h")
    for role in RUN_ROLES:
        ours = credentials.read(operator.member_credentials(role, "clicks", "u1", f"{role}-0.1", "h"))
        theirs = credentials.read(whole.member_credentials(role, "clicks", "u1", f"{role}-0.1", "h"))
        assert ours is not None
        assert theirs is not None
        assert (issuer_of(ours.token), ours.sockets) == (issuer_of(theirs.token), theirs.sockets)
    for denied in (
        operator.owner_credentials,
        operator.system_credentials,
        lambda: operator.server_configuration(tmp_path),
        lambda: operator.certificate("127.0.0.2"),
    ):
        with pytest.raises(InputError, match="has no key"):
            denied()


def test_a_broker_makes_nothings_credentials(parts: dict[str, Vault]) -> None:
    broker = parts["broker"]
    broker.write_credentials("h")
    assert not (broker.root / "creds").exists()
    with pytest.raises(InputError, match="has no key"):
        broker.member_credentials("worker", "clicks", "u1", "worker-0.1", "h")
    with pytest.raises(InputError, match="has no key"):
        broker.owner_credentials()


def test_a_brain_admits_runs_and_hosts_and_makes_no_credentials_of_people(parts: dict[str, Vault]) -> None:
    brain, whole = parts["brain"], parts["whole"]
    runs = [RunOfJob("clicks", "u1")]
    signers = [
        sorted(said_of(vault.account_token(each, 7)) for each in vault.admit(runs))
        for vault in (brain, whole)
    ]
    assert signers[0] == signers[1]
    brain.write_credentials("h")
    assert {path.stem for path in (brain.root / "creds").iterdir()} == {"brain", "daemon-h"}
    request = JoiningKeys().request("h2")
    assert brain.grant(request).seeds == whole.grant(request).seeds
    assert brain.owner_credentials()
    assert brain.system_credentials()


def issuer_of(token: str) -> str:
    return str(json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))["iss"])


def said_of(token: str) -> str:
    return json.dumps(
        json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))["nats"], sort_keys=True
    )


def test_a_folder_without_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no keys of a stack"):
        read_keys(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        read_keys(tmp_path / "none")


def test_a_vault_is_its_owners_alone_though_the_folder_is_its_groups_too(tmp_path: Path) -> None:
    folder = tmp_path / "mounted"
    folder.mkdir()
    for name, text in whole_keys(vault_of(tmp_path / "a", {})).items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o440)
    (folder / "..data").mkdir()  # as a Secret is mounted
    vault = vault_of(tmp_path / "b", read_keys(folder))
    assert {each.stat().st_mode & 0o077 for each in (vault.root / "keys").iterdir()} == {0}
    vault.write_credentials("h")


@pytest.mark.parametrize("tenant", ["default", "maps"])
def test_people_are_revoked_of_a_tenant_that_there_is(parts: dict[str, Vault], tenant: str) -> None:
    parts["whole"].note_tenants(["ads"])
    with pytest.raises(InputError, match="tenants are ads"):
        revoke_people(parts["whole"], tenant)
    assert parts["whole"].users.revoked == {}
