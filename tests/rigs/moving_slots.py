"""Slots on their way between servers without sockets: the master's part by hand, and a training that must not notice."""

from __future__ import annotations

import itertools

import numpy as np

from rover_bus.events.requests import MoveOrder, RoutingTable, ServerAddress
from rover_bus.ps.changes import HalfChanged
from rover_bus.ps.exchange import LinkLost
from rover_bus.ps.frame import unpack
from rover_bus.ps.local import LocalParameters
from rover_bus.ps.routing import owner_of_slots
from rover_bus.ps.spec import Adagrad, Adam, Add, Dense, Growing, Hashed, Normal
from rover_bus.ps.store import BatchKey
from rover_bus.ps.transfer import Ask, RunOnTables, Transfer, TransferAnswer

TABLES = (
    Growing(name="item", width=4, optimizer=Adagrad(rate=0.1), init=Normal(0.1)),
    Growing(name="user", width=4, optimizer=Adagrad(rate=0.1), init=Normal(0.1)),
    Hashed(name="word", rows=10_000, width=2, optimizer=Adam(rate=0.1), init=Normal(0.1)),
    Dense(name="w", shape=(300, 70), optimizer=Adagrad(rate=0.1), init=Normal(0.1)),
    Growing(name="count", width=1, optimizer=Add(), dtype="int64"),
)


def compress(owner):
    """Runs of slots with one owner."""
    edges = [0, *(at for at in range(1, len(owner)) if owner[at] != owner[at - 1]), len(owner)]
    return [(owner[first], first, end) for first, end in itertools.pairwise(edges)]


class Rollout:
    """Moves over the servers of a cluster, a step at a time, as a master and two servers would do them."""

    def __init__(self, cluster):
        self.cluster, self.moves = cluster, 0
        self.lost = set()  # numbers of requests whose answer is lost once
        self.answer_s = 0.0  # that a source takes

    def order(self, source, target, slots):
        self.moves += 1
        address = {s.index: s for s in self.cluster.routing.servers}
        for index, core in self.cluster.cores.items():
            address.setdefault(index, ServerAddress(index, core.state.incarnation, []))
        return MoveOrder(
            move=self.moves,
            plan=1,
            epoch=self.cluster.routing.epoch,
            slots=slots,
            source=address[source],
            target=address[target],
        )

    def begin(self, order):
        """Return a generator that fetches one answer at every `next`, and the transfer."""
        for index in (order.source.index, order.target.index):
            self.cluster.cores[index].follow_moves([order])
        transfer = Transfer(order, self.cluster.cores[order.target.index])
        return self.steps(transfer), transfer

    def steps(self, transfer):
        steps, result, error, asked = transfer.steps(), None, None, 0
        while True:
            try:
                effect = steps.throw(error) if error else steps.send(result)
            except StopIteration:
                return
            result = error = None
            match effect:
                case RunOnTables(function):
                    try:
                        result = function()
                    except HalfChanged:
                        raise  # it ends the server
                    except Exception as raised:  # noqa: BLE001
                        error = raised  # as live: the generator knows what its effects may raise
                case Ask(server, frame):
                    asked += 1
                    result = TransferAnswer(*carry(self.cluster.cores[server.index], frame), self.answer_s)
                    if asked in self.lost:
                        error = LinkLost("lost by the test")
                    yield asked

    def routed(self, order):
        """The master decides: the slots belong to the target."""
        owner = [self.cluster.routing.servers[at].index for at in owner_of_slots(self.cluster.routing)]
        for first, end in order.slots:
            owner[first:end] = [order.target.index] * (end - first)
        cores = self.cluster.cores
        servers = [ServerAddress(i, cores[i].state.incarnation, []) for i in sorted(set(owner))]
        owners = compress(owner)
        old = self.cluster.routing
        self.cluster.routing = RoutingTable(
            timeline=old.timeline,
            generation=old.generation,
            epoch=old.epoch + 1,
            owners=owners,
            servers=servers,
        )
        return self.cluster.routing

    def decide(self, order):
        table = self.routed(order)
        for core in self.cluster.cores.values():
            core.route(table)
            core.follow_moves([])

    def move(self, source, target, slots, between=lambda: None):
        order = self.order(source, target, slots)
        steps, transfer = self.begin(order)
        for _ in steps:
            if not self.cluster.cores[source].state.frozen:
                between()
        assert transfer.status.phase == "ready", transfer.status
        self.decide(order)


def carry(core, frame):
    return unpack(bytearray(b"".join(core.answer(*unpack(bytearray(b"".join(frame)))))))


class Training:
    """The same batches into servers and into one process: after every one of them both must be equal, to the bit."""

    def __init__(self, cluster, seed=3):
        self.servers, self.alone = cluster.join(), LocalParameters(cluster.seed)
        self.rng, self.number = np.random.default_rng(seed), 0
        for parameters in (self.servers, self.alone):
            parameters.declare(*TABLES)

    def step(self):
        rng = self.rng
        ids = {
            "item": rng.integers(0, 500, 40),
            "user": rng.integers(0, 300, (10, 3)),
            "word": rng.integers(0, 10_000, 60),
        }
        draws = {}
        for parameters in (self.servers, self.alone):
            pulled = parameters.pull(ids)
            for name, values in sorted(pulled.items()):
                draws.setdefault(name, rng.standard_normal(values.shape).astype("f4"))
            add = {"count": (np.arange(self.number * 7, self.number * 7 + 20), 1)}
            parameters.push(BatchKey(0, self.number), {name: draws[name] for name in pulled}, add=add)
            parameters.flush()
        self.number += 1

    def check(self):
        there, here = self.servers.export(), self.alone.export()
        for name, whole in here.items():
            assert np.array_equal(there[name].values, whole.values), name
            assert np.array_equal(there[name].ids, whole.ids) if whole.ids is not None else True
