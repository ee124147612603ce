"""The keys of a stack as one flat folder of files: how a Secret of Kubernetes holds them, and how a pod has it mounted.

Made whole before anything is installed (kube/installing.py), and for each process the part that it needs: the seeds of what it
signs, and public keys of all else. Taken into a vault by each process that is started with `--keys`. A pod may only read the
folder, and its files are its group's too; a vault's are its owner's alone, so each process has a copy.
Which tenants there are, what they may store and which users are revoked stands beside the keys: accounts are made of it.
Which runs have rights is no key: a vault that begins here knows none, until the Brain has read the facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rover_bus.auth.key_names import (
    CONTROL,
    MEMBERS,
    OBSERVERS,
    ROOT,
    SYSTEM,
    account_of,
    accounts_of,
    people_of,
)
from rover_bus.auth.rights import RoleName
from rover_bus.auth.roles import ROLES, RUN_ROLES, TENANT_ROLES
from rover_bus.auth.secret_files import PART, write_secret
from rover_bus.auth.users import REVOKED
from rover_bus.auth.vault import Vault
from rover_bus.events.errors import InputError

AUTHORITY = "authority.pem"  # beside the folder of keys in a vault, as are
NOTES = ("tenants", "limits", REVOKED)
SOCKETS = "sockets"


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one process of a stack needs. roles: whose users it makes; seeds: that it signs with besides; files: other secrets;
    accounts: it gives them rights; opens: backups are taken with its keys, of the accounts of tenants too.
    """

    roles: tuple[RoleName, ...] = ()
    seeds: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    accounts: bool = False
    opens: bool = False


PARTS: Mapping[str, Part] = {
    # It signs accounts when it starts, and shows a certificate.
    "broker": Part(seeds=(ROOT,), files=("authority.key",), accounts=True),
    # It tells the broker of accounts, owns streams, and gives hosts that join what they need.
    "brain": Part(
        roles=("brain", "daemon", *RUN_ROLES),
        seeds=(ROOT, SYSTEM, CONTROL),
        files=(SOCKETS,),
        accounts=True,
        opens=True,
    ),
    # It makes members' credentials, and those of agents; accounts it can give no right to anything. Those of tenants it learns of
    # the bus, once they are there.
    "operator": Part(roles=("daemon", "operator", "registrar", "agent", *RUN_ROLES), files=(SOCKETS,)),
    # It looks, and stores words on plans.
    "web": Part(roles=("web",)),
}


def read_keys(folder: Path) -> dict[str, str]:
    """Return the files of a folder. Raises InputError where it holds no keys of a stack."""
    try:
        files = {each.name: each.read_text() for each in folder.iterdir() if not each.name.startswith(".")}
    except OSError as error:
        raise InputError(f"the keys in {folder} cannot be read: {error.strerror}") from None
    if f"{ROOT}.nk" not in files and PART not in files:
        raise InputError(f"{folder} holds no keys of a stack: `rover kube prepare --keys SECRET` makes them")
    return files


def part_of(vault: Vault, process: str) -> dict[str, str]:
    """Return the files that one process of a stack needs, out of a vault that has all keys."""
    part, whole = PARTS[process], whole_keys(vault)
    seeds = {*part.seeds, *(f"role-{role}" for role in part.roles)}
    public = {ROOT, SYSTEM, CONTROL, MEMBERS, OBSERVERS, *(f"role-{role}" for role in ROLES)} - seeds
    kept = {*(f"{seed}.nk" for seed in seeds), *part.files, AUTHORITY}
    if part.accounts:
        kept |= {*NOTES} & whole.keys()
    files = {name: whole[name] for name in kept}
    for tenant in vault.tenants if part.accounts else ():
        files |= {f"{name}.pub": vault.public_key(name) + "\n" for name in accounts_of(tenant)}
        if part.opens:
            files[f"{account_of(tenant)}.nk"] = whole[f"{account_of(tenant)}.nk"]
        people = {people_of(tenant, role): vault.person_key(role, tenant) for role in TENANT_ROLES}
        files |= {f"{name}.pub": key + "\n" for name, key in people.items()}
    return files | {f"{name}.pub": vault.public_key(name) + "\n" for name in public} | {PART: process + "\n"}


def take_keys(vault: Vault, files: Mapping[str, str]) -> None:
    """Write keys into a vault: what it has of them is replaced."""
    for name, text in files.items():
        below = vault.root if name in (AUTHORITY, *NOTES) else vault.root / "keys"
        write_secret(below / name, text)


def whole_keys(vault: Vault) -> dict[str, str]:
    """Return the files of all keys that a stack can ask for, and of its tenants; keys that are missing are made."""
    vault.make_keys()
    made = [each for each in (vault.root / "keys").iterdir() if each.suffix != ".pub"]
    beside = [file for each in NOTES if (file := vault.root / each).exists()]
    return {each.name: each.read_text() for each in (*made, vault.authority_file, *beside)}
