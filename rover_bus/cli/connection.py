"""A command's short visit to the bus: which stack is meant, and one event loop around what is done there.

Used by every command that talks to a running stack. The broker is found through the state directory, or named by --url.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from rover_bus.cli.home import A_READER, Home, NoStack
from rover_bus.events.errors import InputError, Refused
from rover_bus.events.subjects import DEFAULT_TENANT, qualified, split_job
from rover_bus.events.subjects import name as check_name

if TYPE_CHECKING:
    from rover_bus.events.nats_bus import NatsBus

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
CONNECT_TIMEOUT_S = 2.0
PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where a stack's broker listens, and the file with its secret. `home` is where a local stack keeps its records.

    `stopped`: the stack does not run, and this is a private broker over what it left. `tenant`: whose jobs are meant, "" where it
    was not said.
    """

    url: str
    secret_file: Path | None
    home: Home
    stopped: bool = False
    tenant: str = ""

    def full_name(self, job: str) -> str:
        """Return what a host calls a job of the tenant that is meant."""
        return qualified(self.tenant, job)


def find_stack(directory: str, url: str, secret_file: str, tenant: str = "") -> Address:
    """Return the stack that the options name: a broker by its URL, else what runs in the state directory. Raises NoStack.

    $ROVER_URL and $ROVER_SECRET_FILE stand for options that are not given; a state directory that is given comes before them.
    """
    home = Home.find(directory)
    secret_file = secret_file and str(Path(secret_file).absolute())
    if not url and not directory:
        url = os.environ.get("ROVER_URL", "")
        secret_file = secret_file or (os.environ.get("ROVER_SECRET_FILE", "") if url else "")
    if url:
        secret = Path(secret_file) if secret_file else home.secret_file
        return Address(url, secret if secret_file or secret.exists() else None, home, tenant=tenant)
    record = home.read_record()
    file = Path(secret_file or record.secret_file)
    return Address(record.url, file, home.of_running(), tenant=tenant)


def split_name(options: dict[str, Any], tenant: str, key: str = "job") -> str:
    """Take the tenant out of a job that is named as `TENANT/JOB`; return which one is meant. Raises InputError for two."""
    named, bare = split_job(options.get(key) or "")
    if named == DEFAULT_TENANT:
        return tenant
    check_name(named, "tenant")
    if tenant not in ("", named):
        raise InputError(f"{options[key]} is of the tenant {named}, not of {tenant}: leave --tenant out")
    options[key] = bare
    return named


def with_stack(command: F) -> F:
    """Give a command the options that name a stack; it gets an Address as `stack`."""

    @wraps(command)
    def run(*arguments: Any, directory: str, url: str, secret_file: str, whose: str, **options: Any) -> Any:
        tenant = split_name(options, whose)
        return command(*arguments, stack=find_stack(directory, url, secret_file, tenant), **options)

    return cast("F", stack_options(run))


def with_cluster(command: F) -> F:
    """The same for a command that is about the whole stack: it takes no tenant."""

    @wraps(command)
    def run(*arguments: Any, directory: str, url: str, secret_file: str, **options: Any) -> Any:
        return command(*arguments, stack=find_stack(directory, url, secret_file), **options)

    return cast("F", place_options(run))


def with_history(command: F) -> F:
    """The same for a command that only reads: where the stack does not run, it reads what the stack left."""

    @wraps(command)
    def run(*arguments: Any, directory: str, url: str, secret_file: str, whose: str, **options: Any) -> Any:
        tenant = split_name(options, whose)
        with _running_or_stopped(directory, url, secret_file, tenant) as stack:
            return command(*arguments, stack=stack, **options)

    return cast("F", stack_options(run))


@contextmanager
def _running_or_stopped(directory: str, url: str, secret_file: str, tenant: str) -> Iterator[Address]:
    def find_running() -> Address | None:
        with suppress(NoStack):
            return find_stack(directory, url, secret_file, tenant)
        return None

    stack = find_running()
    with ExitStack() as ends:
        if stack is None:
            try:
                left = ends.enter_context(of_stopped(Home.find(directory)))
            except Refused:
                stack = find_running()  # it has begun meanwhile
                if stack is None:
                    raise
            else:
                stack = replace(left, tenant=tenant)
        yield stack


@contextmanager
def of_stopped(home: Home) -> Iterator[Address]:
    """Run a private broker on loopback over what a stopped stack left, while the body runs. Raises NoStack where nothing was left.

    The directory's lock is held meanwhile: two brokers over one store would destroy it. Raises Refused when it is not free in time.
    """
    from rover_bus.auth.vault import Vault
    from rover_bus.events.broker import EmbeddedBroker

    if not home.has_history:
        raise NoStack(
            f"no stack runs in {home.root}, and none left a log there: name one with --dir or --url"
        )
    lock = home.hold(A_READER)
    try:
        with EmbeddedBroker(home.broker, rights=Vault(home.auth).server_configuration) as broker:
            click.echo(f"no stack runs in {home.root}: this is what it left", err=True)
            yield Address(broker.url, home.secret_file, home, stopped=True)
    finally:
        os.close(lock)


tenant_option = click.option(
    "--tenant",
    "whose",
    default="",
    envvar="ROVER_TENANT",
    metavar="TENANT",
    help="Whose jobs are meant, as TENANT/JOB says too [those of the credentials].",
)


def stack_options(command: Callable[..., Any]) -> Any:
    """Give a command the options that name a stack and a tenant, as they are."""
    return place_options(tenant_option(command))


def place_options(command: Callable[..., Any]) -> Any:
    """Give a command the options that name a stack, as they are."""
    for option in (
        click.option(
            "--secret-file", default="", metavar="FILE", help="The secret of a broker named by --url."
        ),
        click.option("--url", default="", help="Use this broker instead, nats://HOST:PORT [$ROVER_URL]."),
        click.option("--dir", "directory", default="", help="State directory [$ROVER_HOME, ./.rover]."),
    ):
        command = option(command)
    return command


async def connect(stack: Address, name: str = "rover-cli") -> NatsBus:
    """Connect to a stack's broker with its streams in place. Raises BrokerUnreachable or AccessDenied, each saying what to do."""
    from rover_bus.events import credentials
    from rover_bus.events.errors import AccessDenied
    from rover_bus.events.nats_bus import NatsBus
    from rover_bus.events.streams import BUCKETS, STREAMS

    secret = ""
    if stack.secret_file:
        if not stack.secret_file.exists():
            raise InputError(f"no secret file {stack.secret_file}: name the one of the broker at {stack.url}")
        secret = credentials.read_file(stack.secret_file)
    bus = await NatsBus.connect(
        stack.url,
        secret=secret,
        secret_source=str(stack.secret_file or "--secret-file"),
        name=name,
        timeout_s=CONNECT_TIMEOUT_S,
    )
    try:
        if stack.tenant and bus.tenant not in (DEFAULT_TENANT, stack.tenant):
            raise InputError(
                f"these credentials are of the tenant {bus.tenant}, not of {stack.tenant}: leave --tenant out, or use others"
            )
        with suppress(AccessDenied):  # an observer creates nothing
            if bus.tenant == DEFAULT_TENANT:
                await bus.ensure(STREAMS, BUCKETS)
        if bus.tenant != stack.tenant and stack.tenant not in ("", DEFAULT_TENANT):
            await _require_tenant(bus, stack.tenant)
    except BaseException:
        await bus.close()
        raise
    return bus


async def _require_tenant(bus: NatsBus, tenant: str) -> None:
    from rover_bus.events.streams import TENANTS

    if await bus.get(TENANTS, tenant) is None:
        raise InputError(f"there is no tenant {tenant!r}: `rover auth list` shows those that there are")


def visit(stack: Address, work: Callable[[NatsBus], Awaitable[T]]) -> T:
    """Run `work` on a connected bus, in an event loop of its own."""

    from rover_bus.events.refusals import unless_turned_away

    async def run() -> T:
        bus = await connect(stack)
        try:
            # What a tenant's account is to the control account's people has all of NatsBus that commands use.
            working = work(cast("NatsBus", bus.of(stack.tenant or DEFAULT_TENANT)))
            return await unless_turned_away(bus, working)
        finally:
            await bus.close()

    return asyncio.run(run())
