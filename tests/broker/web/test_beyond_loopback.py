"""The page where other machines reach it: TLS by the stack's authority, a token for everything but the two probes."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from asked_page import AskedPage, page_of
from patience import until

from rover_bus.auth.key_folder import part_of
from rover_bus.auth.vault import Vault
from rover_bus.cli.stack import Here, RunningStack

pytestmark = pytest.mark.broker


def own_address() -> str:
    """Return an address of this machine that is not loopback's; skip where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has loopback alone")
        return str(probe.getsockname()[0])


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    address = own_address()
    with RunningStack(
        tmp_path_factory.mktemp("beyond") / "state", here=Here(bind=address, page=address)
    ) as running:
        yield running


def ask(stack: RunningStack, path: str, **headers: str) -> int:
    """Return the status of an answer over TLS, trusted by the stack's authority alone."""
    named = urlsplit(stack.page_url)
    trust = ssl.create_default_context(cafile=str(stack.home.auth / "authority.pem"))
    connection = http.client.HTTPSConnection(named.hostname or "", named.port, context=trust, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_probes_are_open_and_all_else_needs_a_token_of_its_right_over_tls(stack: RunningStack) -> None:
    assert stack.page_url.startswith("https://")
    until(lambda: ask(stack, "/readyz") == 200, "readiness")
    page = page_of(stack)
    look, scrape = page.token("eve", "--look"), page.token("prometheus", "--metrics")
    assert ask(stack, "/healthz") == 200
    for path in ("/api/v1/cluster", "/api/v1/events/stream", "/metrics"):
        assert ask(stack, path) == 401
    assert ask(stack, "/api/v1/cluster", Authorization=f"Bearer {look}") == 200
    assert ask(stack, "/metrics", Authorization=f"Bearer {scrape}") == 200
    assert ask(stack, "/api/v1/cluster", Authorization=f"Bearer {scrape}") == 403
    assert ask(stack, "/api/v1/cluster", Authorization=f"Bearer {look}", Host="localhost") == 421


def test_it_says_nothing_in_the_clear(stack: RunningStack) -> None:
    named = urlsplit(stack.page_url)
    with socket.create_connection((named.hostname or "", named.port or 0), timeout=30) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP/")


def test_a_process_with_its_part_of_the_keys_alone_shows_the_stack_and_can_sign_nothing_else(
    stack: RunningStack, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    files = part_of(Vault(stack.home.auth), "web")
    for name, text in files.items():
        (keys / name).write_text(text)
    assert [name for name in files if name.endswith(".nk")] == ["role-web.nk"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["web", "--url", stack.url, "--keys", str(keys), "--dir", str(tmp_path / "s")]
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen(
            [sys.executable, "-m", "rover_bus.cli.entry", *words, "--listen", f"127.0.0.1:{port}"], stderr=log
        )
    try:
        page = AskedPage(f"http://127.0.0.1:{port}/", tmp_path)
        until(lambda: page.ready, "readiness", more=lambda: (tmp_path / "log").read_text())
        assert json.loads(page.ask("/api/v1/cluster").body)["brain"] is True
    finally:
        running.terminate()
        assert running.wait(60) == 0
