"""`rover kube`: what a cluster takes, made of a job file; answers to plans; what an installation needs first, and leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import click

from rover_bus.events.errors import InputError

_OF_STACK, _OF_TENANT = ("observer", "operator"), ("viewer", "submitter")
_kubeconfig = click.option(
    "--kubeconfig",
    default="",
    envvar="KUBECONFIG",
    help="The cluster; left out: the one that this process is a pod of.",
)


@click.group()
def kube() -> None:
    """Work with Kubernetes."""


@kube.command()
@click.argument("job_file", type=click.Path(path_type=Path))
@click.option("--name", default="", help="Of the object; the file's own by default.")
def render(job_file: Path, name: str) -> None:
    """Print the RoverJob that JOB_FILE means, for `kubectl apply -f -`.

    Paths stay as they are written: on a cluster they are those of the image and its volumes.
    """
    from rover_bus.cli.yaml_text import to_yaml
    from rover_bus.kube.object import job_of, manifest_of

    made = manifest_of(job_file, name)
    job_of(made)  # refuses what an object cannot say
    click.echo("\n".join(to_yaml(made)))


@kube.command()
@click.option("--namespace", required=True, help="Of the Secret.")
@click.option(
    "--keys",
    default="",
    metavar="SECRET",
    help="Have this Secret hold all keys of a stack, and one a process what it needs of them.",
)
@click.option(
    "--agents", default="", metavar="SECRET", help="Have this Secret hold the pass of nodes' agents."
)
@click.option(
    "--tenant",
    "tenants",
    multiple=True,
    metavar="NAME[=SIZE]",
    help="Beside --keys: have keys of this tenant too, which stores at most so much; may be repeated.",
)
@click.option("--max-store", default="", metavar="SIZE", help="What the broker may store, for --tenant.")
@click.option(
    "--follows",
    multiple=True,
    metavar="NAMESPACE",
    help="Beside --keys: refuse while RoverJobs of a namespace that is not named any more have not ended; may be repeated.",
)
@click.option("--definition", is_flag=True, help="Have the cluster know the kinds as this release does.")
@_kubeconfig
def prepare(  # noqa: PLR0913 - a command's options are its parameters
    namespace: str,
    keys: str,
    agents: str,
    tenants: tuple[str, ...],
    max_store: str,
    follows: tuple[str, ...],
    definition: bool,
    kubeconfig: str,
) -> None:
    """Make what an installation needs before its pods start. May be repeated: keys that are there stay.

    A tenant that is not named any more stays too. A definition that a RoverJob which has not ended does not satisfy is refused
    (exit code 3), and the RoverJob is named.
    """
    from rover_bus.events.units import parse_bytes
    from rover_bus.kube import installing
    from rover_bus.kube.api import Api
    from rover_bus.kube.kinds import Ref

    stores = _stores(tenants)
    most_bytes = parse_bytes(max_store, "--max-store") if max_store else 0

    async def work() -> None:
        api = await Api.connect(kubeconfig)
        try:
            if keys and follows:
                await installing.require_ended(api, Ref(namespace, keys), follows)
            if definition:
                await installing.put_definitions(api)
                click.echo("definitions: as this release has them")
            if keys:
                made = await installing.keep_keys(api, Ref(namespace, keys), stores, most_bytes)
                click.echo(f"keys: {len(made)} made, in the Secret {namespace}/{keys}")
                await installing.keep_parts(api, Ref(namespace, keys))
            if keys and follows:
                await installing.note_followed(api, Ref(namespace, keys), follows)
            if keys and agents:
                new = await installing.keep_pass(api, Ref(namespace, keys), Ref(namespace, agents))
                click.echo(f"agents: their pass {'made' if new else 'is'} in the Secret {namespace}/{agents}")
        finally:
            await api.close()

    asyncio.run(work())


def _stores(tenants: tuple[str, ...]) -> dict[str, int]:
    """Return what each tenant may store. Raises InputError."""
    from rover_bus.events.errors import InputError
    from rover_bus.events.subjects import DEFAULT_TENANT, name
    from rover_bus.events.units import parse_bytes

    stores = dict[str, int]()
    for each in tenants:
        tenant, _, size = each.partition("=")
        if name(tenant, "tenant") == DEFAULT_TENANT or tenant in stores:
            raise InputError(
                f"--tenant {each}: name each tenant once, and not {DEFAULT_TENANT}, which is always there"
            )
        stores[tenant] = parse_bytes(size, "--tenant") if size else 0
    return stores


def _answering(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command what an answer to a plan needs."""
    options = (
        click.argument("job"),
        click.argument("number", type=click.IntRange(1), required=False, metavar="[PLAN]"),
        click.option("--namespace", "-n", required=True, help="Of the RoverJob."),
        click.option("--reason", default="", help="Why: it stands in the job's history."),
        _kubeconfig,
    )
    for option in reversed(options):
        command = option(command)
    return command


@kube.command()
@_answering
def approve(**answer: Any) -> None:
    """Let the plan of RoverJob JOB that waits pass, as the user of your kubeconfig: creates a PlanAnswer."""
    _answer("Approve", **answer)


@kube.command()
@_answering
def reject(**answer: Any) -> None:
    """Refuse the plan of RoverJob JOB that waits, as the user of your kubeconfig: creates a PlanAnswer."""
    _answer("Reject", **answer)


def _answer(
    answer: Literal["Approve", "Reject"],
    *,
    job: str,
    number: int | None,
    namespace: str,
    reason: str,
    kubeconfig: str,
) -> None:
    from rover_bus.kube.answer_by_hand import answer_plan
    from rover_bus.kube.api import Api
    from rover_bus.kube.kinds import Ref

    async def work() -> str:
        api = await Api.connect(kubeconfig)
        try:
            return await answer_plan(api, Ref(namespace, job), number, answer, reason)
        finally:
            await api.close()

    click.echo(asyncio.run(work()))


@kube.command()
@click.option("--namespace", required=True, help="Of the Secret.")
@click.option(
    "--keys", default="rover-keys", show_default=True, metavar="SECRET", help="The installation's keys."
)
@click.option(
    "--role",
    type=click.Choice([*_OF_STACK, *_OF_TENANT]),
    help="What the person may do; of a tenant: submit its jobs, or only look.  [observer; with --tenant viewer]",
)
@click.option("--tenant", default="", help="The one that it is for; left out: the whole stack.")
@click.option("--out", required=True, metavar="FILE", help="Where they are written, for its owner alone.")
@_kubeconfig
def credentials(namespace: str, keys: str, role: Any, tenant: str, out: str, kubeconfig: str) -> None:
    """Write what a person shows to the broker of an installation, for --secret-file. Needs the right to read its keys."""
    from rover_bus.auth.secret_files import write_secret
    from rover_bus.kube.api import Api
    from rover_bus.kube.installing import credentials_of
    from rover_bus.kube.kinds import Ref

    async def work() -> str:
        api = await Api.connect(kubeconfig)
        try:
            return await credentials_of(api, Ref(namespace, keys), role, tenant)
        finally:
            await api.close()

    among = _OF_TENANT if tenant else _OF_STACK
    role = role or among[0]
    if role not in among:
        raise click.UsageError(
            f"--role {role}: {'a tenant has' if tenant else 'without --tenant'} {', '.join(among)}"
        )
    write_secret(Path(out).absolute(), asyncio.run(work()))


@kube.command()
@click.argument("users", nargs=-1, metavar="[USER|FILE]...")
@click.option("--namespace", required=True, help="Of the Secret.")
@click.option(
    "--keys", default="rover-keys", show_default=True, metavar="SECRET", help="The installation's keys."
)
@click.option(
    "--people-of",
    "tenant",
    default="",
    metavar="TENANT",
    help="All people of this tenant, by credentials made until now.",
)
@_kubeconfig
def revoke(users: tuple[str, ...], namespace: str, keys: str, tenant: str, kubeconfig: str) -> None:
    """Take all rights from people of an installation, for ever: by a file of credentials, or by the public key in it.

    The broker ends their connections once the Brain's pod sees the changed Secret: within two minutes where kubelets are as they
    come. Rights of a job's members end with the job by themselves. Needs the right to change the keys.
    """
    from rover_bus.events import credentials
    from rover_bus.kube.api import Api
    from rover_bus.kube.installing import revoke as note
    from rover_bus.kube.kinds import Ref

    if not users and not tenant:
        raise click.UsageError("name a file of credentials, a public key, or a tenant by --people-of")
    found: dict[str, str] = {}
    for each in users:
        read = credentials.read(credentials.read_file(Path(each))) if Path(each).exists() else None
        if read is None and Path(each).exists():
            raise InputError(f"{each} holds no credentials: name a public key or a file of credentials")
        found |= {read.user: read.account} if read is not None else {each: ""}

    async def work() -> None:
        api = await Api.connect(kubeconfig)
        try:
            await note(api, Ref(namespace, keys), found, tenant)
        finally:
            await api.close()

    asyncio.run(work())
    for each in (*found, *([f"the people of {tenant}"] if tenant else [])):
        click.echo(f"{each}: no rights any more, as soon as the Brain's pod has seen it")


@kube.command()
@click.option(
    "--dir",
    "directory",
    required=True,
    type=click.Path(path_type=Path, readable=False),  # it may be another user's already
    help="Of all jobs.",
)
@click.option("--user", required=True, type=click.IntRange(1), help="The one that agents and members are.")
def memory(directory: Path, user: int) -> None:
    """Have a node's memory for checkpoints belong to the user of its pods. For root, before `rover node-agent`."""
    from rover_bus.flash.places import give_to

    give_to(directory, user)


@kube.command()
@click.option(
    "--release",
    default="",
    metavar="NAMESPACE",
    help="Of the operators and the keys; the first of members' by default.",
)
@click.option("--namespace", "namespaces", multiple=True, required=True, help="Of members; may be repeated.")
@click.option("--keys", multiple=True, metavar="SECRET", help="Remove this Secret; left out: keys stay.")
@click.option(
    "--operators",
    default="app.kubernetes.io/component=operator",
    show_default=True,
    metavar="SELECTOR",
    help="Pods that must be gone first.",
)
@_kubeconfig
def clean(
    release: str, namespaces: tuple[str, ...], keys: tuple[str, ...], operators: str, kubeconfig: str
) -> None:
    """Remove what outlives an installation: members' pods, finalizers, records, keys. RoverJobs stay, but for those that were
    deleted: also where their definition or their namespace was deleted first and waits for them.
    """
    from rover_bus.kube.api import Api
    from rover_bus.kube.installing import clean as clean_up

    async def work() -> None:
        api = await Api.connect(kubeconfig)
        try:
            await clean_up(api, release or namespaces[0], namespaces, operators, keys)
        finally:
            await api.close()

    asyncio.run(work())
