"""Taking rights back: of a user, of all people of a tenant, and as a folder of keys says (docs/design/0080).

Used by `rover auth revoke` and `rover kube revoke`, which note it where the keys are, and by the Brain's process, which has only a
part of them and tells the broker.
"""

from __future__ import annotations

import time
from pathlib import Path

from rover_bus.auth.key_names import observers_of
from rover_bus.auth.tokens import check_user
from rover_bus.auth.users import EVERYONE, read_revoked
from rover_bus.auth.vault import Vault
from rover_bus.events.errors import InputError
from rover_bus.events.subjects import DEFAULT_TENANT


def revoke_user(vault: Vault, user: str, account: str) -> str:
    """Take all rights from a user of one of the stack's accounts, both given by public keys; return the account to tell the broker.

    Raises InputError for a key that is none, or an account that is not this stack's.
    """
    known = {vault.public_key(each): each for each in vault.every_account}
    if account not in known:
        raise InputError("these credentials are of another stack: revoke them where they were made")
    vault.users.note_revoked(check_user(user), known[account], int(time.time()))
    return known[account]


def revoke_key(vault: Vault, user: str) -> None:
    """Take all rights from a user by the public key alone, of which no account is known: in each of them. Raises InputError."""
    for account in vault.every_account:
        vault.users.note_revoked(check_user(user), account, int(time.time()))


def revoke_people(vault: Vault, tenant: str) -> None:
    """Take all rights from the people of a tenant whose credentials were made until now. Raises InputError."""
    if tenant == DEFAULT_TENANT or tenant not in vault.tenants:
        there = ", ".join(vault.tenants) or "none"
        raise InputError(
            f"{tenant!r} is no tenant whose people are told apart: tenants are {there}; others are named each by a file or a key"
        )
    vault.users.note_revoked(EVERYONE, observers_of(tenant), int(time.time()))


def take_revoked(vault: Vault, folder: Path) -> list[str]:
    """Have a vault know what a folder of keys says of revoked users; return the accounts of which it says something new.

    Raises OSError where the folder says nothing, ValueError where it cannot be read.
    """
    said, former = read_revoked(folder), vault.users.revoked
    changed = [each for each in vault.every_account if said.get(each, {}) != former.get(each, {})]
    if changed:
        vault.users.write_revoked(said)
    return changed
