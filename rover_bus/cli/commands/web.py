"""`rover web`: the page, the API and the metrics of a stack, served over HTTP; nothing of the stack waits for it."""

from __future__ import annotations

import sys

import click

from rover_bus.cli.given_keys import keys_option, secret_of
from rover_bus.cli.http_options import LOOPBACK, PORT
from rover_bus.cli.service_words import words_of
from rover_bus.events.units import parse_bytes


@click.command()
@click.option("--url", default="", envvar="ROVER_URL", help="The broker [of the stack that runs here].")
@click.option(
    "--secret-file",
    default="",
    envvar="ROVER_SECRET_FILE",
    help="Credentials of the role `web` [those of the stack that runs here].",
)
@keys_option
@click.option("--dir", "directory", default="", help="State directory [$ROVER_HOME, ./.rover].")
@click.option(
    "--listen",
    default=f"{LOOPBACK}:{PORT}",
    show_default=True,
    metavar="ADDRESS:PORT",
    help="Where to serve. Beyond loopback --certificate and --tokens are needed.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    help="A name by which it is reached, besides its address; may be repeated.",
)
@click.option(
    "--tokens",
    default="",
    metavar="FILE",
    help="Tokens, as `rover auth page-token` makes them [the stack's].",
)
@click.option("--certificate", default="", metavar="FILE", help="What it shows, as PEM: HTTPS.")
@click.option("--key", default="", metavar="FILE", help="Its key [in the same file].")
@click.option("--open-metrics", is_flag=True, help="/metrics asks for no token.")
@click.option(
    "--max-store",
    default="",
    metavar="SIZE",
    help="What its broker may store: a metric, and an alert, have it [what the stack that runs here says].",
)
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="A setting of docs/settings.md.")
@click.option("--ready-file", default="", metavar="FILE", help="Written once it has joined the bus.")
def web(  # noqa: PLR0913 - the options of a command
    url: str,
    secret_file: str,
    keys: str,
    directory: str,
    tokens: str,
    names: tuple[str, ...],
    sets: tuple[str, ...],
    max_store: str,
    open_metrics: bool,
    **named: str,
) -> None:
    """Serve the page, the API and the metrics of a stack until SIGTERM or Ctrl-C. `rover up` does so by itself."""
    from rover_bus.cli import serve
    from rover_bus.cli.connection import find_stack
    from rover_bus.cli.home import Home

    limit = parse_bytes(max_store, "--max-store") if max_store else 0
    if keys:
        secret_file = secret_of(Home.find(directory), keys, "web")
    if not url:
        stack = find_stack(directory, "", "")
        url = stack.url
        secret_file = secret_file or str(stack.home.auth / "creds" / "web.creds")
        limit = limit or stack.home.read_record().store_limit_bytes
        tokens = tokens or str(stack.home.page_tokens)
    named |= {"url": url, "secret_file": secret_file, "tokens": tokens, "store_limit": str(limit)}
    sys.exit(serve.main(["web", *words_of(named, name=names, set=sets), *["--open-metrics"] * open_metrics]))
