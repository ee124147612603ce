"""Which proxy leads to an API server: the one that the environment names for it, as kubectl has it."""

from __future__ import annotations

import pytest

from rover_bus.kube.sessions import proxy_of

PROXY = "http://user:word@proxy.example:3128"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", "10.0.0.1,.internal")


@pytest.mark.parametrize(
    ("address", "proxy"),
    [
        ("https://api.example:6443", PROXY),
        ("https://10.0.0.1:443", None),
        ("https://api.internal:6443", None),
        ("http://api.example:8080", None),
        ("", None),
    ],
)
def test_a_proxy_of_the_environment_is_taken_unless_it_excepts_the_server(
    address: str, proxy: str | None
) -> None:
    assert proxy_of(address) == proxy
