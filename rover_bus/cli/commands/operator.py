"""`rover operator`: members of jobs as pods of a Kubernetes cluster."""

from __future__ import annotations

import sys

import click

from rover_bus.cli.given_keys import keys_option, secret_of
from rover_bus.cli.home import Home
from rover_bus.cli.service_words import words_of


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
    "--node-memory",
    default="",
    metavar="DIR",
    help="Where the agents of nodes keep what servers stage (`rover node-agent`).",
)
@click.option(
    "--agents",
    default="",
    metavar="NAMESPACE/ACCOUNT",
    help="The service account of agents that ask for the rights of their nodes.",
)
@click.option(
    "--sidecars",
    default="",
    metavar="SIZE",
    help="Instead of agents of nodes: one in each server's pod, which stages at most so much.",
)
@click.option(
    "--spare-priority",
    default="",
    metavar="CLASS",
    help="The PriorityClass, below those of members, of pods that are made ready to become workers; left out: there are none.",
)
@click.option(
    "--plan-answers",
    default="",
    metavar="POLICY",
    help="The ValidatingAdmissionPolicy, and its binding, that pin the name in a PlanAnswer to its user: take those made under it.",
)
@click.option(
    "--tenant",
    "tenants",
    multiple=True,
    help="One that is made with the stack: RoverJobs in the namespace of its name wait for it; may be repeated.",
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
    help="The credentials of a daemon, beside the stack's keys; not needed with --keys.",
)
@click.option(
    "--state", default="", metavar="DIR", help="Where it keeps what --keys gives [$ROVER_HOME, ./.rover]."
)
@keys_option
@click.option("--ready-file", default="", metavar="FILE", help="Written once it serves, or stands by.")
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="A setting of docs/settings.md.")
def operator(
    namespaces: tuple[str, ...],
    sets: tuple[str, ...],
    keys: str,
    state: str,
    tenants: tuple[str, ...],
    **named: str,
) -> None:
    """Run the members of jobs as pods, until Ctrl-C.

    Of several operators one leads, by a Lease in the first namespace. Members run on while there is none.
    """
    from rover_bus.cli import serve

    if named["sidecars"] and named["node_memory"]:
        raise click.UsageError("--sidecars and --node-memory are two ways for one thing: choose one")

    if keys:
        named["secret_file"] = secret_of(Home.find(state), keys, "daemon")
    sys.exit(serve.main(["operator", *words_of(named, namespace=namespaces, tenant=tenants, set=sets)]))
