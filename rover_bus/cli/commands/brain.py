"""`rover brain`: the Brain of a stack alone, in a pod of its own."""

from __future__ import annotations

import sys

import click

from rover_bus.cli.given_keys import keys_option, secret_of
from rover_bus.cli.home import Home
from rover_bus.cli.service_words import words_of
from rover_bus.events.units import parse_bytes


@click.command()
@click.option("--dir", "directory", default="", help="State directory, for its keys [$ROVER_HOME, ./.rover].")
@keys_option
@click.option("--url", required=True, envvar="ROVER_URL", help="The broker, nats://HOST:PORT.")
@click.option(
    "--secret-file",
    default="",
    envvar="ROVER_SECRET_FILE",
    help="Its credentials, beside the stack's keys; not needed with --keys.",
)
@click.option(
    "--plan-mode",
    type=click.Choice(["observe", "approve", "auto"]),
    default="auto",
    show_default=True,
    help="What becomes of its plans: only said, approved by a person, carried out.",
)
@click.option("--quota", "quotas", multiple=True, metavar="TENANT=CORES[:MEMORY]", help="May be repeated.")
@click.option(
    "--max-store", default="", metavar="SIZE", help="What its broker may store: ended jobs are forgotten."
)
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="A setting of docs/settings.md.")
@click.option("--ready-file", default="", metavar="FILE", help="Written once it serves.")
def brain(
    directory: str,
    keys: str,
    secret_file: str,
    max_store: str,
    quotas: tuple[str, ...],
    sets: tuple[str, ...],
    **named: str,
) -> None:
    """Run the Brain of a stack, and nothing else of it, until SIGTERM or Ctrl-C. Of several one leads."""
    from rover_bus.cli import serve

    if keys:
        secret_file = secret_of(Home.find(directory), keys, "brain")
    limit = parse_bytes(max_store, "--max-store") if max_store else 0
    named |= {"secret_file": secret_file, "keys": keys, "store_limit": str(limit)}
    sys.exit(serve.main(["brain", *words_of(named, quota=quotas, set=sets)]))
