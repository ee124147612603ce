"""`rover operator`: members of jobs as pods of a Kubernetes cluster."""

from __future__ import annotations

import sys

import click


@click.command()
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    required=True,
    help="Where pods are made; the first is the rule.",
)
@click.option("--image", required=True, help="Of members, where the pod template names none.")
@click.option(
    "--pod-template",
    default="",
    metavar="FILE",
    help="Volumes, accounts and more of each member's pod (YAML).",
)
@click.option(
    "--python", default="python", show_default=True, help="The interpreter with rover_bus in the image."
)
@click.option(
    "--kubeconfig", default="", help="The cluster; left out: the one that this process is a pod of."
)
@click.option(
    "--dir", "directory", default="", help="State directory of members in their pods.  [/var/lib/rover]"
)
@click.option("--url", required=True, envvar="ROVER_URL", help="The broker, nats://HOST:PORT.")
@click.option(
    "--secret-file",
    default="",
    envvar="ROVER_SECRET_FILE",
    help="The credentials of a daemon, beside the stack's keys.",
)
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="A setting of docs/settings.md.")
def operator(namespaces: tuple[str, ...], sets: tuple[str, ...], **named: str) -> None:
    """Run the members of jobs as pods, until Ctrl-C.

    Of several operators one leads, by a Lease in the first namespace. Members run on while there is none.
    """
    from rover_bus.cli import serve

    words = [word for each in namespaces for word in ("--namespace", each)]
    words += [word for each in sets for word in ("--set", each)]
    renamed = {"directory": "dir"}
    words += [
        word
        for key, value in named.items()
        if value
        for word in (f"--{renamed.get(key, key).replace('_', '-')}", value)
    ]
    sys.exit(serve.main(["operator", *words]))
