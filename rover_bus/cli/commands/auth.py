"""`rover auth`: who else may do something here: tenants, credentials for their people, tokens for hosts that join.

It works where the keys of the stack are, on its own machine.

What it changes stands in the vault first, and is told to the broker while it runs. A stopped stack takes it in at its start.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rover_bus.cli.connection import Address, with_cluster
from rover_bus.cli.home import Home, NoStack
from rover_bus.cli.views.tables import output_option, show
from rover_bus.events.errors import InputError
from rover_bus.events.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from rover_bus.auth.vault import Vault
    from rover_bus.events.nats_bus import NatsBus

T = TypeVar("T")
LONGEST_S = 7 * 86_400
COLUMNS = ("tenant", "running", "store_bytes")
directory_option = click.option(
    "--dir", "directory", default="", help="State directory [$ROVER_HOME, ./.rover]."
)


@click.group()
def auth() -> None:
    """Give rights: to tenants, to their people, to hosts that join.

    A tenant's jobs, facts and streams are apart from all others': a job's name means nothing outside. `default` is always there.
    """


@auth.command("add")
@click.argument("tenants", nargs=-1, required=True, metavar="TENANT...")
@click.option(
    "--store",
    default="",
    metavar="SIZE",
    help="Most that each may store; 0: as much as the broker has [as before].",
)
@directory_option
def add(tenants: tuple[str, ...], store: str, directory: str) -> None:
    """Make tenants. One that is there already is made whole.

    A tenant whose store is full stores nothing more, and harms no other: its jobs wait until some are forgotten, or it gets more.
    """
    from rover_bus.auth.key_names import changed_with
    from rover_bus.auth.store_limits import StoreLimits
    from rover_bus.cli.account_claims import tell_accounts
    from rover_bus.cli.tenants import make_tenants
    from rover_bus.events.subjects import DEFAULT_TENANT, name

    for tenant in tenants:
        if name(tenant, "tenant") == DEFAULT_TENANT:
            raise InputError("the tenant default is always there: take another name")
    home = Home.find(directory).of_running()
    with _vault(home) as vault:
        vault.note_tenants({*vault.tenants, *tenants})
        if store:
            _limit(home, vault, tenants, parse_bytes(store, "--store"))

        async def make(owner: NatsBus, system: NatsBus) -> None:
            await make_tenants(owner, system, vault)
            await tell_accounts(system, vault, changed_with(tenants) if store else ())

        try:
            _as_owner(home, vault, make)
        except NoStack:
            click.echo("the stack does not run: it takes them in when it starts", err=True)
        unlimited = [each for each in tenants if not StoreLimits(vault.root).all.get(each)]
    if unlimited:
        click.echo(
            f"{', '.join(unlimited)} may fill the whole store, which stops every job: --store is its limit",
            err=True,
        )
    click.echo(f"{', '.join(tenants)}: `rover auth credentials {tenants[0]}` writes what its people need")


def _limit(home: Home, vault: Vault, tenants: tuple[str, ...], most_bytes: int) -> None:
    """Note what tenants may store. Raises InputError for more than the broker can reserve for them."""
    from rover_bus.auth.store_limits import StoreLimits, check_limits

    noted = StoreLimits(vault.root)
    try:
        there = home.read_record().store_limit_bytes
    except NoStack:
        there = 0
    limits = {**noted.all, **dict.fromkeys(tenants, most_bytes)}
    check_limits(limits, vault.tenants, tenants, there, "--store")
    noted.note(tenants, most_bytes)


@auth.command("list")
@directory_option
@output_option
def list_tenants(directory: str, output: str) -> None:
    """List the tenants, how many jobs of each have rights now, and what each may store (0: as much as the broker has)."""
    from rover_bus.auth.store_limits import StoreLimits
    from rover_bus.events.subjects import DEFAULT_TENANT, split_job

    with _vault(Home.find(directory).of_running()) as vault:
        running = [split_job(run.job)[0] for run in vault.runs]
        tenants = (DEFAULT_TENANT, *vault.tenants)
        limits = StoreLimits(vault.root).all
    rows = [
        {"tenant": each, "running": running.count(each), "store_bytes": limits.get(each, 0)}
        for each in tenants
    ]
    show(rows, COLUMNS, output)


@auth.command("credentials")
@click.argument("tenant")
@click.option(
    "--role",
    type=click.Choice(["submitter", "viewer"]),
    default="submitter",
    help="What they may do: submit jobs and ask of them, or only look [submitter].",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write [stdout].")
@directory_option
def credentials(tenant: str, role: Any, out: Path | None, directory: str) -> None:
    """Write credentials for a person, or a program, of TENANT: what `--secret-file` takes, beside --url."""
    with _vault(Home.find(directory).of_running()) as vault:
        _require(vault, tenant)
        text = vault.person_credentials(role, tenant)
    if out is None:
        click.echo(text)
        return
    with open(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
    click.echo(f"{out}: a {role} of {tenant}")


@auth.command("remove")
@click.argument("tenant")
@directory_option
def remove(tenant: str, directory: str) -> None:
    """Remove TENANT with all that is stored of it. Refused while a job of it runs; needs the running stack."""
    from rover_bus.cli.tenants import remove_tenant
    from rover_bus.events.errors import Refused
    from rover_bus.events.subjects import split_job

    home = Home.find(directory).of_running()
    with _vault(home) as vault:
        _require(vault, tenant)
        running = sorted(run.job for run in vault.runs if split_job(run.job)[0] == tenant)
        if running:
            raise Refused(
                f"{', '.join(running)} runs, or its members may still be leaving: `rover cancel {running[0]}` ends it",
                "not_ended",
            )
        _as_owner(home, vault, lambda owner, system: remove_tenant(owner, system, vault, tenant))
    click.echo(f"{tenant}: removed")


@auth.command("users")
@directory_option
@output_option
def users(directory: str, output: str) -> None:
    """List the users that were given credentials, people by tenant and hosts that joined, with the time of a revocation."""
    with _vault(Home.find(directory).of_running()) as vault:
        revoked = {user: at_s for users in vault.users.revoked.values() for user, at_s in users.items()}
        rows = [
            {
                "user": each.user,
                "role": each.role,
                "of": each.of,
                "made": time.ctime(each.made_s),
                "revoked": time.ctime(revoked[each.user]) if each.user in revoked else "",
            }
            for each in vault.users.all
        ]
    show(rows, ("user", "role", "of", "made", "revoked"), output)


@auth.command("revoke")
@click.argument("users", nargs=-1, metavar="[USER|FILE]...")
@click.option(
    "--host",
    default="",
    help="The host of this name that joined; the keys that it signs members with are replaced.",
)
@click.option("--people-of", "tenant", default="", metavar="TENANT", help="All people of this tenant.")
@directory_option
def revoke(users: tuple[str, ...], host: str, tenant: str, directory: str) -> None:
    """Take all rights from users, at once and for ever: by public key, by a file of credentials, by host, or a tenant's people.

    A process that has them ends with exit code 5. Rights of a job's members end with the job by themselves. Members of other hosts
    go on with new credentials.
    """
    from rover_bus.auth.revoking import revoke_user
    from rover_bus.auth.rotation import fresh_keys, take_keys
    from rover_bus.cli.account_claims import tell_accounts
    from rover_bus.cli.rotating import replace_keys

    home = Home.find(directory).of_running()
    with _vault(home) as vault:
        found = dict(_named(vault, each) for each in users)
        found |= {
            each.user: each.account
            for each in vault.users.all
            if (host and (each.role, each.of) == ("daemon", host))
            or (tenant and each.role != "daemon" and each.of == tenant)
        }
        if not found:
            raise InputError("no such user: `rover auth users` lists those that were given credentials")
        accounts = dict.fromkeys(revoke_user(vault, user, account) for user, account in found.items())
        if host:
            take_keys(vault, fresh_keys())

        async def tell_all(owner: NatsBus, system: NatsBus) -> list[str]:
            await tell_accounts(system, vault, accounts)
            return await replace_keys(owner, system, vault, host) if host else []

        late = _told(home, vault, tell_all)
    for user in found:
        click.echo(f"{user}: has no rights any more")
    if host:
        _say_replaced(late)


@auth.command("rotate")
@directory_option
def rotate(directory: str) -> None:
    """Replace the keys that sign members of jobs, on all hosts that joined. Jobs train on: their members get new credentials.

    For keys that others may have seen; `rover auth revoke --host H` does this by itself for a host that is lost.
    """
    from rover_bus.auth.rotation import fresh_keys, take_keys
    from rover_bus.cli.rotating import replace_keys

    home = Home.find(directory).of_running()
    with _vault(home) as vault:
        take_keys(vault, fresh_keys())
        late = _told(home, vault, lambda owner, system: replace_keys(owner, system, vault))
    _say_replaced(late)


def _told(home: Home, vault: Vault, work: Callable[[NatsBus, NatsBus], Awaitable[list[str]]]) -> list[str]:
    """Tell the running stack what the vault says; return the hosts that are late. One that is stopped takes it in at its start."""
    try:
        return _as_owner(home, vault, work)
    except NoStack:
        click.echo("the stack does not run: it takes that in when it starts", err=True)
        return []


def _say_replaced(late: list[str]) -> None:
    click.echo(
        "the keys that sign members are replaced: members with former credentials have no rights any more"
    )
    for host in late:
        click.echo(
            f"{host}: has not taken the new keys yet; its members end unless it does within 10 s", err=True
        )


def _named(vault: Vault, named: str) -> tuple[str, str]:
    """Return the user and the account that a public key or a file of credentials names. Raises InputError."""
    from rover_bus.events import credentials

    if Path(named).exists():
        read = credentials.read(credentials.read_file(Path(named)))
        if read is None:
            raise InputError(f"{named} holds no credentials: name a public key or a file of credentials")
        return read.user, read.account
    accounts = {each.user: each.account for each in vault.users.all}
    if named not in accounts:
        raise InputError(f"{named}: no user of this stack: `rover auth users` lists them")
    return named, accounts[named]


@auth.command("token")
@click.option("--out", required=True, metavar="FILE", help="Where to write it, for its owner alone.")
@click.option("--ttl", default="1h", metavar="DURATION", help="How long it may be used; at most 7d [1h].")
@with_cluster
def token(stack: Address, out: str, ttl: str) -> None:
    """Write a token by which one host joins, once, with `rover join --token-file FILE`.

    The file says where the broker is and which authority signs its certificate, and holds a user that may ask to join and nothing
    else. Carry it by a safe way: the first host that shows it is let in.
    """
    from rover_bus.auth.host_vault import HostVault
    from rover_bus.auth.joining import write_token
    from rover_bus.auth.secret_files import write_secret
    from rover_bus.auth.vault import Vault

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


@auth.command("page-token")
@click.argument("name", default="")
@click.option("--look", is_flag=True, help="It only looks: plans are not approved with it.")
@click.option("--metrics", is_flag=True, help="It only scrapes /metrics: for Prometheus.")
@click.option("--remove", is_flag=True, help="Take the tokens of NAME away instead.")
@click.option("--out", default="", metavar="FILE", help="Write it there, for its owner alone [stdout].")
@click.option(
    "--file", default="", metavar="FILE", help="The file of tokens that is meant [the stack's own]."
)
@directory_option
def page_token(  # noqa: PLR0913 - the options of a command
    name: str, look: bool, metrics: bool, remove: bool, out: str, file: str, directory: str
) -> None:
    """Make a token for the page, the API or the metrics, in the name of NAME [yours]. It is shown once.

    What is done with it bears NAME in the job's log. It travels in the Authorization header, `Bearer TOKEN`.
    """
    from contextlib import nullcontext

    from rover_bus.auth.page_tokens import PageTokens
    from rover_bus.auth.secret_files import write_secret
    from rover_bus.cli.submission import asker

    name, home = name or asker(), Home.find(directory).of_running()
    tokens = PageTokens(Path(file).absolute() if file else home.page_tokens)
    with nullcontext() if file else _vault(home):
        if remove:
            if not tokens.remove(name):
                raise InputError(f"there is no token of {name!r}")
            click.echo(f"{name}: has no token any more")
            return
        text = tokens.make(name, ("metrics",) if metrics else ("look",) if look else ("act",))
    if out:
        write_secret(Path(out).absolute(), text + "\n")
        click.echo(f"{out}: a token of {name}")
    else:
        click.echo(text)


def _require(vault: Vault, tenant: str) -> None:

    if tenant not in vault.tenants:
        raise InputError(f"there is no tenant {tenant!r}: `rover auth list` shows those that there are")


@contextmanager
def _vault(home: Home) -> Iterator[Vault]:
    """Open the vault of a state directory, for one command at a time. Raises InputError where it cannot sign accounts."""
    import fcntl

    from rover_bus.auth.vault import Vault

    vault = Vault(home.auth)
    if not vault.signs_accounts:
        raise InputError(
            f"the keys of the stack are not in {home.auth}: run this on the machine of its `rover up`"
        )
    lock = os.open(home.auth, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield vault
    finally:
        os.close(lock)


def _as_owner(home: Home, vault: Vault, work: Callable[[NatsBus, NatsBus], Awaitable[T]]) -> T:
    """Run work as the owner of all accounts, beside a connection to the system account. Raises NoStack, BusError."""
    from rover_bus.cli.tenants import of_registrar

    url = home.read_record().url

    async def run() -> T:
        async with (
            of_registrar(url, vault.owner_credentials()) as owner,
            of_registrar(url, vault.system_credentials()) as system,
        ):
            return await work(owner, system)

    return asyncio.run(run())
