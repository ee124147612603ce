"""`rover auth`: who else may do something here. It reads the keys of the stack, on the stack's own machine."""

from __future__ import annotations

import time
from pathlib import Path

import click

from rover_bus.cli.connection import Address, with_stack
from rover_bus.events.errors import InputError
from rover_bus.events.units import parse_seconds

LONGEST_S = 7 * 86_400


@click.group()
def auth() -> None:
    """Give rights: a token by which one more host joins this stack."""


@auth.command("token")
@click.option("--out", required=True, metavar="FILE", help="Where to write it, for its owner alone.")
@click.option("--ttl", default="1h", metavar="DURATION", help="How long it may be used; at most 7d [1h].")
@with_stack
def token(stack: Address, out: str, ttl: str) -> None:
    """Write a token by which one host joins, once, with `rover join --token-file FILE`.

    The file says where the broker is and which authority signs its certificate, and holds a user that may ask to join and nothing
    else. Carry it by a safe way: the first host that shows it is let in.
    """
    from rover_bus.auth.host_vault import HostVault
    from rover_bus.auth.joining import write_token
    from rover_bus.auth.vault import Vault, write_secret

    valid_s = parse_seconds(ttl, "--ttl")
    if not 1 <= valid_s <= LONGEST_S:
        raise InputError(f"--ttl {ttl}: a token is valid for 1s to 7d")
    vault = Vault.beside(stack.secret_file) if stack.secret_file else None
    if vault is None or not HostVault(vault.root).is_of_a_stack:
        raise InputError(
            "the keys of this stack are not here: run `rover auth token` on its own machine, with its --dir"
        )
    made = vault.join_token(stack.url, int(valid_s))
    write_secret(Path(out).absolute(), write_token(made))
    click.echo(f"wrote {out}: one host may join {made.url} with it until {time.ctime(made.expires_s)}")
    click.echo(f"authority {made.fingerprint}")
    click.echo("there     rover join --token-file FILE")
