"""What members get of the process that starts them: the command lines of the roles that are ours, and credentials.

Used where a daemon (serve.py) and an operator (operating.py) are put together.
"""

from __future__ import annotations

import json

from rover_bus.auth.host_vault import HostVault
from rover_bus.auth.vault import Vault
from rover_bus.cli.supervisor import service_command
from rover_bus.events.subjects import split_job
from rover_bus.node.port import Incarnation, RoleCommands


def commands_of(sets: list[str], python: str) -> RoleCommands:
    """Return what runs masters and servers. sets: settings, as they were written; python: the interpreter where members run."""
    written = [word for setting in sets for word in ("--set", setting)]

    def master(job: str, index: int) -> list[str]:
        named = ["--job", split_job(job)[1], "--index", str(index)]
        return service_command("master", *named, *written, python=python)

    return RoleCommands(master, tuple(service_command("ps", python=python)))


def vault_beside(file: str) -> Vault | None:
    """Return what signs the members of a host: the stack's keys, or the part of them that a joined host has."""
    return (HostVault.beside(file) or Vault.beside(file)) if file else None


def credential_of(vault: Vault | None, run: Incarnation, host: str) -> str:
    """Return a member's own credential; "" where all share one secret."""
    if vault is None:
        return ""
    return vault.member_credentials(run.member.role, run.job, run.uid, str(run.member), host)


def learn_tenant(vault: Vault | None, keys: bytes) -> None:
    """Take note of the public keys of a tenant's accounts, as JSON."""
    if vault is not None:
        vault.learn_keys(json.loads(keys))
