"""`rover node-agent`: the checkpoints and samples of one node of a Kubernetes cluster."""

from __future__ import annotations

import os
import sys

import click

from rover_bus.cli.service_words import words_of

POD_TOKEN = "/var/run/secrets/rover-bus.io/token"


@click.command(name="node-agent")
@click.option("--host", default="", envvar="ROVER_HOST", help="The node.  [$ROVER_HOST]")
@click.option(
    "--memory",
    default="",
    envvar="ROVER_STAGING",
    metavar="DIR",
    help="Where pods stage: the operator's --node-memory.  [$ROVER_STAGING]",
)
@click.option(
    "--dir",
    "directory",
    default="/var/lib/rover",
    show_default=True,
    help="Its state directory, with `checkpoints` in it.",
)
@click.option("--storage", default="", metavar="DIR", help="For checkpoints of jobs that name no path.")
@click.option(
    "--domain",
    default="",
    envvar="ROVER_DOMAIN",
    help="What fails together with this node: its zone, its rack.",
)
@click.option(
    "--bind",
    default="",
    envvar="ROVER_BIND",
    metavar="ADDRESS",
    help="Where staged parts are served to other nodes.  [loopback]",
)
@click.option("--url", required=True, envvar="ROVER_URL", help="The broker, nats://HOST:PORT.")
@click.option(
    "--secret-file",
    default="",
    envvar="ROVER_SECRET_FILE",
    help="The credentials of a daemon of this host, beside the keys that it has.",
)
@click.option(
    "--pass",
    "pass_file",
    default="",
    envvar="ROVER_PASS",
    metavar="FILE",
    help="What all agents share: an operator gives this pod's node its rights.",
)
@click.option(
    "--pod-token",
    default=POD_TOKEN,
    show_default=True,
    metavar="FILE",
    help="With --pass: the token of this pod, which names its node.",
)
@click.option("--ready-file", default="", metavar="FILE", help="Written once it serves.")
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="A setting of docs/settings.md.")
def node_agent(memory: str, sets: tuple[str, ...], **named: str) -> None:
    """Keep what pods stage in the memory of this node, store it, and sample the node, until SIGTERM.

    An operator runs the members there, and mounts the directory of its job into each server's pod.
    """
    from rover_bus.cli import serve

    if not memory or not (named["host"] or named["pass_file"]):
        raise click.UsageError(
            "a node's agent has a --memory where its pods stage, and a --host, or a --pass: name them"
        )
    os.environ["ROVER_STAGING"] = memory
    named["host"] = named["host"].replace(".", "_")  # as subjects hold it
    sys.exit(serve.main(["node-agent", *words_of(named, set=sets)]))
