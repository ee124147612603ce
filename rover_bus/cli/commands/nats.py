"""`rover nats`: a context for the nats command line, with the rights of an observer."""

from __future__ import annotations

import json
from pathlib import Path

import click

from rover_bus.cli.connection import Address, with_stack


@click.command()
@with_stack
def nats(stack: Address) -> None:
    """Print a context for the nats CLI: this stack as an observer sees it, without a right to change anything.

    Save it as ~/.config/nats/context/rover.json, then `nats --context rover sub 'rover.>'`.
    """
    click.echo(json.dumps(context(stack), indent=2))


def context(stack: Address) -> dict[str, str | bool]:
    """Return what the nats CLI reads: server, credentials, and the one inbox on which they may listen. Raises InputError."""
    from rover_bus.auth.vault import Vault
    from rover_bus.events import credentials

    vault = Vault.beside(stack.secret_file) if stack.secret_file else None
    file = vault.credentials_file("observer") if vault else stack.secret_file
    found: dict[str, str | bool] = {"description": "rover_bus", "url": stack.url}
    user = credentials.read(credentials.read_file(Path(file))) if file else None
    if user is None:
        return found
    found |= {"creds": str(file), "inbox_prefix": user.inbox}
    if vault and stack.url.startswith("tls://"):
        found |= {"ca": str(vault.authority_file), "tls_first": True}
    return found
