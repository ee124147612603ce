"""Files that hold secrets: for their owner alone, written whole or not at all.

Used by vault.py, host_vault.py and users.py; apart, because nothing of keys or rights is known here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rover_bus.events.errors import InputError

MOST_SECRET_BYTES = 256
PART = "part"  # beside keys that are not all of a stack's


class CertificateFiles(NamedTuple):
    """Where what a socket shows and proves is."""

    certificate: Path
    key: Path


def read_or_make(path: Path, make: Callable[[], str]) -> str:
    """Return the secret in a file; make it where there is none, whole or not at all. Raises InputError when others can read it."""
    if not path.exists():
        check_whole(path)
        write_secret(path, make() + "\n", first=True)
    if path.stat().st_mode & 0o077:
        raise InputError(f"others can read the secret in {path}: `chmod 600 {path}`, and replace it")
    with path.open() as file:
        secret = file.read(MOST_SECRET_BYTES).strip()
    if not secret:
        raise InputError(f"{path} is empty: restore the directory {path.parent.parent} from a backup")
    return secret


def check_whole(path: Path) -> None:
    """Raise InputError for a key that is not among a part of the keys: a new one would be another than the stack's."""
    if (path.parent / PART).exists():
        raise InputError(
            f"this process has no key {path.stem!r}: what needs it is done by another of the stack"
        )


def write_secret(path: Path, text: str, *, first: bool = False, owner: int = -1) -> None:
    """Write a file for its owner alone; `first`: unless another process was first. `owner`: another user, whose it shall be."""
    for directory in (path.parent.parent, path.parent):
        directory.mkdir(mode=0o700, exist_ok=True)
    descriptor, fresh = tempfile.mkstemp(dir=path.parent, prefix=".fresh-")  # mode 0600
    try:
        with open(descriptor, "w") as file:
            file.write(text)
            if owner >= 0:
                os.fchown(file.fileno(), owner, owner)
        if not first:
            os.replace(fresh, path)
        else:
            with suppress(FileExistsError):
                os.link(fresh, path)
    finally:
        Path(fresh).unlink(missing_ok=True)
