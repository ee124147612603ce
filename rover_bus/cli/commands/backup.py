"""`rover backup` and `rover restore`: what the broker of this machine stored, in a directory, and back."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import time
from pathlib import Path

import click

from rover_bus.cli.home import A_RESTORE, Home
from rover_bus.events.errors import InputError

directory_option = click.option(
    "--dir", "home", default="", metavar="DIR", help="State directory [$ROVER_HOME, ./.rover]."
)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@directory_option
def backup(directory: Path, home: str) -> None:
    """Write what the broker of this machine stores into a new DIRECTORY, while jobs train.

    It has logs, facts, settings and tenants, in the layout of `nats account backup`; no checkpoints, which lie on their own
    storage, and no keys: copy `auth` of the state directory apart.
    """
    from rover_bus.auth.vault import Vault
    from rover_bus.cli.backups import take_backup

    of = Home.find(home).of_running()
    began_s = time.monotonic()
    about = asyncio.run(take_backup(of.read_record().url, Vault(of.auth), directory))
    click.echo(f"{directory}: {about.bytes / 2**20:,.1f} MiB in {time.monotonic() - began_s:.1f} s")


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@directory_option
def restore(directory: Path, home: str) -> None:
    """Put the backup in DIRECTORY into the state directory of a stack that does not run.

    What the broker held there is moved aside, not removed. A new timeline begins: jobs that had not ended go on from their newest
    checkpoint once the stack is up, and what was decided after the backup counts no more.
    """
    from rover_bus.auth.vault import Vault
    from rover_bus.cli.backups import read_backup
    from rover_bus.cli.backups import restore as put_back
    from rover_bus.events.broker import EmbeddedBroker

    of = Home.find(home)
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
    taken = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(about.taken_ms / 1000))
    if aside is not None:
        click.echo(f"what the broker held is in {aside}")
    click.echo(
        f"{of.root} is as it was at {taken}; `rover up` goes on with {', '.join(jobs) or 'no job: none ran then'}"
    )


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
