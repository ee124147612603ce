"""`rover decode`, as click knows it: only its help comes here (entry.py answers the command itself)."""

from __future__ import annotations

import sys

import click

from rover_bus.cli import decode as decoding


@click.command()
def decode() -> None:
    """Turn a message body on stdin into one line of JSON on stdout.

    Made for `nats sub --translate "rover decode" "rover.>"`. What `nats sub --dump=-` prints is read as well, one line a message.
    Bytes that are no event of rover become an object that says what they are.
    """
    decoding.run(sys.stdin.buffer, sys.stdout.buffer)
