"""What `rover doctor` says of clocks and of certificates; certificates of a page are made again while it is served."""

from __future__ import annotations

import asyncio
import ssl
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from rover_bus.auth import certificates
from rover_bus.auth.vault import Vault
from rover_bus.cli import page_service
from rover_bus.cli.findings import judge_clocks, look_at_certificates
from rover_bus.cli.home import Home
from rover_bus.cli.http_options import HttpOptions
from rover_bus.cli.own_page import OwnPage
from rover_bus.cli.tended_broker import RenewedCertificate

ADDRESS = "192.0.2.1"  # nothing listens there


@pytest.mark.parametrize(
    ("ahead_s", "verdict", "says"),
    [
        ({}, None, ""),
        ({"a": 0.1, "b": -4.0}, "ok", "clocks agree within 5 s"),
        ({"a": 0.1, "b": 301.0}, "note", "b by +301 s"),
        ({"a": -7.4}, "note", "a by -7 s"),
        ({"a": -60.0, "b": -61.0}, "note", "all hosts differ from the broker's: its own is wrong"),
    ],
)
def test_clocks_that_differ_are_named(ahead_s: dict[str, float], verdict: str | None, says: str) -> None:
    found = judge_clocks(ahead_s)
    assert [each.verdict for each in found] == ([verdict] if verdict else [])
    assert all(says in each.what for each in found)


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    vault = Vault(tmp_path / "auth")
    vault.certificate(ADDRESS)
    return vault


def verdicts(vault: Vault, now: datetime) -> list[tuple[str, str]]:
    return [(each.verdict, each.what.split(" (")[0]) for each in look_at_certificates(vault.root, now)]


def test_certificates_are_told_before_they_end(vault: Vault) -> None:
    now = certificates.now_utc()
    assert verdicts(vault, now) == [
        ("ok", "the broker's certificate ends in 90 days"),
        ("ok", "the stack's authority's certificate ends in 7300 days"),
    ]
    assert verdicts(vault, now + timedelta(days=66))[0] == (
        "note",
        "the broker's certificate ends in 24 days",
    )
    assert verdicts(vault, now + timedelta(days=91.5))[0] == (
        "bad",
        "the broker's certificate has ended 2 days ago",
    )
    assert verdicts(vault, now + timedelta(days=7000))[1][0] == "note"
    (vault.root / "certificates" / "broker.pem").write_text("damaged")
    assert verdicts(vault, now)[0][0] == "bad"
    assert list(look_at_certificates(vault.root / "absent", now)) == []


def test_a_page_shows_a_new_certificate_without_a_restart(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, now = vault.certificate(ADDRESS, served="page"), certificates.now_utc()
    first = files.certificate.read_text()
    page, said = OwnPage(Home(tmp_path), ADDRESS), list[str]()

    def tended() -> RenewedCertificate:
        return RenewedCertificate("page", lambda: page.renew(vault), said.append)

    tended().mend()
    assert files.certificate.read_text() == first, "it has time left"
    monkeypatch.setattr(page_service, "RENEWED_S", 0.01)

    async def shown() -> tuple[str, str]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        options = HttpOptions(certificate=str(files.certificate), key=str(files.key))
        context.load_cert_chain(files.certificate, files.key)
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
        renewing = asyncio.create_task(page_service._renew(context, options))
        place = server.sockets[0].getsockname()[:2]
        before = await asyncio.to_thread(ssl.get_server_certificate, place)
        monkeypatch.setattr(certificates, "now_utc", lambda: now + timedelta(days=62))
        tended().mend()
        after = before
        while after == before:
            after = await asyncio.to_thread(ssl.get_server_certificate, place)
        renewing.cancel()
        server.close()
        return before, after

    before, after = asyncio.run(asyncio.wait_for(shown(), 60.0))
    assert before.strip() == first.strip()
    assert after.strip() == files.certificate.read_text().strip()
    assert said == []


def test_a_full_disk_is_said_and_ends_nothing(vault: Vault, tmp_path: Path) -> None:
    said = list[str]()

    def full() -> None:
        raise OSError(28, "No space left on device")

    RenewedCertificate("page", full, said.append).mend()
    assert "the page's certificate cannot be renewed" in said[0]
