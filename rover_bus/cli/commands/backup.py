"""`rover backup` and `rover restore`: what a broker stored, in a directory, and back."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rover_bus.cli.given_keys import keys_option, take_given
from rover_bus.cli.home import A_RESTORE, Home, NoStack
from rover_bus.events.errors import InputError

if TYPE_CHECKING:
    from rover_bus.auth.account_keys import OneAccount
    from rover_bus.auth.vault import Vault

directory_option = click.option(
    "--dir", "home", default="", metavar="DIR", help="State directory [$ROVER_HOME, ./.rover]."
)
url_option = click.option(
    "--url",
    default="",
    metavar="URL",
    help="A broker that runs alone (`rover broker`), a cluster of them, or a broker of another owner.",
)
secret_option = click.option(
    "--secret-file",
    default="",
    metavar="FILE",
    help="What the owner of another broker gave [that of the stack that runs here].",
)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@directory_option
@url_option
@secret_option
@keys_option
def backup(directory: Path, home: str, url: str, secret_file: str, keys: str) -> None:
    """Write what the broker of this machine's stack, or another, stores into a new DIRECTORY, while jobs train.

    The state directory has the keys: of the stack, or of a `rover broker`. The backup has logs, facts, settings and tenants, in the
    layout of `nats account backup`; no checkpoints, which lie on their own storage, and no keys: copy `auth` of the state directory
    apart.
    """
    from rover_bus.cli.backups import take_backup

    of = Home.find(home).of_running()
    began_s = time.monotonic()
    opening = _keys_of(of, keys, secret_file or _secret_of_running(of))
    about = asyncio.run(take_backup(url or of.read_record().url, opening, directory))
    click.echo(f"{directory}: {about.bytes / 2**20:,.1f} MiB in {time.monotonic() - began_s:.1f} s")


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@directory_option
@url_option
@secret_option
@keys_option
def restore(directory: Path, home: str, url: str, secret_file: str, keys: str) -> None:
    """Put the backup in DIRECTORY into the state directory of a stack that does not run, or into a broker that holds nothing.

    Without --url: what the broker held is moved aside, not removed. With it: a broker that runs alone, or a cluster, to which
    nothing else is connected; the state directory has its keys. With --secret-file: a broker of another owner, whose account
    holds no stream named `ROVER_`. A new timeline begins: jobs that had not ended go on from their
    newest checkpoint once the stack is up, and what was decided after the backup counts no more.
    """
    from rover_bus.cli.backups import read_backup

    of, about = Home.find(home), read_backup(directory)
    if secret_file and not url:
        raise InputError("--secret-file is of a broker of another owner: name it by --url")
    jobs = (
        _restore_into(url, _keys_of(of, keys, secret_file), directory)
        if url
        else _restore_here(of, directory)
    )
    taken = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(about.taken_ms / 1000))
    place = f"the broker at {url}" if url else of.root
    click.echo(
        f"{place} is as it was at {taken}; `rover up` goes on with {', '.join(jobs) or 'no job: none ran then'}"
    )


def _secret_of_running(of: Home) -> str:
    """Return what a stack that runs on a broker of another owner shows to it, "" for any other one."""
    from rover_bus.auth.vault import Vault

    try:
        record = of.read_record()
    except NoStack:
        return ""
    file = record.secret_file
    return "" if record.embedded or not file or Vault.beside(file) is not None else file


def _keys_of(of: Home, folder: str, secret_file: str) -> Vault | OneAccount:
    """Return the keys of a folder, of an account of another owner, or of a state directory.

    Raises InputError where they do not open every account.
    """
    from rover_bus.auth.account_keys import OneAccount
    from rover_bus.auth.vault import Vault
    from rover_bus.events import credentials

    if secret_file and not folder:
        file = Path(secret_file).absolute()
        return OneAccount(file, credentials.read_file(file))
    vault = take_given(of, folder) if folder else Vault(of.auth)
    if not vault.owns_accounts:
        raise InputError(
            f"{folder or of.auth} has no keys that open every account: name the state directory of the stack, or of its "
            "`rover broker`, by --dir; on Kubernetes the Brain's keys by --keys; of another owner's, what he gave by --secret-file"
        )
    return vault


def _restore_into(url: str, keys: Vault | OneAccount, directory: Path) -> list[str]:
    from rover_bus.cli.backups import read_backup
    from rover_bus.cli.backups import restore as put_back
    from rover_bus.cli.filling import require_unused

    whole = directory.absolute()

    async def fill() -> list[str]:
        await require_unused(url, keys, read_backup(whole).tenants)
        return await put_back(url, keys, whole)

    return asyncio.run(fill())


def _restore_here(of: Home, directory: Path) -> list[str]:
    from rover_bus.auth.vault import Vault
    from rover_bus.cli.backups import read_backup
    from rover_bus.cli.backups import restore as put_back
    from rover_bus.events.broker import EmbeddedBroker

    about = read_backup(directory)
    of.create()
    lock = of.hold(A_RESTORE)
    try:
        vault = Vault(of.auth)
        vault.make_keys()
        vault.note_tenants({*vault.tenants, *about.tenants})
        # Where and on which port it lies is its own: what lived through the loss would reach it otherwise, and store things in it.
        beside = of.root / f"broker.{secrets.token_hex(4)}"
        try:
            with EmbeddedBroker(beside, rights=vault.server_configuration) as broker:
                jobs = asyncio.run(put_back(broker.url, vault, directory.absolute()))
            aside = _replace_store(of.broker / "store", beside / "store")
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    finally:
        os.close(lock)
    if aside is not None:
        click.echo(f"what the broker held is in {aside}")
    return jobs


def _replace_store(store: Path, whole: Path) -> Path | None:
    """Put a whole store in the place of another one; return where that one is now, None where there was none. Raises InputError."""
    aside = store.with_name(time.strftime("store.before-%Y%m%dT%H%M%SZ", time.gmtime()))
    was = store.exists()
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        if was:
            store.rename(aside)
        whole.rename(store)
    except OSError as error:
        raise InputError(f"{store} cannot be replaced by {whole}: {error.strerror}") from None
    return aside if was else None
