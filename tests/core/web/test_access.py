"""Who may ask for what: tokens and their rights, names of hosts, other sites. Each rule refuses alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from rover_bus.auth.page_tokens import PageTokens
from rover_bus.events.errors import InputError
from rover_bus.web.access import Access, Caller, HttpRefusal

HOST = {"Host": "127.0.0.1:8642"}
SENT = {"Content-Type": "application/json"}


@pytest.fixture
def tokens(tmp_path: Path) -> PageTokens:
    return PageTokens(tmp_path / "page" / "tokens")


def bearer(token: str) -> dict[str, str]:
    return {**HOST, "Authorization": f"Bearer {token}"}


def status(judged: Caller | HttpRefusal) -> int:
    return judged.status if isinstance(judged, HttpRefusal) else 200


@pytest.mark.parametrize(
    ("right", "allowed"),
    [("act", {"act", "look", "metrics"}), ("look", {"look", "metrics"}), ("metrics", {"metrics"})],
)
def test_beyond_loopback_a_token_gives_its_right_and_what_that_implies_and_nothing_else(
    tokens: PageTokens, right, allowed
) -> None:
    access = Access(tokens, frozenset({"10.0.0.1"}), free=False)
    shown = {**bearer(tokens.make("ada", (right,))), "Host": "10.0.0.1"}
    for need in ("look", "act", "metrics"):
        judged = access.judge("GET", need, shown)
        assert judged == Caller("ada") if need in allowed else status(judged) == 403
        assert status(access.judge("GET", need, {"Host": "10.0.0.1"})) == 401
        assert status(access.judge("GET", need, {**shown, "Authorization": "Bearer other"})) == 401
    assert access.judge("GET", "nothing", {}) == Caller()


def test_on_loopback_looking_needs_no_token_and_acting_does(tokens: PageTokens) -> None:
    access = Access(tokens)
    assert access.judge("GET", "look", HOST) == access.judge("GET", "metrics", HOST) == Caller()
    assert status(access.judge("POST", "act", {**HOST, **SENT})) == 401
    assert access.judge("POST", "act", {**bearer(tokens.make("ada", ("act",))), **SENT}) == Caller("ada")
    assert status(access.judge("POST", "act", {**bearer(tokens.make("eve", ("look",))), **SENT})) == 403


def test_metrics_are_open_by_a_value_alone(tokens: PageTokens) -> None:
    for opened in (False, True):
        access = Access(tokens, frozenset({"web"}), free=False, open_metrics=opened)
        assert status(access.judge("GET", "metrics", {"Host": "web"})) == (200 if opened else 401)
        assert status(access.judge("GET", "look", {"Host": "web"})) == 401


@pytest.mark.parametrize("host", ["", "evil.example", "evil.example:8642", "[", "127.0.0.1.evil.example"])
def test_a_foreign_name_that_resolves_to_loopback_reads_nothing(tokens: PageTokens, host: str) -> None:
    assert status(Access(tokens).judge("GET", "look", {"Host": host})) == 421


def test_a_loopback_name_is_none_of_a_server_beyond_loopback(tokens: PageTokens) -> None:
    access = Access(tokens, frozenset({"10.0.0.1"}), free=False)
    assert status(access.judge("GET", "look", bearer(tokens.make("ada", ("look",))))) == 421


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({}, 200),
        ({"Origin": "http://127.0.0.1:8642", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:9"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_an_action_is_taken_from_our_own_page_or_from_no_page(
    tokens: PageTokens, sent, expected: int
) -> None:
    shown = {**bearer(tokens.make("ada", ("act",))), **SENT, **sent}
    assert status(Access(tokens).judge("POST", "act", shown)) == expected


def test_a_token_is_kept_as_a_digest_for_its_owner_alone_and_ends_when_it_is_removed(
    tokens: PageTokens,
) -> None:
    text = tokens.make("ada", ("act",))
    assert text not in tokens.path.read_text()
    assert tokens.path.stat().st_mode & 0o077 == 0
    other = PageTokens(tokens.path)
    assert (found := other.holder(text)) is not None
    assert found.name == "ada"
    assert tokens.remove("ada") == 1
    assert other.holder(text) is None
    with pytest.raises(InputError):
        tokens.make("a\nb", ("act",))
