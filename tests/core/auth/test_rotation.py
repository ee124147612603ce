"""New keys of members: sealed for one host, taken in whole or not at all, offered to hosts that have rights."""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec
import pytest

from rover_bus.auth import tokens
from rover_bus.auth.revoking import revoke_user
from rover_bus.auth.rotation import (
    MemberKeys,
    accept,
    fresh_keys,
    offer_key,
    offers,
    present_keys,
    seal,
    take_keys,
    unseal,
)
from rover_bus.auth.users import GivenUser
from rover_bus.auth.vault import Vault
from rover_bus.events import credentials
from rover_bus.events.errors import AccessDenied
from rover_bus.node.local import proctree


def new_user() -> str:
    return tokens.new_seed("user", secrets.token_bytes(tokens.SEED_BYTES))


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    made = Vault(tmp_path / "auth")
    made.make_keys()
    made.write_credentials("one")
    return made


def test_keys_are_read_by_the_host_that_they_are_sealed_for_alone() -> None:
    keys, host = fresh_keys(), new_user()
    sealed = seal(keys, tokens.public(host))
    assert unseal(sealed, host) == keys
    with pytest.raises(AccessDenied, match="another host"):
        unseal(sealed, new_user())
    with pytest.raises(AccessDenied, match="another host"):
        unseal(b"\0" * 200, host)
    assert not any(secret.encode() in sealed for secret in (*keys.seeds.values(), keys.sockets))


def test_a_vault_signs_with_what_it_took_in(vault: Vault) -> None:
    def signer() -> tuple[str, str]:
        made = credentials.read(vault.member_credentials("worker", "demo", "u1", "worker-0.1", "one"))
        assert made is not None
        return str(credentials.read_claims(made.token)["iss"]), made.sockets

    former, cluster = signer(), vault.cluster_secret
    assert signer() == former
    assert present_keys(vault) is None
    keys = fresh_keys()
    take_keys(vault, keys)
    assert not set(signer()) & set(former)
    assert vault.cluster_secret == cluster, (
        "a server of a cluster that starts again would not find the others"
    )
    assert present_keys(vault) == keys


@pytest.mark.parametrize(
    "seeds", [{}, {"operator": "SO"}, {"role-master": "x", "role-worker": "y", "role-ps": "z"}]
)
def test_keys_that_are_none_leave_a_vault_as_it_was(vault: Vault, seeds: dict[str, str]) -> None:
    before = {each: each.read_bytes() for each in (vault.root / "keys").iterdir()}
    with pytest.raises(Exception, match=r"no host needs|no seed"):
        take_keys(vault, MemberKeys(seeds=seeds, sockets="x"))
    assert {each: each.read_bytes() for each in (vault.root / "keys").iterdir()} == before


def test_hosts_that_have_rights_are_offered_keys_and_revoked_ones_none(vault: Vault) -> None:
    assert offers(vault) == {}
    users = {host: tokens.public(new_user()) for host in ("two", "lost")}
    for host, user in users.items():
        vault.users.note(GivenUser(user, vault.control_account, "daemon", host, 1))
    vault.person_credentials("viewer", "default")
    revoke_user(vault, users["lost"], vault.control_account)
    take_keys(vault, fresh_keys())
    assert set(offers(vault)) == {offer_key(), offer_key(users["two"])}


def test_a_copy_of_the_stacks_keys_says_that_it_is_old(vault: Vault) -> None:
    take_keys(vault, fresh_keys())
    offered = msgspec.json.encode(offers(vault)[offer_key()])
    accept(offered, vault, "")
    take_keys(vault, fresh_keys())
    with pytest.raises(AccessDenied, match="copy it again"):
        accept(offered, vault, "")
    with pytest.raises(AccessDenied, match="cannot be read"):
        accept(b"{", vault, "")


def test_a_members_later_credential_counts_before_its_first(tmp_path: Path) -> None:
    assert credentials.DIRECTORY == proctree.MARK
    place = {credentials.VARIABLE: "first", credentials.DIRECTORY: str(tmp_path)}
    assert credentials.of_process(place, "") == "first"
    (tmp_path / credentials.RENEWED).write_text("second")
    (tmp_path / credentials.RENEWED).chmod(0o600)
    assert credentials.of_process(place, "") == "second"
    assert credentials.of_process({credentials.DIRECTORY: str(tmp_path)}, "") == ""
