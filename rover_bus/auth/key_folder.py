"""The keys of a stack as one flat folder of files: how a Secret of Kubernetes holds them, and how a pod has it mounted.

Made whole before anything is installed (kube/installing.py); taken into a vault by each process that is started with `--keys`. A
pod may only read the folder, and its files are its group's too; a vault's are its owner's alone, so each process has a copy.
Which runs have rights is no key: a vault that begins here knows none, until the Brain has read the facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rover_bus.auth.secret_files import write_secret
from rover_bus.auth.vault import ROOT, Vault
from rover_bus.events.errors import InputError

AUTHORITY = "authority.pem"  # beside the folder of keys in a vault


def read_keys(folder: Path) -> dict[str, str]:
    """Return the files of a folder. Raises InputError where it holds no keys of a stack."""
    try:
        files = {each.name: each.read_text() for each in folder.iterdir() if not each.name.startswith(".")}
    except OSError as error:
        raise InputError(f"the keys in {folder} cannot be read: {error.strerror}") from None
    if f"{ROOT}.nk" not in files:
        raise InputError(f"{folder} holds no keys of a stack: `rover kube prepare --keys SECRET` makes them")
    return files


def take_keys(vault: Vault, files: Mapping[str, str]) -> None:
    """Write keys into a vault: what it has of them is replaced."""
    for name, text in files.items():
        below = vault.root if name == AUTHORITY else vault.root / "keys"
        write_secret(below / name, text)


def whole_keys(vault: Vault) -> dict[str, str]:
    """Return the files of all keys that a stack can ask for; those that are missing are made."""
    vault.make_keys()
    made = [each for each in (vault.root / "keys").iterdir() if each.suffix != ".pub"]
    return {each.name: each.read_text() for each in (*made, vault.authority_file)}
