"""Keys that a process is given as a folder, as pods are: taken into a vault of its state directory before it starts.

Used by `rover broker`, `rover brain` and `rover operator` for their `--keys`.
"""

from __future__ import annotations

from pathlib import Path

import click

from rover_bus.auth.key_folder import read_keys, take_keys
from rover_bus.auth.rights import RoleName
from rover_bus.auth.vault import Vault
from rover_bus.cli.home import Home
from rover_bus.cli.stack import CannotWrite, host_name

keys_option = click.option(
    "--keys",
    default="",
    envvar="ROVER_KEYS",
    metavar="FOLDER",
    help="The stack's keys, as a Secret mounted into a pod: they are copied below the state directory.",
)


def take_given(home: Home, folder: str) -> Vault:
    """Return the vault of a state directory, with the keys of a folder. Raises InputError, CannotWrite."""
    files, vault = read_keys(Path(folder)), Vault(home.auth)
    try:
        home.create()
        take_keys(vault, files)
    except OSError as error:
        raise CannotWrite.below(home.root, error) from error
    return vault


def secret_of(home: Home, folder: str, role: RoleName) -> str:
    """Return the credentials of a process of the stack, made with the keys of a folder."""
    vault = take_given(home, folder)
    vault.write_credentials(host_name())
    return str(vault.credentials_file(role, host_name()))
