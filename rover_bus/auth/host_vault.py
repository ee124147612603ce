"""What a joined host keeps of its stack: a part of a vault, which signs members of jobs and nothing else.

In its directory, which only its owner can enter: `host.json` (which stack, which host, at which address), `authority.pem`,
`keys/account-*.pub`, `keys/sockets`, `keys/role-*.nk` (of members, from which the keys of each run are derived) and
`creds/daemon-HOST.creds`.
No key of the operator, of an account or of a role that a process of the stack has is among them, and none is ever made here.
Fed by `rover join`; feeds the host's daemon. Apart from vault.py because it is the part that leaves the stack's machine.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rover_bus.auth.joining import HostGrant, JoiningKeys, JoinToken, fingerprint_of
from rover_bus.auth.key_names import ROOT
from rover_bus.auth.roles import MEMBER_ROLES
from rover_bus.auth.secret_files import write_secret
from rover_bus.auth.vault import Vault
from rover_bus.events import credentials
from rover_bus.events.errors import AccessDenied, InputError

RECORD = "host.json"


class HostRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="rover.host.v1"):
    """Which host of which stack this is. `bind`: where others reach it, "": as it reaches the broker."""

    url: str
    host: str
    bind: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class HostVault(Vault):
    """The part of a stack's vault that one host has."""

    @classmethod
    def beside(cls, credentials_file: str | Path) -> HostVault | None:
        """Return the one that a credentials file lies in; None for a file from elsewhere."""
        vault = cls(Path(credentials_file).absolute().parent.parent)
        return vault if (vault.root / RECORD).exists() else None

    @property
    def record(self) -> HostRecord:
        """Which host this is. Raises InputError for a directory that was changed by hand."""
        try:
            return msgspec.json.decode((self.root / RECORD).read_bytes(), type=HostRecord)
        except (OSError, msgspec.DecodeError) as error:
            raise InputError(
                f"{self.root / RECORD} does not say which host this is ({error}): remove {self.root} and join again"
            ) from None

    @property
    def is_joined(self) -> bool:
        """Whether this host has joined a stack."""
        return (self.root / RECORD).exists()

    @property
    def is_of_a_stack(self) -> bool:
        """Whether all keys of a stack are here: its own machine, which is joined by others."""
        return self._seed_file(ROOT).exists()

    def keep(self, token: JoinToken, keys: JoiningKeys, grant: HostGrant, host: str, bind: str) -> None:
        """Write down what was granted; the record last, so that a host has joined wholly or not at all. Raises AccessDenied."""
        if fingerprint_of(grant.authority) != token.fingerprint:
            raise AccessDenied("the answer names another authority than the token: ask for another token")
        for name, seed in grant.seeds.items():
            if name not in {f"role-{role}" for role in MEMBER_ROLES}:
                raise AccessDenied(
                    f"the stack offers the key {name!r}, which no host needs: join a stack of this release"
                )
            write_secret(self.root / "keys" / f"{name}.nk", seed + "\n")
        for name, key in grant.accounts.items():
            if not re.fullmatch(r"account-[A-Za-z0-9_-]+", name):
                raise AccessDenied(f"the stack names an account {name!r}: join a stack of this release")
            write_secret(self.root / "keys" / f"{name}.pub", key + "\n")
        write_secret(self.root / "keys" / "sockets", grant.sockets + "\n")
        write_secret(self.authority_file, _pem(grant.authority))
        daemon = credentials.Credential(
            grant.daemon_token,
            keys.daemon_seed,
            authority=grant.authority,
            messages=self.message_secret("control"),
        )
        write_secret(self.credentials_file("daemon", host), credentials.write(daemon))
        record = HostRecord(url=token.url, host=host, bind=bind, fingerprint=token.fingerprint)
        write_secret(self.root / RECORD, msgspec.json.encode(record).decode() + "\n")

    def _seed(self, name: str) -> str:
        if not self._seed_file(name).exists():
            raise InputError(
                f"this host has no key {name!r}: what needs it is done on the stack's own machine"
            )
        return Vault._seed(self, name)


def _pem(authority: str) -> str:
    lines = "\n".join(textwrap.wrap(authority, 64))
    return f"-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n"
