"""What the environment changes of requests to an API server: its proxy is asked, and a `.netrc` is not read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from rover_bus.kube.api import Api

CONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{{name: here, context: {{cluster: here, user: me}}}}]
clusters: [{{name: here, cluster: {{server: "{address}"}}}}]
users: [{{name: me, user: {{token: word}}}}]
"""
Asked = list[tuple[str, str]]
Ask = Callable[[Callable[[str], str]], Asked]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Ask a server of this machine, which is named by its address; return what it was asked, and in whose name."""

    async def main(address_of: Callable[[str], str]) -> Asked:
        asked: Asked = []

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            asked.append((str(request.url), request.headers.get("Authorization", "")))
            return web.json_response({})

        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            config = tmp_path / "config"
            config.write_text(CONFIG.format(address=address_of(site_address(runner))))
            await asked_once(str(config))
        finally:
            await runner.cleanup()
        return asked

    return lambda address_of: asyncio.run(main(address_of))


def site_address(runner: web.ServerRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"http://{host}:{port}"


async def asked_once(config: str) -> None:
    api = await Api.connect(config)
    try:
        await api.call("GET", "/api")
    finally:
        await api.close()


def test_a_netrc_that_names_the_server_changes_no_request(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request failed: a name and a password beside a token."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    [(url, name)] = ask(lambda address: address)
    assert url.endswith("/api")
    assert name == "Bearer word"


def test_the_proxy_of_the_environment_is_asked(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)

    def behind(proxy: str) -> str:
        monkeypatch.setenv("http_proxy", proxy)
        return "http://api.example:8080"

    [(url, _)] = ask(behind)
    assert url == "http://api.example:8080/api"
