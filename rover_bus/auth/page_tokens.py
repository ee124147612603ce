"""Tokens by which people and programs are known over HTTP: a name and rights each, kept as digests.

Made by `rover auth page-token`, read by what serves HTTP (rover_bus/web) for each request. A token is 32 random bytes, so a plain
digest keeps it: there is nothing to guess. The file is its owner's alone, and read again when it changes.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from pathlib import Path
from typing import Literal

import msgspec

from rover_bus.auth.secret_files import write_secret
from rover_bus.events.errors import InputError

PageRight = Literal["look", "act", "metrics"]
PREFIX = "rover_"  # by which scanners of repositories know it
LONGEST_NAME = 64


class PageToken(msgspec.Struct, frozen=True, kw_only=True):
    """One token. `name`: what facts bear as their author; `digest`: SHA-256 of the token, hexadecimal."""

    name: str
    digest: str
    rights: tuple[PageRight, ...]
    made_s: int = 0


class PageTokens:
    """The tokens of a stack, in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_at = (0, 0)  # time and size of the file when it was read
        self._known: dict[str, PageToken] = {}

    @property
    def all(self) -> list[PageToken]:
        """Every token, in the order in which they were made. Raises InputError for a file that is none of ours."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=list[PageToken])
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            raise InputError(f"{self.path} holds no tokens for HTTP: {error}") from None

    def make(self, name: str, rights: tuple[PageRight, ...]) -> str:
        """Return a new token; it is written nowhere. Raises InputError for a name that no log can bear."""
        if not name or len(name) > LONGEST_NAME or not name.isprintable():
            raise InputError(f"a token's name has 1 to {LONGEST_NAME} printable letters, not {name!r}")
        text = PREFIX + secrets.token_urlsafe(32)
        made = PageToken(name=name, digest=_digest(text), rights=rights, made_s=int(time.time()))
        self._write([*self.all, made])
        return text

    def remove(self, name: str) -> int:
        """Take all tokens of a name away; return how many there were."""
        there = self.all
        left = [each for each in there if each.name != name]
        if len(left) < len(there):
            self._write(left)
        return len(there) - len(left)

    def holder(self, text: str) -> PageToken | None:
        """Return whose token this is, None for any other text."""
        try:
            state = self.path.stat()
            at = state.st_mtime_ns, state.st_size
        except OSError:
            at = (0, 0)
        if at != self._read_at:
            self._known = {each.digest: each for each in self.all} if at != (0, 0) else {}
            self._read_at = at
        return self._known.get(_digest(text))

    def _write(self, tokens: list[PageToken]) -> None:
        write_secret(self.path, msgspec.json.encode(tokens).decode() + "\n")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
