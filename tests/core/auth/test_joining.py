"""How a host joins: what a token holds, what is granted and to whom, and what a joined host keeps."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import msgspec
import pytest

from rover_bus.auth.host_vault import HostVault
from rover_bus.auth.joining import HostGrant, JoiningKeys, JoinToken, read_token, seal, write_token
from rover_bus.auth.secret_files import write_secret
from rover_bus.auth.vault import RunOfJob, Vault
from rover_bus.events import credentials
from rover_bus.events.errors import AccessDenied, InputError, NameRefused

SEED = re.compile(r"\bS[OAU][A-Z2-7]{56}\b")
URL = "tls://127.0.0.2:4222"


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    made = Vault(tmp_path / "stack" / "auth")
    made.root.parent.mkdir()
    made.write_credentials("one")
    made.certificate("127.0.0.2")
    made.server_configuration(tmp_path / "accounts")
    return made


def joined(vault: Vault, directory: Path, host: str = "two") -> HostVault:
    keys, token = JoiningKeys(), vault.join_token(URL, 60)
    directory.mkdir()
    here = HostVault(directory / "auth")
    here.keep(
        token, keys, keys.unseal(seal(vault.grant(keys.request(host)), keys.request(host).seal)), host, ""
    )
    return here


def claims(token: str) -> dict[str, object]:
    body = token.split(".")[1]
    read: dict[str, object] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return read


def test_a_token_is_read_as_it_was_written_and_ends(vault: Vault, tmp_path: Path) -> None:
    token = vault.join_token(URL, 60)
    write_secret(tmp_path / "t", write_token(token))
    assert read_token(tmp_path / "t") == token
    said = claims(token.user_token)
    assert said["exp"] == token.expires_s
    assert said["sub"] == token.credential.user


def test_a_stack_on_loopback_has_no_token_for_other_hosts(vault: Vault) -> None:
    with pytest.raises(InputError, match="--bind"):
        vault.join_token("nats://127.0.0.1:4222", 60)


@pytest.mark.parametrize(
    "text", ["", "word", "{}", '{"type": "rover.join_token.v1"}', "\udcff", "[" * 100_000]
)
def test_what_is_no_token_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    write_secret(tmp_path / "t", "")
    (tmp_path / "t").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match="is no token"):
        read_token(tmp_path / "t")


def test_a_token_that_others_can_read_is_refused(vault: Vault, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(write_token(vault.join_token(URL, 60)))
    (tmp_path / "t").chmod(0o644)
    with pytest.raises(InputError, match="others can read"):
        read_token(tmp_path / "t")


def test_a_token_whose_certificate_was_changed_is_refused(vault: Vault, tmp_path: Path) -> None:
    other = Vault(tmp_path / "other")
    other.certificate("127.0.0.2")
    token = msgspec.structs.replace(vault.join_token(URL, 60), authority=other.authority)
    write_secret(tmp_path / "t", write_token(token))
    with pytest.raises(AccessDenied, match="another fingerprint"):
        read_token(tmp_path / "t")


def test_what_is_granted_the_asker_alone_can_read(vault: Vault) -> None:
    asker, other = JoiningKeys(), JoiningKeys()
    request = asker.request("two")
    sealed = seal(vault.grant(request), request.seal)
    assert asker.unseal(sealed).sockets == vault.host_secret.decode()
    assert vault.host_secret not in sealed
    with pytest.raises(AccessDenied):
        other.unseal(sealed)
    with pytest.raises(AccessDenied):
        asker.unseal(sealed[:-1] + bytes([sealed[-1] ^ 1]))


@pytest.mark.parametrize("key", [b"", b"short", bytes(33), bytes(32)])
def test_a_key_that_is_none_seals_nothing(vault: Vault, key: bytes) -> None:
    with pytest.raises(InputError, match="key to seal"):
        seal(vault.grant(JoiningKeys().request("two")), key)


def test_a_host_has_no_name_that_reaches_further_than_itself(vault: Vault) -> None:
    with pytest.raises(NameRefused):
        JoiningKeys().request("*")
    asked = msgspec.structs.replace(JoiningKeys().request("two"), host=">")
    with pytest.raises(NameRefused):
        vault.grant(asked)


@pytest.mark.parametrize("user", ["", "U", "SUAWORD", "A" + "A" * 55, "U" + "a" * 55])
def test_a_daemon_is_a_user_by_a_key(vault: Vault, user: str) -> None:
    with pytest.raises(InputError, match="no public key"):
        vault.grant(msgspec.structs.replace(JoiningKeys().request("two"), user=user))


def test_no_key_that_gives_rights_leaves_the_stack(vault: Vault, tmp_path: Path) -> None:
    here = joined(vault, tmp_path / "two")
    kept = {SEED.search(path.read_text()): path for path in here.root.rglob("*") if path.is_file()}
    seeds = {found[0] for found in kept if found}
    signing = {path.name: path.read_text().strip() for path in (vault.root / "keys").glob("*.nk")}
    of_members = {signing[f"role-{role}.nk"] for role in ("master", "worker", "ps")}
    assert seeds & set(signing.values()) == of_members
    assert {path.name for path in (here.root / "keys").iterdir()} == {
        "role-master.nk",
        "role-worker.nk",
        "role-ps.nk",
        "sockets",
        "account-control.pub",
        "account-members.pub",
    }
    with pytest.raises(InputError, match="stack's own machine"):
        here.server_configuration(tmp_path)
    assert not (here.root / "keys" / "operator.nk").exists(), "a host makes no key of a stack"


def test_every_file_of_a_host_is_for_its_owner_alone(vault: Vault, tmp_path: Path) -> None:
    here = joined(vault, tmp_path / "two")
    for path in (here.root, *here.root.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_joined_host_signs_members_as_the_stack_does(vault: Vault, tmp_path: Path) -> None:
    here = joined(vault, tmp_path / "two")
    vault.admit([RunOfJob("demo", "u1")])
    ours, theirs = (
        credentials.read(each.member_credentials("worker", "demo", "u1", "worker-0.1", "two"))
        for each in (vault, here)
    )
    assert ours is not None
    assert theirs is not None
    assert (ours.sockets, ours.authority) == (theirs.sockets, theirs.authority)
    for key in ("iss", "nats"):
        assert claims(ours.token)[key] == claims(theirs.token)[key]
    assert here.host_secret == vault.host_secret


def test_a_host_keeps_nothing_of_a_grant_that_offers_other_keys(vault: Vault, tmp_path: Path) -> None:
    keys, token = JoiningKeys(), vault.join_token(URL, 60)
    grant = vault.grant(keys.request("two"))
    (tmp_path / "two").mkdir()
    here = HostVault(tmp_path / "two" / "auth")
    for changed in (
        msgspec.structs.replace(grant, seeds={"../../escaped": "S"}),
        msgspec.structs.replace(grant, accounts={"../../escaped": "A"}),
        msgspec.structs.replace(grant, authority=base64.b64encode(b"another").decode()),
    ):
        with pytest.raises(AccessDenied):
            here.keep(token, keys, changed, "two", "")
    assert not here.is_joined
    assert isinstance(grant, HostGrant)
    assert isinstance(token, JoinToken)
