"""The keys of a stack as a folder: what any process of the stack is given of them signs and knows the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from rover_bus.auth.key_folder import read_keys, take_keys, whole_keys
from rover_bus.auth.vault import Vault
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
