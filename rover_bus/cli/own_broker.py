"""A broker with the rights of a stack: how it is made from a state directory, and what is done about it while it runs.

Used by `rover up` for the broker of a stack (stack.py) and by `rover broker` for one that runs alone, on a machine or in a pod of
its own. Both have the same keys, the same store and the same care.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from rover_bus.auth.vault import Vault
from rover_bus.cli.home import Home
from rover_bus.cli.supervisor import Note, Tended
from rover_bus.cli.tended_broker import MendedBroker, RenewedCertificate, WatchedDisk
from rover_bus.events.broker import ClusterPlace, EmbeddedBroker
from rover_bus.events.errors import InputError

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 60.0  # it reads its store before it answers

Sync = Literal["default", "always"]


@dataclass(frozen=True, slots=True)
class OwnBroker:
    """A broker of one's own. `sync`: when it syncs to disk; 0 bytes is no limit; port 0: the one of last time, or any."""

    sync: Sync = "default"
    max_file_store_bytes: int = 0
    port: int = 0
    names: Sequence[str] = ()  # it is reached by, besides its address: its certificate has them
    alone: bool = False  # the Brain has another vault than this
    server_name: str = ""  # in a cluster
    cluster_port: int = 0  # 0: it is alone
    routes: Sequence[str] = ()  # ADDRESS:PORT of the others


A_BROKER = OwnBroker()  # what a stack has unless told otherwise


def start_broker(home: Home, vault: Vault, wanted: OwnBroker, bind: str) -> EmbeddedBroker:
    """Start a broker that listens at an address and knows the users of a vault: encrypted, unless it is on loopback.

    Raises BrokerFailed, BrokerMissing.
    """
    home.adopt_store(vault.control_account)
    _require_store(home, bool(wanted.cluster_port))
    broker = EmbeddedBroker(
        home.broker,
        host=bind,
        port=wanted.port,
        sync=wanted.sync,
        rights=partial(vault.server_configuration, knows_runs=not wanted.alone),
        max_file_store_bytes=wanted.max_file_store_bytes,
    )
    if bind != LOOPBACK:
        broker.encrypt(partial(vault.certificate, names=tuple(wanted.names)))
    if wanted.cluster_port:
        authority = vault.authority_file if bind != LOOPBACK else None
        broker.join_cluster(
            ClusterPlace(
                wanted.server_name, wanted.cluster_port, wanted.routes, vault.cluster_secret, authority
            )
        )
    return broker.start(START_TIMEOUT_S)


def _require_store(home: Home, in_cluster: bool) -> None:
    """Raise InputError for a store of the other kind: a server would start, and know none of the streams in it."""
    store = home.broker / "store" / "jetstream"
    of_cluster = any(store.glob("*/_js_/_meta_"))
    if in_cluster and not of_cluster and any(store.glob("*/streams/*")):
        raise InputError(
            f"{home.broker} holds the streams of a broker that ran alone, and a server of a cluster would not know them: "
            "begin the cluster with directories that hold only `auth`, and fill it by `rover backup` and `rover restore --url`"
        )
    if of_cluster and not in_cluster:
        raise InputError(
            f"{home.broker} is of one server of a cluster: start it with --cluster-port and --route, as before"
        )


def care(broker: EmbeddedBroker, say: Callable[[object], None], note: Note) -> list[Tended]:
    """Return what looks after a broker that runs: it is started again, its disk is watched, its certificate renewed."""
    return [
        MendedBroker(broker, say, note),
        WatchedDisk(broker, say),
        RenewedCertificate("broker", broker.renew, say),
    ]
