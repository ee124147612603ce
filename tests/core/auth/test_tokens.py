"""Tokens as NATS signs them, checked by a reader of our own; seeds and keys by the library that makes them."""

from __future__ import annotations

import base64
import json
from typing import Any

import nkeys
import pytest

from rover_bus.auth import tokens
from rover_bus.events import credentials
from rover_bus.events.errors import InputError


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def claims_of(token: str, signer_seed: str) -> dict[str, Any]:
    head, body, signature = token.split(".")
    assert json.loads(decoded(head)) == {"typ": "JWT", "alg": "ed25519-nkey"}
    assert nkeys.from_seed(bytearray(signer_seed.encode())).verify(
        f"{head}.{body}".encode(), decoded(signature)
    )
    claims: dict[str, Any] = json.loads(decoded(body))
    assert claims["iss"] == tokens.public(signer_seed)
    return claims


def seed(kind: tokens.Kind, fill: int = 1) -> str:
    return tokens.new_seed(kind, bytes([fill]) * 32)


@pytest.mark.parametrize(("kind", "letter"), [("operator", "O"), ("account", "A"), ("user", "U")])
def test_a_key_shows_what_it_is_a_key_of(kind: tokens.Kind, letter: str) -> None:
    assert seed(kind).startswith(f"S{letter}")
    assert tokens.public(seed(kind)).startswith(letter)
    assert tokens.public(seed(kind)) == tokens.public(seed(kind)) != tokens.public(seed(kind, 2))


def test_a_user_bears_its_tags_and_no_rights_of_its_own() -> None:
    """A scoped signing key gives the rights: the server refuses a token that states some itself."""
    account, user = tokens.public(seed("account")), tokens.public(seed("user"))
    token = tokens.user_token(
        seed("account", 2), account, user, "demo/worker-0", {"job": "Demo", "host": "h"}, 7
    )
    claims = claims_of(token, seed("account", 2))
    assert claims["sub"] == user
    assert claims["iat"] == 7
    assert claims["nats"] == {
        "type": "user",
        "issuer_account": account,
        "tags": ["host:h", "job:Demo"],
        "version": 2,
    }


def test_an_operator_signs_itself_and_its_accounts() -> None:
    own = claims_of(tokens.operator_token(seed("operator"), "rover", "ASYS", 7), seed("operator"))
    assert own["sub"] == own["iss"]
    assert own["nats"]["system_account"] == "ASYS"
    body = tokens.account_body(stores=False, scopes=[], exports=[], imports=[])
    account = tokens.public(seed("account"))
    made = claims_of(tokens.account_token(seed("operator"), account, "members", body, 7), seed("operator"))
    assert (made["sub"], made["name"], made["nats"]["type"]) == (account, "members", "account")


@pytest.mark.parametrize("text", ["", "SUAB", "not a seed", "S" * 58])
def test_what_is_no_seed_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(InputError) as refused:
        tokens.public(text)
    assert not text or text not in str(refused.value)


def test_credentials_are_read_as_they_are_written_and_never_shown() -> None:
    user = seed("user")
    token = tokens.user_token(seed("account"), "A", tokens.public(user), "n", {}, 7)
    made = credentials.Credential(token, user, "sockets-secret", messages="messages-secret")
    text = credentials.write(made)
    assert credentials.read(text) == made
    assert credentials.read(text).user == tokens.public(user)  # type: ignore[union-attr]
    assert made.inbox == f"_INBOX.{tokens.public(user)}"
    assert credentials.of_sockets({credentials.VARIABLE: text}, "") == b"sockets-secret"
    assert (
        made.message_id("1") == made.message_id("1") != credentials.Credential(messages="x").message_id("1")
    )
    for secret in (user, token, "sockets-secret", "messages-secret"):
        assert secret not in repr(made)
    verifier = nkeys.from_seed(bytearray(user.encode()))
    assert verifier.verify(b"nonce", base64.b64decode(made.sign("nonce")))


@pytest.mark.parametrize(
    "text", ["", "one-word", "x" * (credentials.MOST_BYTES + 1), "-----BEGIN NATS USER JWT-----"]
)
def test_any_other_text_is_one_word(text: str) -> None:
    assert credentials.read(text) is None
    assert credentials.of_sockets({credentials.VARIABLE: text}, "") == text.encode()


def test_a_token_that_is_none_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="hold no token"):
        _ = credentials.Credential("a.b.c", "s").user
    with pytest.raises(InputError, match="no usable seed"):
        credentials.Credential("a.b.c", "SUAB").sign("nonce")
