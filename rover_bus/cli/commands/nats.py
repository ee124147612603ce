"""`rover nats`: a context for the nats command line, with the rights of an observer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from rover_bus.cli.connection import Address, with_cluster
from rover_bus.events.errors import InputError
from rover_bus.events.subjects import name as check_name

WORD = "token"  # as the nats CLI calls what a broker asks all for


@click.command()
@click.option(
    "--save", "saved_as", default="", metavar="NAME", help="Write it where the nats CLI finds it by NAME."
)
@with_cluster
def nats(stack: Address, saved_as: str) -> None:
    """Print a context for the nats CLI: this stack as an observer sees it, without a right to change anything.

    A broker of another owner knows no observer: there it has the rights that its owner gave.

    With --save rover it is ~/.config/nats/context/rover.json, for `nats --context rover sub 'rover.>'`.
    """
    from rover_bus.auth.secret_files import write_secret

    found = context(stack)
    if WORD in found and not saved_as:
        raise InputError(
            f"the broker at {stack.url} asks all for one word, which is not printed: `rover nats --save NAME` writes a context "
            "with it, for its owner alone, that may do everything"
        )
    text = json.dumps(found, indent=2)
    if not saved_as:
        click.echo(text)
        return
    path = contexts() / f"{check_name(saved_as, 'context')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_secret(path, text + "\n")
    click.echo(f"wrote {path}: `nats --context {saved_as} sub 'rover.>'`")


def contexts() -> Path:
    """Return where the nats CLI looks for contexts."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "nats" / "context"


def context(stack: Address) -> dict[str, str | bool]:
    """Return what the nats CLI reads: server, credentials, and the one inbox on which they may listen. Raises InputError."""
    from rover_bus.auth.vault import Vault
    from rover_bus.events import credentials

    vault = Vault.beside(stack.secret_file) if stack.secret_file else None
    file = vault.credentials_file("observer") if vault else stack.secret_file
    if vault and file and not file.exists():
        raise InputError(
            "a joined host has no observer's credentials: run `rover nats` on the stack's own machine"
        )
    found: dict[str, str | bool] = {"description": "rover_bus", "url": stack.url}
    shown = credentials.read_file(Path(file)) if file else ""
    user = credentials.read(shown)
    if user is None:
        return found | ({WORD: shown} if shown else {})
    found |= {"creds": str(file), "inbox_prefix": user.inbox}
    if vault and stack.url.startswith("tls://"):
        found |= {"ca": str(vault.authority_file), "tls_first": True}
    return found
