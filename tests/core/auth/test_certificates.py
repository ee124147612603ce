"""What the stack's authority signs, when that is made anew, and what is not taken any more."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from rover_bus.auth import certificates
from rover_bus.auth.certificates import Pair, is_usable, make_authority, make_served
from rover_bus.auth.vault import Vault
from rover_bus.events import credentials

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
AUTHORITY = make_authority(NOW)
ADDRESS = "10.1.2.3"


def served(authority: Pair = AUTHORITY, address: str = ADDRESS) -> Pair:
    return make_served(authority, [address], NOW)


def test_a_certificate_names_its_address_and_is_for_serving_alone() -> None:
    found = x509.load_pem_x509_certificate(served().certificate.encode())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address(ADDRESS)]
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert found.not_valid_before_utc < NOW, "a clock that is behind takes it too"


@pytest.mark.parametrize(
    ("pair", "after_days", "usable"),
    [
        (served(), 0, True),
        (served(), 59, True),
        (served(), 61, False),
        (served(), 120, False),
        (served(make_authority(NOW)), 0, False),
        (served(address="10.1.2.4"), 0, False),
        (Pair(served().certificate, served().key), 0, False),
        (Pair("half a certif", served().key), 0, False),
    ],
    ids=["fresh", "used", "a third is left", "over", "another stack's", "moved", "another key", "damaged"],
)
def test_what_was_made_before_is_shown_while_it_is_right(pair: Pair, after_days: int, usable: bool) -> None:
    assert is_usable(pair, AUTHORITY, [ADDRESS], NOW + timedelta(days=after_days)) is usable


def test_an_authority_is_made_once_and_keys_are_their_owners(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "auth")
    assert vault.authority == ""
    first = vault.certificate(ADDRESS)
    shown, authority = first.certificate.read_text(), vault.authority
    assert vault.certificate(ADDRESS) == first
    assert first.certificate.read_text() == shown, "nothing is made anew before its time"
    vault.certificate("10.1.2.4")
    assert first.certificate.read_text() != shown
    assert Vault(tmp_path / "auth").authority == authority != ""
    assert {path.stat().st_mode & 0o777 for path in (first.key, vault.root / "keys" / "authority.key")} == {
        0o600
    }


def test_a_certificate_is_made_anew_when_a_third_of_its_time_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = Vault(tmp_path / "auth")
    before = vault.certificate(ADDRESS).certificate.read_text()
    later = certificates.now_utc() + timedelta(days=61)
    monkeypatch.setattr(certificates, "now_utc", lambda: later)
    assert vault.certificate(ADDRESS).certificate.read_text() != before


def test_a_credential_carries_its_authority_and_none_before_there_is_one(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "auth")
    vault.write_credentials("h1")
    assert _of(vault).authority == ""
    vault.certificate(ADDRESS)
    vault.write_credentials("h1")
    assert _of(vault).authority == vault.authority != ""


def _of(vault: Vault) -> credentials.Credential:
    found = credentials.read(vault.credentials_file("operator").read_text())
    assert found
    return found
