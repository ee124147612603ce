"""Tokens as NATS signs them: claims of operators, accounts and users, in the form of JWT that a server in operator mode reads.

Fed by accounts.py and vault.py; feeds the server's configuration and credentials. Apart because it is the whole of the format, and
pure: keys and times come in. The encoding is `header.claims.signature`, base64 without padding, the algorithm `ed25519-nkey`
(NATS ADR-14, github.com/nats-io/jwt version 2).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import lru_cache
from typing import Any, Literal

import nkeys

from rover_bus.events.errors import InputError

Kind = Literal["operator", "account", "user"]
PREFIXES: dict[Kind, int] = {
    "operator": nkeys.PREFIX_BYTE_OPERATOR,
    "account": nkeys.PREFIX_BYTE_ACCOUNT,
    "user": nkeys.PREFIX_BYTE_USER,
}
SEED_BYTES = 32
NO_LIMITS = {
    "subs": -1,
    "data": -1,
    "payload": -1,
    "imports": -1,
    "exports": -1,
    "wildcards": True,
    "conn": -1,
    "leaf": -1,
}
STORES = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
NO_USER_LIMITS = {"subs": -1, "data": -1, "payload": -1}
_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}


def new_seed(kind: Kind, random: bytes) -> str:
    """Return the seed of a key. `random`: 32 bytes that are known nowhere else."""
    if len(random) != SEED_BYTES:
        raise ValueError(f"a seed is made of {SEED_BYTES} bytes, not of {len(random)}")
    return bytes(nkeys.encode_seed(random, PREFIXES[kind])).decode()


@lru_cache(maxsize=4096)  # an account names those of all runs, each time that it is told
def public(seed: str) -> str:
    """Return the public key of a seed. Raises InputError for a text that is no seed."""
    return bytes(_key(seed).public_key).decode()


def operator_token(seed: str, name: str, system_account: str, now_s: int) -> str:
    """Return the operator's token, which it signs itself."""
    return signed(public(seed), name, seed, {"type": "operator", "system_account": system_account}, now_s)


def account_token(operator_seed: str, account: str, name: str, body: dict[str, Any], now_s: int) -> str:
    """Return an account's token. `account`: its public key; `body`: as `account_body` makes it."""
    return signed(account, name, operator_seed, body, now_s)


def account_body(
    *,
    stores: bool,
    scopes: list[dict[str, Any]],
    exports: list[dict[str, Any]],
    imports: list[dict[str, Any]],
    store_bytes: int = 0,
) -> dict[str, Any]:
    """Return the claims of an account. `stores`: whether it has JetStream, `store_bytes`: at most so much on disk, 0: as the
    server has; `scopes`: signing keys with what their users may do.
    """
    return {
        "type": "account",
        "limits": {**NO_LIMITS, **({**STORES, "disk_storage": store_bytes or -1} if stores else {})},
        "signing_keys": scopes,
        "exports": exports,
        "imports": imports,
        "default_permissions": {"pub": {}, "sub": {}},
    }


def scope(key: str, role: str, permissions: dict[str, Any]) -> dict[str, Any]:
    """Return a signing key that can only make users with these rights. `key`: public."""
    return {
        "kind": "user_scope",
        "key": key,
        "role": role,
        "template": {**permissions, **NO_USER_LIMITS},
    }


def user_token(  # noqa: PLR0913 - what a token says
    signing_seed: str,
    account: str,
    user: str,
    name: str,
    tags: dict[str, str],
    now_s: int,
    expires_s: int = 0,
) -> str:
    """Return the token of a user whose rights are its signing key's, filled in by its tags. `expires_s`: 0, never."""
    body = {"type": "user", "issuer_account": account, "tags": [f"{key}:{tags[key]}" for key in sorted(tags)]}
    return signed(user, name, signing_seed, body, now_s, expires_s)


def check_user(key: str) -> str:
    """Return the public key of a user. Raises InputError for a text that is none."""
    if not re.fullmatch(r"U[A-Z2-7]{55}", key):
        raise InputError("this is no public key of a NATS user")
    return key


def signed(subject: str, name: str, seed: str, body: dict[str, Any], now_s: int, expires_s: int = 0) -> str:
    """Return a token about `subject`, a public key, that `seed` signs. `body`: what NATS reads in it; `expires_s`: 0, never."""
    key = _key(seed)
    claims: dict[str, Any] = {
        "iat": now_s,
        "iss": bytes(key.public_key).decode(),
        "name": name,
        "nats": {**body, "version": 2},
        "sub": subject,
    }
    if expires_s:
        claims["exp"] = expires_s
    digest = hashlib.sha256(_json(claims)).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    said = f"{_encode(_json(_HEADER))}.{_encode(_json(claims))}"
    return f"{said}.{_encode(key.sign(said.encode()))}"


def _key(seed: str) -> Any:
    try:
        return nkeys.from_seed(bytearray(seed.encode()))
    except (nkeys.NkeysError, ValueError) as error:
        raise InputError(f"this is no seed of a NATS key ({type(error).__name__})") from None


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
