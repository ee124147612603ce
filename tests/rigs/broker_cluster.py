"""A broker cluster of three real servers on loopback, which know the users of one vault."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rover_bus.auth.vault import Vault
from rover_bus.events.broker import ClusterPlace, EmbeddedBroker


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def cluster_of_three(folder: Path, vault: Vault) -> Iterator[list[EmbeddedBroker]]:
    """Yield three servers that run; each is named `s` and its number."""
    ports = free_ports(3)
    with ExitStack() as running:
        made = []
        for number, port in enumerate(ports):
            routes = [f"127.0.0.1:{each}" for each in ports if each != port]
            place = ClusterPlace(f"s{number}", port, routes, vault.cluster_secret)
            broker = EmbeddedBroker(folder / f"s{number}", rights=vault.server_configuration)
            made.append(broker.join_cluster(place))
        for each in made:
            running.enter_context(each)
        yield made


def urls_of(servers: list[EmbeddedBroker]) -> str:
    return ",".join(each.url for each in servers)
