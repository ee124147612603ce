"""What a service is told of HTTP on its command line: where to listen, what to demand.

Read by serve.py, made by stack.py and `rover web`.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import socket
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rover_bus.events.errors import InputError

LOOPBACK = "127.0.0.1"
PORT = 8642  # of `rover web`
BACKLOG = 128


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """`probe`: ADDRESS:PORT for two words, "" for none; the rest is about what serves the page (docs/design/0063).

    `listen_fd`: a socket that listens already, -1 for none. `names`: by which the server is reached, besides its address.
    """

    probe: str = ""
    listen: str = f"{LOOPBACK}:{PORT}"
    listen_fd: int = -1
    tokens: str = ""
    names: tuple[str, ...] = ()
    certificate: str = ""
    key: str = ""
    open_metrics: bool = False

    @classmethod
    def take(cls, given: dict[str, Any]) -> HttpOptions:
        """Take what `add_http_options` asked for out of what was given."""
        taken = {each.name: given.pop(each.name) for each in fields(cls)}
        return cls(**(taken | {"names": tuple(taken["names"])}))


def add_http_options(parser: argparse.ArgumentParser) -> None:
    """Let a command line say it."""
    group = parser.add_argument_group("HTTP")
    group.add_argument("--probe", default=os.environ.get("ROVER_PROBE", ""), metavar="ADDRESS:PORT")
    group.add_argument("--listen", default=f"{LOOPBACK}:{PORT}", metavar="ADDRESS:PORT")
    group.add_argument("--listen-fd", type=int, default=-1)
    group.add_argument("--tokens", default="", metavar="FILE")
    group.add_argument("--name", dest="names", action="append", default=[])
    group.add_argument("--certificate", default="", metavar="FILE")
    group.add_argument("--key", default="", metavar="FILE")
    group.add_argument("--open-metrics", action="store_true")


def split_address(text: str, option: str) -> tuple[str, int]:
    """Return address and port of ADDRESS:PORT. Raises InputError."""
    address, colon, port = text.rpartition(":")
    try:
        named = ipaddress.ip_address(address.strip("[]"))
        if not colon or not 0 <= int(port) <= 65535:
            raise ValueError
    except ValueError:
        raise InputError(f"{option} {text}: write ADDRESS:PORT, for example {LOOPBACK}:{PORT}") from None
    return str(named), int(port)


def is_loopback(address: str) -> bool:
    """Whether only programs of this machine reach an address."""
    return ipaddress.ip_address(address).is_loopback


def listen_at(address: str, port: int, option: str) -> socket.socket:
    """Return a socket that listens. Raises InputError where it cannot."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise InputError(
            f"{option} {address}:{port}: it cannot be listened at there ({error.strerror})"
        ) from None
    return listening


def listen_kept(address: str, record: Path) -> socket.socket:
    """Return a socket that listens at the port that it had last time, or at any.

    `record`: where that is noted. Raises InputError.
    """
    try:
        former = int(record.read_text())
    except (OSError, ValueError):
        former = 0
    try:
        listening = listen_at(address, former, "the page at")
    except InputError:
        listening = listen_at(address, 0, "the page at")
    record.write_text(f"{listening.getsockname()[1]}\n")
    return listening
