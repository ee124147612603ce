"""The secret of sockets is replaced while they speak: hosts learn of it one after the other, then the former is worth nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from rover_bus.events.errors import AccessDenied, InputError
from rover_bus.events.requests import RoutingTable, ServerAddress
from rover_bus.events.starts import ServerStart
from rover_bus.ps.client import RemoteParameters, ServerLink
from rover_bus.ps.core import ServerCore
from rover_bus.ps.routing import divide_slots
from rover_bus.ps.server import LOOK_S, Server
from rover_bus.ps.shared_secret import OVERLAP_S, SharedSecret
from rover_bus.ps.spec import Add, Growing
from rover_bus.ps.store import BatchKey

FORMER, NEW = b"former", b"new"
IDS = np.arange(8)


class Host:
    """What one host knows, and its clock."""

    def __init__(self) -> None:
        self.secret, self.now_s = FORMER, 0.0
        self.shared = SharedSecret(lambda: self.secret, lambda: self.now_s)


@contextmanager
def serving(host: Host) -> Iterator[RoutingTable]:
    server = Server(ServerCore(0, 1), host.shared, ["tcp:127.0.0.1:0"])
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        start = ServerStart("empty", 0)
        server.call(lambda: server.core.admit(timeline=0, generation=0, start=start, seed=1)).result(20)
        routing = divide_slots([ServerAddress(0, 1, server.addresses)], 0, 0, 0)
        server.call(lambda: server.core.route(routing)).result(20)
        yield routing
    finally:
        server.stop()
        thread.join(20)


@contextmanager
def working(routing: RoutingTable, secret: SharedSecret | bytes) -> Iterator[RemoteParameters]:
    with RemoteParameters(routing, secret) as worker:
        worker.declare(Growing(name="item", width=1, optimizer=Add()))
        yield worker


def push(worker: RemoteParameters, batch: int) -> None:
    worker.pull({"item": IDS})
    worker.push(BatchKey(0, batch), {"item": np.ones((len(IDS), 1), "f4")})


def pull_for(worker: RemoteParameters, seconds: float) -> None:
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        worker.pull({"item": IDS})
        time.sleep(LOOK_S / 10)


def dial(routing: RoutingTable, secret: SharedSecret | bytes) -> None:
    ServerLink(routing.servers[0], secret, 5.0, 5.0).close()


def test_a_host_that_knows_the_new_secret_and_one_that_does_not_yet_speak_with_one_another() -> None:
    early, late = Host(), Host()
    with serving(late) as of_late, serving(early) as of_early:
        early.secret = NEW
        dial(of_late, early.shared)
        dial(of_early, late.shared)
        late.secret = NEW
        dial(of_late, early.shared)
        dial(of_early, late.shared)


def test_the_former_secret_ends_and_with_it_the_connections_that_it_proved() -> None:
    host, theirs = Host(), Host()
    with (
        serving(host) as routing,
        working(routing, theirs.shared) as worker,
        working(routing, FORMER) as thief,
    ):
        push(worker, 0)
        thief.pull({"item": IDS})
        for each in (host, theirs):
            each.secret = NEW
            each.shared.known()
        push(worker, 1)
        for each in (host, theirs):
            each.now_s = OVERLAP_S + 1
        with pytest.raises(AccessDenied, match="refused the secret"):
            dial(routing, FORMER)
        with pytest.raises(AccessDenied, match="refused the secret"):
            pull_for(thief, 10 * LOOK_S)
        push(worker, 2)
        assert np.array_equal(worker.export()["item"].values, np.full((len(IDS), 1), 3, "f4"))


def test_a_secret_that_cannot_be_read_stays_what_it_was() -> None:
    said = iter([FORMER, NEW])

    def read() -> bytes:
        try:
            return next(said)
        except StopIteration:
            raise InputError("gone") from None

    shared = SharedSecret(read, lambda: 0.0)
    assert shared.known() == (NEW, FORMER)
    assert shared.known() == (NEW, FORMER)
