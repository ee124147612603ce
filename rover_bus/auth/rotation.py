"""New keys for members of jobs, once a host that holds the present ones is lost: made, sealed for each host that stays, taken in.

What signs members, and what they prove to one another's sockets, is derived from a few secrets that every host of a stack has
(vault.py): a host that is lost has them for ever, so all of them are replaced, and it is given none. Fed by `rover auth`
(cli/rotating.py); feeds the bucket in which hosts look for theirs, and their daemons (cli/renewing.py). Each host's are sealed to
the key of its daemon, which never left it.
"""

from __future__ import annotations

import base64
import hashlib
import secrets

import msgspec
import nkeys
from nacl.exceptions import CryptoError
from nacl.public import SealedBox
from nacl.signing import SigningKey, VerifyKey

from rover_bus.auth import tokens
from rover_bus.auth.key_names import CONTROL
from rover_bus.auth.roles import MEMBER_ROLES
from rover_bus.auth.secret_files import write_secret
from rover_bus.auth.vault import Vault
from rover_bus.events.errors import AccessDenied

KEYS = tuple(f"role-{role}" for role in MEMBER_ROLES)
_RECORD = "rotated"


class MemberKeys(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="rover.member_keys.v1"):
    """What a host signs members with. `seeds`: of the roles, by the names of their keys; `sockets`: from which the secrets of runs'
    and of daemons' sockets are derived.
    """

    seeds: dict[str, str]
    sockets: str

    @property
    def digest(self) -> str:
        """What these are called: nothing of them can be found by it."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()[:16]


def fresh_keys() -> MemberKeys:
    """Return new ones, known nowhere else."""
    random = {name: secrets.token_bytes(tokens.SEED_BYTES) for name in KEYS}
    seeds = {name: tokens.new_seed("account", each) for name, each in random.items()}
    return MemberKeys(seeds=seeds, sockets=secrets.token_hex(tokens.SEED_BYTES))


def take_keys(vault: Vault, keys: MemberKeys) -> None:
    """Have a vault sign members with these from now on. Raises AccessDenied for keys that no host needs."""
    if set(keys.seeds) != set(KEYS) or not keys.sockets.isalnum():
        raise AccessDenied("the stack offers keys that no host needs: run the stack's release here")
    for seed in keys.seeds.values():
        tokens.public(seed)  # raises for what is no seed
    for name, seed in keys.seeds.items():
        write_secret(vault.root / "keys" / f"{name}.nk", seed + "\n")
    write_secret(vault.root / "keys" / "sockets", keys.sockets + "\n")
    write_secret(vault.root / _RECORD, keys.digest + "\n")


def present_keys(vault: Vault) -> MemberKeys | None:
    """Return those that a vault signs members with; None for the first, which hosts got when they joined."""
    if not (vault.root / _RECORD).exists():
        return None
    files = {name: vault.root / "keys" / f"{name}.nk" for name in KEYS}
    seeds = {name: file.read_text().strip() for name, file in files.items()}
    return MemberKeys(seeds=seeds, sockets=vault.host_secret.decode())


def seal(keys: MemberKeys, user: str) -> bytes:
    """Return keys that the user with this public key alone can read. Raises InputError for a key that is none."""
    data = base64.b32decode(tokens.check_user(user))  # a prefix, the key, two bytes of a checksum
    return bytes(
        SealedBox(VerifyKey(data[1:33]).to_curve25519_public_key()).encrypt(msgspec.msgpack.encode(keys))
    )


def unseal(sealed: bytes, user_seed: str) -> MemberKeys:
    """Return what was sealed for a user. Raises AccessDenied for what was sealed for another."""
    _, seed = nkeys.decode_seed(user_seed.encode())
    try:
        data = SealedBox(SigningKey(seed).to_curve25519_private_key()).decrypt(sealed)
        return msgspec.msgpack.decode(data, type=MemberKeys)
    except (CryptoError, msgspec.DecodeError, ValueError):
        raise AccessDenied("keys were sealed for another host: join again with another token") from None


class KeysOffer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="rover.keys_offered.v1"):
    """What stands in the bucket of tenants for one host. `sealed`: empty for daemons that read the stack's own keys."""

    digest: str
    sealed: bytes = b""


def offer_key(user: str = "stack") -> str:
    """Return the key under which a daemon's offer stands; without a user: of those that read the stack's own keys."""
    return f"keys.{user}"


def offers(vault: Vault) -> dict[str, KeysOffer]:
    """Return what each host that has rights is to be offered, by its key in the bucket; nothing before the first rotation."""
    keys = present_keys(vault)
    if keys is None:
        return {}
    revoked = vault.users.revoked.get(CONTROL, {})
    hosts = [each.user for each in vault.users.all if each.role == "daemon" and each.user not in revoked]
    sealed = {offer_key(user): KeysOffer(digest=keys.digest, sealed=seal(keys, user)) for user in hosts}
    return {offer_key(): KeysOffer(digest=keys.digest)} | sealed


def accept(offer: bytes, vault: Vault, user_seed: str) -> None:
    """Have a vault sign with what is offered; one of the stack's own keys has it already. Raises AccessDenied, InputError."""
    try:
        read = msgspec.json.decode(offer, type=KeysOffer)
    except msgspec.DecodeError:
        raise AccessDenied(
            "the stack offers keys that cannot be read: run the stack's release here"
        ) from None
    if not vault.signs_accounts:
        take_keys(vault, unseal(read.sealed, user_seed))
    elif (keys := present_keys(vault)) is None or keys.digest != read.digest:
        raise AccessDenied(f"{vault.root} is a copy of the stack's keys from before these: copy it again")
