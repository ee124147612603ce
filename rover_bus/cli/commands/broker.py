"""`rover broker`: the broker of a stack alone, on a machine or in a pod of its own."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Literal

import click

from rover_bus.auth.vault import Vault
from rover_bus.cli.given_keys import keys_option, take_given
from rover_bus.cli.home import Home
from rover_bus.cli.own_broker import LOOPBACK, OwnBroker, care, start_broker
from rover_bus.cli.stack import CannotWrite, check_bind, host_name
from rover_bus.cli.supervisor import Supervisor
from rover_bus.events.errors import InputError
from rover_bus.events.subjects import name as check_name
from rover_bus.events.units import parse_bytes

if TYPE_CHECKING:
    from rover_bus.events.identity import Exit

PORT = 4222
LOOK_S = 0.5


@click.command()
@click.option(
    "--dir", "directory", default="", help="State directory: keys and store [$ROVER_HOME, ./.rover]."
)
@keys_option
@click.option("--bind", default="", metavar="ADDRESS", help="Listen at this address, encrypted [loopback].")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(1, 65535))
@click.option(
    "--name",
    "names",
    multiple=True,
    help="A name that it is reached by besides its address, for its certificate; may be repeated.",
)
@click.option(
    "--sync",
    type=click.Choice(["default", "always"]),
    default="always",
    show_default=True,
    help="When it syncs to disk: `always` survives a power cut, `default` a crash of its process.",
)
@click.option(
    "--max-store", default="", metavar="SIZE", help="Most that it may store [three quarters of its disk]."
)
@click.option("--server-name", default="", metavar="NAME", help="Its name in a cluster [this machine's].")
@click.option(
    "--cluster-port",
    default=0,
    type=click.IntRange(0, 65535),
    help="Port for the cluster's other servers; 0: none.",
)
@click.option(
    "--route",
    "routes",
    multiple=True,
    metavar="ADDRESS:PORT",
    help="Another server of the cluster; may be repeated.",
)
def broker(  # noqa: PLR0913 - a command's options are its parameters
    directory: str,
    keys: str,
    bind: str,
    port: int,
    names: tuple[str, ...],
    sync: Literal["default", "always"],
    max_store: str,
    server_name: str,
    cluster_port: int,
    routes: tuple[str, ...],
) -> None:
    """Run the broker of a stack, and nothing else of it, until SIGTERM or Ctrl-C.

    Without --keys the keys of the stack are made below its directory at the first start, with the credentials of its processes and
    people. Other machines run the rest: `rover up --url tls://ADDRESS:PORT --secret-file AUTH/creds/operator.creds`, with a copy
    of `auth`.
    With --cluster-port and --route it is one server of a cluster: three of them, with copies of one `auth`, keep each stream.
    """
    if bool(routes) != bool(cluster_port):
        raise InputError(
            "a server of a cluster needs both: --cluster-port, and --route for each of the others"
        )
    home, address = Home.find(directory), check_bind(bind or LOOPBACK)
    limit = parse_bytes(max_store, "--max-store") if max_store else 0
    place = check_name(server_name or host_name(), "server")
    wanted = OwnBroker(
        sync, limit, port, names, alone=True, server_name=place, cluster_port=cluster_port, routes=routes
    )
    try:
        home.create()
        lock = home.hold()
        try:
            if keys:
                take_given(home, keys)
            _run(home, wanted, address)
        finally:
            os.close(lock)
    except OSError as error:
        raise CannotWrite.below(home.root, error) from error


def _run(home: Home, wanted: OwnBroker, address: str) -> None:
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    vault = Vault(home.auth)
    if address != LOOPBACK:
        vault.certificate(address, wanted.names)  # before credentials, which name its authority
    vault.write_credentials(host_name())
    running = start_broker(home, vault, wanted, address)
    supervisor = Supervisor(care(running, _say, _note), _say)
    supervisor.start()
    click.echo(f"broker   {running.url} (credentials in {home.secret_file})")
    try:
        # A wait without a bound would miss a signal that another thread receives.
        while not ended.wait(LOOK_S):
            pass
    finally:
        supervisor.stop()
        running.stop()


def _say(text: object) -> None:
    click.echo(f"rover: {text}", err=True)


def _note(service: str, pid: int, exit: Exit, ran_s: float) -> None:
    """What a stack publishes as a fact of its host is one line here: this process is no client of its own broker."""
    _say(f"{service} {pid} ended after {ran_s:.0f} s: {exit.describe() or exit.reason}")
