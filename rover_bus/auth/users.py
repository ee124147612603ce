"""Who was given credentials that no process of the stack has (people, hosts that joined), and who has no rights any more.

Written by vault.py into its directory (`issued`, a line each, and `revoked`); feeds `rover auth users` and the claims of accounts:
by these a broker ends a revoked user's connection and lets it in no more. Members are not here: their rights end with their job.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from rover_bus.auth.secret_files import write_secret

REVOKED = "revoked"  # the file's name
EVERYONE = "*"  # all users of an account that were made until then, in NATS' words


@dataclass(frozen=True, slots=True)
class GivenUser:
    """One user who was given credentials. `user`, `account`: public keys; `of`: the tenant of a person, or the host's name."""

    user: str
    account: str
    role: str
    of: str
    made_s: int


@dataclass(frozen=True, slots=True)
class GivenUsers:
    """Those of one vault."""

    root: Path

    @property
    def all(self) -> list[GivenUser]:
        """Each once, the first first."""
        try:
            lines = (self.root / "issued").read_text().splitlines()
        except OSError:
            return []
        return list({each["user"]: GivenUser(**each) for each in map(json.loads, lines)}.values())

    def note(self, made: GivenUser) -> None:
        """Note one more. Two processes may at once: a line is appended whole."""
        line = json.dumps(asdict(made)) + "\n"
        self.root.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(self.root / "issued", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(descriptor, "a") as file:
            file.write(line)

    @property
    def revoked(self) -> dict[str, dict[str, int]]:
        """The revoked users by account (`account-control`, ...), each with the Unix second up to which its tokens are void."""
        try:
            return read_revoked(self.root)
        except OSError:
            return {}

    def note_revoked(self, user: str, account: str, at_s: int) -> None:
        """Note that a user has no rights any more."""
        revoked = self.revoked
        revoked.setdefault(account, {})[user] = at_s
        self.write_revoked(revoked)

    def write_revoked(self, revoked: dict[str, dict[str, int]]) -> None:
        """Note all of them."""
        write_secret(self.root / REVOKED, json.dumps(revoked, sort_keys=True) + "\n")


def read_revoked(folder: Path) -> dict[str, dict[str, int]]:
    """Return the revoked users of a vault, or of a folder of keys. Raises OSError where none ever was."""
    return dict(json.loads((folder / REVOKED).read_text()))
