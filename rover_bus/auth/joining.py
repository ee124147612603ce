"""How a host joins: the token that a person carries to it, the keys that it makes, and what it is granted (docs/design/0052).

A token holds a user that may do one thing on the bus: ask, once, to be a host. What is granted is sealed to a key that the asker
made and that no other process has, so whatever else hears the answer cannot read it. Pure but for the keys, which are random.
Fed by `rover auth token`, `rover join` and, on the stack's machine, by cli/admitting.py.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from pathlib import Path
from typing import Annotated

import msgspec
from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, PublicKey, SealedBox

from rover_bus.auth import tokens
from rover_bus.events import credentials
from rover_bus.events.errors import AccessDenied, InputError
from rover_bus.events.join_requests import HostJoinRequest
from rover_bus.events.subjects import name as check_name

MOST_TOKEN_BYTES = 64 << 10
FINGERPRINT = "sha256:"
Text = Annotated[str, msgspec.Meta(max_length=8192)]


class JoinToken(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="rover.join_token.v1"):
    """What a person carries to a host. `fingerprint`: of the stack's authority; `expires_s`: Unix time at which it ends."""

    url: Text
    fingerprint: Text
    authority: Text
    expires_s: int
    user_token: Text
    user_seed: Text

    @property
    def credential(self) -> credentials.Credential:
        """What shows it to the broker."""
        return credentials.Credential(self.user_token, self.user_seed, authority=self.authority)


class HostGrant(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="rover.host_grant.v1"):
    """What a host gets: never a key by which accounts or roles are given rights.

    `accounts`: public keys, by name; `seeds`: from which it derives the keys that sign members of a run; `sockets`: the secret of
    daemons and, derived, of runs; `daemon_token`: the rights of its daemon, whose own seed never leaves it.
    """

    authority: Text
    accounts: dict[str, Text]
    seeds: dict[str, Text]
    sockets: Text
    daemon_token: Text


def fingerprint_of(authority: str) -> str:
    """Return the fingerprint of a certificate (base64 of its DER), for people to compare. Raises InputError."""
    try:
        data = base64.b64decode(authority, validate=True)
    except ValueError:
        raise InputError("the authority's certificate is not base64") from None
    return FINGERPRINT + hashlib.sha256(data).hexdigest()


def write_token(token: JoinToken) -> str:
    """Return the text of a token file."""
    return msgspec.json.format(msgspec.json.encode(token), indent=2).decode() + "\n"


def read_token(path: Path) -> JoinToken:
    """Return the token in a file. Raises InputError for what is none, and when others can read it."""
    try:
        if path.stat().st_mode & 0o077:
            raise InputError(
                f"others can read the token in {path}: `chmod 600 {path}`, or ask for another one"
            )
        with path.open("rb") as file:
            token = msgspec.json.decode(file.read(MOST_TOKEN_BYTES), type=JoinToken)
    except OSError as error:
        raise InputError(f"cannot read the token in {path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InputError(f"{path} is no token: take the file that `rover auth token` wrote") from None
    if token.fingerprint != fingerprint_of(token.authority):
        raise AccessDenied(f"the token in {path} was changed: its certificate has another fingerprint")
    return token


class JoiningKeys:
    """The keys that a host makes for itself: its daemon's, and the one that its grant is sealed to."""

    def __init__(self) -> None:
        self.daemon_seed = tokens.new_seed("user", secrets.token_bytes(tokens.SEED_BYTES))
        self._private = PrivateKey.generate()

    def request(self, host: str) -> HostJoinRequest:
        """Return what to ask. Raises NameRefused."""
        sealed_to = bytes(self._private.public_key)
        return HostJoinRequest(
            host=check_name(host, "host"), user=tokens.public(self.daemon_seed), seal=sealed_to
        )

    def unseal(self, sealed: bytes) -> HostGrant:
        """Return what was granted. Raises AccessDenied for what was not sealed for us."""
        try:
            return msgspec.msgpack.decode(SealedBox(self._private).decrypt(sealed), type=HostGrant)
        except (CryptoError, msgspec.DecodeError, ValueError):
            raise AccessDenied(
                "the answer to the request to join cannot be read: ask again with another token"
            ) from None


def seal(grant: HostGrant, key: bytes) -> bytes:
    """Return a grant that the holder of a key alone can read. Raises InputError for a key that is none."""
    try:
        return bytes(SealedBox(PublicKey(key)).encrypt(msgspec.msgpack.encode(grant)))
    except (CryptoError, ValueError, TypeError):
        raise InputError(
            "the key to seal the answer to is none: join with a release like the stack's"
        ) from None
