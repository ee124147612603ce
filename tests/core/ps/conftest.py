"""Servers without sockets, for the core ring: a driver that carries an exchange's frames straight to server cores."""

from __future__ import annotations

from collections import deque

import pytest
from moving_slots import Rollout, Training

from rover_bus.events.requests import ServerAddress
from rover_bus.events.starts import EMPTY
from rover_bus.ps.core import ServerCore
from rover_bus.ps.exchange import Exchange, LinkLost, OperationDone, Receive, Refresh, Reset, Send, advance
from rover_bus.ps.frame import unpack
from rover_bus.ps.routing import divide_slots


class Direct:
    """`store.Parameters` over cores in memory. `lose(effect)` may return True to break the connection at an effect."""

    def __init__(self, cluster, **options):
        self.cluster, self.exchange = cluster, Exchange(cluster.routing, **options)
        self.lose = lambda effect: False
        self.connected, self.made = [], 0  # servers, and connections made in all

    def __getattr__(self, name):
        operation = getattr(self.exchange, name)
        if name == "acknowledged":
            return operation
        return lambda *args: self.run(operation(*args))

    def pull(self, ids):
        return self.run(self.exchange.collect(self.run(self.exchange.ask(ids))))

    def push(self, batch, gradients, **options):
        self.run(self.exchange.push(batch, gradients, **options))

    def read(self, table, ids=None):
        return self.run(self.exchange.read(table, ids))

    def run(self, steps):
        result, lost = None, None
        while not isinstance(effect := advance(steps, result, lost), OperationDone):
            try:
                result, lost = self.perform(effect), None
            except LinkLost as error:
                lost = error
        return effect.value

    def perform(self, effect):
        if self.lose(effect):
            raise LinkLost("lost by the test")
        match effect:
            case Send(position, frame):
                core = self.cluster.cores[self.routing.servers[position].index]
                reply = core.answer(*unpack(bytearray(b"".join(frame))))
                self.replies[position].append(bytearray(b"".join(reply)))
            case Receive(position):
                return unpack(self.replies[position].popleft())
            case Reset(routing, afresh):
                self.reset(routing, afresh)
            case Refresh():
                return self.cluster.routing
        return None

    def reset(self, routing, afresh):
        """Keep what a driver would keep; nothing may be on its way there, or replies would be taken for others."""
        kept = {}
        if not afresh:
            kept = {server: at for at, server in enumerate(self.connected) if server in named(routing)}
            assert not any(self.replies[at] for at in kept.values())
        self.made += len(set(named(routing)) - set(kept))
        self.routing, self.connected = routing, named(routing)
        self.replies = [deque() for _ in routing.servers]


def named(routing):
    return [(server.index, server.incarnation) for server in routing.servers]


class Cluster:
    """Admitted, routed server cores."""

    def __init__(self, servers=2, seed=7, core=ServerCore):
        addresses = [ServerAddress(index, index + 1, []) for index in range(servers)]
        self.seed, self.routing = seed, divide_slots(addresses)
        self.cores = {address.index: core(address.index, address.incarnation) for address in addresses}
        for server in self.cores.values():
            server.admit(timeline=0, generation=0, start=EMPTY, seed=seed)
            server.route(self.routing)

    def join(self, **options):
        return Direct(self, **options)


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture(scope="session")
def make_cluster():
    return Cluster


@pytest.fixture
def moved(make_cluster):
    """Three servers, the master's part by hand, and a training on them."""
    cluster = make_cluster(servers=3)
    return cluster, Rollout(cluster), Training(cluster)
