"""Real sockets: two servers in threads, one of them hostile to strangers; real processes, one of them killed."""

from __future__ import annotations

import os
import random
import socket
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest
from patience import PATIENCE_S, until

from rover_bus.events.errors import AccessDenied
from rover_bus.events.requests import ServerAddress
from rover_bus.events.starts import EMPTY, ServerStart
from rover_bus.ps import frame, handshake, messages
from rover_bus.ps.admission import Fence
from rover_bus.ps.client import RemoteParameters
from rover_bus.ps.core import ServerCore
from rover_bus.ps.local import LocalParameters
from rover_bus.ps.routing import divide_slots
from rover_bus.ps.server import Server
from rover_bus.ps.shared import map_memory
from rover_bus.ps.spec import Adagrad, Add, Dense, Growing, Hashed, Normal
from rover_bus.ps.store import BatchKey, GenerationChanged, ServersUnreachable
from rover_bus.ps.stream import connect

pytestmark = pytest.mark.chaos
SECRET = b"of this stack"
TABLES = (
    Growing(name="item", width=8, optimizer=Adagrad(rate=0.1), init=Normal(0.1)),
    Dense(name="w", shape=(200, 200), optimizer=Adagrad(rate=0.1), init=Normal(0.1)),
    Hashed(name="witness", rows=5000, width=1, optimizer=Add(), dtype="int32"),
)


class Serving:
    """Servers in threads of this process; each can be stopped and another life started in its place."""

    def __init__(self):
        self.servers, self.routing = {}, None

    def start(self, index, incarnation, address="tcp:127.0.0.1:0", **options):
        server = Server(ServerCore(index, incarnation, **options), SECRET, [address] if address else ())
        thread = threading.Thread(target=server.serve, name=f"server {index}.{incarnation}")
        thread.start()
        self.servers[index] = server, thread, incarnation
        return server

    def stop(self, index):
        server, thread, _ = self.servers.pop(index)
        server.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()

    def route(self, generation=0, epoch=0):
        addresses = [
            ServerAddress(i, life, server.addresses) for i, (server, _, life) in sorted(self.servers.items())
        ]
        self.routing = divide_slots(addresses, 0, generation, epoch)
        admission = {
            "timeline": 0,
            "generation": generation,
            "start": ServerStart("empty", generation),
            "seed": 7,
        }
        for server, _, _ in self.servers.values():
            server.call(lambda core=server.core: core.admit(**admission)).result(PATIENCE_S)
            server.call(lambda core=server.core: core.route(self.routing)).result(PATIENCE_S)
        return self.routing

    def newest(self, after, wait_s):
        return self.routing


@contextmanager
def serving(kinds=("tcp:127.0.0.1:0", "tcp:127.0.0.1:0"), **options):
    cluster = Serving()
    try:
        for index, address in enumerate(kinds):
            cluster.start(index, index + 1, address, **options)
        cluster.route()
        yield cluster
    finally:
        for index in list(cluster.servers):
            cluster.stop(index)


def train(parameters, steps, first=0, rng=None):
    rng = rng or np.random.default_rng(3)
    for number in range(first, first + steps):
        pulled = parameters.pull({"item": rng.integers(0, 3000, (64, 4))})
        gradients = {name: rng.standard_normal(v.shape).astype("f4") for name, v in sorted(pulled.items())}
        parameters.push(
            BatchKey(0, number), gradients, add={"witness": (np.arange(number * 50, number * 50 + 50), 1)}
        )
    parameters.flush()


@pytest.mark.parametrize("kind", ["tcp", "encrypted", "path", "abstract", "shared", "default"])
@pytest.mark.parametrize("in_flight", [0, 1, 2])
def test_servers_over_sockets_compute_what_one_process_computes(kind, in_flight, tmp_path):
    addresses = {
        "tcp": ("tcp:127.0.0.1:0",) * 2,
        "encrypted": ("tls:127.0.0.1:0",) * 2,
        "path": (f"unix:{tmp_path}/a", f"unix:{tmp_path}/b"),
        "abstract": (f"unix:@{tmp_path}/a", f"unix:@{tmp_path}/b"),
        "shared": (f"shm:@{tmp_path}/a", f"shm:@{tmp_path}/b"),
        "default": (None, None),
    }[kind]
    local = LocalParameters(seed=7)
    with (
        serving(addresses) as cluster,
        RemoteParameters(cluster.routing, SECRET, in_flight=in_flight) as remote,
    ):
        for parameters in (local, remote):
            parameters.declare(*TABLES)
            train(parameters, 20)
        ours, theirs = local.export(), remote.export()
        assert len(remote.acknowledged()) == 20
    for name in ours:
        assert np.array_equal(ours[name].values, theirs[name].values), name


@pytest.mark.parametrize("kind", ["tcp", "tls", "shared"])
def test_a_batch_larger_than_every_buffer_arrives(kind, tmp_path):
    address = f"shm:@{tmp_path}" if kind == "shared" else f"{kind}:127.0.0.1:0"
    with serving([address]) as cluster, RemoteParameters(cluster.routing, SECRET) as remote:
        remote.declare(Growing(name="item", width=64, optimizer=Add()))
        ids = np.arange(100_000)
        remote.pull({"item": ids})
        remote.push(BatchKey(0, 0), {"item": np.ones((100_000, 64), "f4")})
        assert np.all(remote.pull({"item": ids})["item"] == 1)
        assert np.all(remote.export()["item"].values == 1)


def test_another_secret_is_refused_on_both_sides():
    with serving() as cluster:
        stranger = RemoteParameters(cluster.routing, b"of another stack")
        with pytest.raises(AccessDenied, match="refused the secret"):
            stranger.declare(*TABLES)
        with pytest.raises(AccessDenied, match="another secret"):
            handshake.check_server(SECRET, b"n" * 32, b"m" * 32, b"x" * 32)
        with RemoteParameters(cluster.routing, SECRET) as worker:
            worker.declare(*TABLES)
            assert sum(counters.get("denied", 0) for counters in worker.statistics().values()) == 1


def test_a_worker_without_the_shared_memory_is_served_by_the_socket(monkeypatch, tmp_path):
    """One that cannot map it, and one whose server could not make any."""
    with serving((f"shm:@{tmp_path}/a", f"shm:@{tmp_path}/b")) as cluster:
        for place in ("client.map_memory", "server.create_memory"):
            with monkeypatch.context() as patched, RemoteParameters(cluster.routing, SECRET) as worker:
                patched.setattr(f"rover_bus.ps.{place}", lambda *given: map_memory(0) if given else None)
                worker.declare(*TABLES)
                train(worker, 3)
                assert len(worker.acknowledged()) == 3


def test_connections_with_shared_memory_leave_no_descriptor_behind(tmp_path):
    with serving((f"shm:@{tmp_path}/a", f"shm:@{tmp_path}/b")) as cluster:
        before = len(os.listdir("/proc/self/fd"))
        for number in range(5):
            with RemoteParameters(cluster.routing, SECRET) as worker:
                worker.declare(*TABLES)
                train(worker, 1, first=number)
        for server, _, _ in cluster.servers.values():
            server.call(server.core.statistics).result(PATIENCE_S)
        until(lambda: len(os.listdir("/proc/self/fd")) == before, "their descriptors closed")


def test_a_shared_body_where_none_can_be_ends_its_connection_only(tmp_path):
    section = messages.MessageSection(("item",), (3,))
    head = frame.share(
        frame.pack(msgspec.msgpack.encode(messages.Pull(fence=Fence(0, 0, 0, 1), sections=(section,))))[0]
    )
    with serving((f"shm:@{tmp_path}/a",)) as cluster, RemoteParameters(cluster.routing, SECRET) as worker:
        worker.declare(*TABLES)
        server = cluster.servers[0][0]
        [address] = server.addresses
        for where in ((1 << 40, 64, 0), (0, 1 << 60, 0), (0, 64, 9)):
            assert speak(address, head + struct.pack("<QQQ40x", *where)) == b""
        assert server.call(server.core.statistics).result(PATIENCE_S)["malformed"] == 3
        train(worker, 3)


def test_nobody_listening_ends_with_a_line_that_says_what_to_do():
    with serving() as cluster:
        routing = cluster.routing
    worker = RemoteParameters(routing, SECRET, patience_s=0.1)
    with pytest.raises(ServersUnreachable, match="is the job still running"):
        worker.declare(*TABLES)


def test_a_server_that_comes_back_in_a_new_generation_starts_empty_and_its_worker_is_told():
    with serving() as cluster, RemoteParameters(cluster.routing, SECRET, refresh=cluster.newest) as worker:
        worker.declare(*TABLES)
        train(worker, 5)
        cluster.stop(0)
        cluster.start(0, 9)
        cluster.route(generation=1)
        with pytest.raises(GenerationChanged):
            train(worker, 1, first=5)
        train(worker, 5)
        assert worker.export()["witness"].values.sum() == 250
        assert worker.acknowledged()[-1].incarnations == (9, 2)


# --- bytes that nobody meant ------------------------------------------------------------------------------------------------


def speak(address, *chunks, authenticated=True):
    """Say something to a server; return what it answers until it closes or has answered one frame."""
    sock = connect(address, 5.0)
    with sock:
        nonce = handshake.read_challenge(sock.recv(handshake.CHALLENGE_BYTES, socket.MSG_WAITALL))
        if authenticated:
            sock.sendall(handshake.respond(SECRET, nonce, b"m" * 32))
            handshake.check_server(
                SECRET, nonce, b"m" * 32, sock.recv(handshake.PROOF_BYTES, socket.MSG_WAITALL)
            )
        try:
            for chunk in chunks:
                sock.sendall(chunk)
            sock.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: sock.recv(65536), b""))
        except OSError:
            return b""


def test_truncated_oversized_and_foreign_bytes_end_their_connection_only():
    whole = b"".join(messages.encode(messages.Inspect()))
    with serving() as cluster:
        server = cluster.servers[0][0]
        [address] = server.addresses
        assert speak(address, whole).startswith(b"RPS1")
        assert speak(address, b"GET / HTTP/1.1\r\n\r\n" * 4, authenticated=False) == b""
        assert speak(address, b"GET / HTTP/1.1\r\n\r\n") == b""
        assert speak(address, whole[:4] + b"\xff" * 12) == b""
        assert speak(address, whole[:20]) == b""
        assert speak(address, whole[:7], whole[7:]).startswith(b"RPS1")
        counters = server.call(server.core.statistics).result(PATIENCE_S)
        assert (counters["malformed"], counters["denied"]) == (2, 1)


def fuzzed(rng, seeds):
    """A message changed a little, a lot, or not one at all."""
    message = bytearray(rng.choice(seeds))
    kind = rng.randrange(5)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    if kind == 1:
        del message[rng.randrange(len(message)) :]
    for _ in range(rng.randrange(1, 6)):
        if message:
            message[rng.randrange(len(message))] = rng.randrange(256)
    return bytes(message)


def test_a_hundred_thousand_fuzzed_messages_crash_nothing_and_are_all_counted():
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    core = ServerCore(0, 1, memory_limit_bytes=1 << 22)
    core.admit(timeline=0, generation=0, start=EMPTY, seed=1)
    core.route(divide_slots([ServerAddress(0, 1, [])]))
    fence, keys = Fence(0, 0, 0, 1), np.array([1, 5, 9], np.int64)
    section = messages.MessageSection(("item",), (3,))
    declared = messages.Declare(fence=fence, tables=TABLES)
    seeds = [
        (declared, []),
        (messages.Pull(fence=fence, sections=(section,), dense=(("w",),)), [keys]),
        (messages.Push(fence=fence, epoch=0, number=0, sections=(section,)), [keys, np.ones((3, 8), "f4")]),
        (messages.Push(fence=fence, epoch=0, number=1, dense=(("w",),)), [np.ones((625, 64), "f4")]),
        (
            messages.Push(
                fence=fence, epoch=0, number=1, pull=1, sections=(messages.MessageSection(("item",), (), 0),)
            ),
            [keys],
        ),
        (messages.Dump(fence=fence, table="item"), []),
        (messages.Inspect(), []),
    ]
    headers = [msgspec.msgpack.encode(message) for message, _ in seeds]
    bodies = [b"".join(frame.pack(b"", arrays)[1:]) for _, arrays in seeds]
    core.answer(headers[0], b"")
    refused = 0
    for _ in range(100_000):
        at = rng.randrange(len(seeds))
        header = fuzzed(rng, headers[at : at + 1]) if rng.random() < 0.8 else headers[at]
        body = fuzzed(rng, [bodies[at] or b"\0"]) if rng.random() < 0.5 else bodies[at]
        reply = messages.decode_reply(frame.unpack(b"".join(core.answer(header, bytearray(body))))[0])
        refused += isinstance(reply, messages.RefusedMessage)
    counters = core.statistics()
    counted = counters["malformed"] + sum(n for name, n in counters.items() if name.startswith("refused"))
    assert counted == refused > 50_000
    healthy = messages.Pull(fence=fence, sections=(section,))
    reply = core.answer(msgspec.msgpack.encode(healthy), bytearray(bodies[1]))
    assert isinstance(messages.decode_reply(frame.unpack(b"".join(reply))[0]), messages.Values)


# --- processes ----------------------------------------------------------------------------------------------------------------

WORKER = """
import sys
import msgspec, numpy as np
from rover_bus.events.requests import RoutingTable
from rover_bus.ps.client import RemoteParameters
from rover_bus.ps.store import BatchKey
from rover_bus.events.starts import EMPTY, ServerStart
routing = msgspec.json.decode(sys.argv[1], type=RoutingTable)
first, end = int(sys.argv[2]), int(sys.argv[3])
tables = __import__("rover_bus.ps.spec", fromlist=["spec"])
worker = RemoteParameters(routing, b"of this stack")
worker.declare(tables.Hashed(name="witness", rows=5000, width=1, optimizer=tables.Add(), dtype="int32"))
for number in range(first, end):
    worker.push(BatchKey(0, number), {}, add={"witness": (np.arange(number * 50, number * 50 + 50), 1)})
    print(number, flush=True)
worker.flush()
print("done", flush=True)
"""


@pytest.mark.parametrize("kinds", [("tcp:127.0.0.1:0",) * 2, (None, None)], ids=["tcp", "shared memory"])
def test_workers_killed_at_any_moment_leave_every_sample_applied_once(kinds):
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    with serving(kinds) as cluster:
        table = msgspec.json.encode(cluster.routing).decode()

        def start(first):
            command = [sys.executable, "-c", WORKER, table, str(first), "100"]
            return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        for _ in range(3):  # each begins again at 0, as an heir that knows nothing of what was acknowledged
            with start(0) as worker:
                for _ in range(rng.randrange(1, 90)):
                    worker.stdout.readline()
                worker.kill()
        with start(0) as worker:
            assert worker.stdout.read().endswith("done\n")
        with RemoteParameters(cluster.routing, SECRET) as judge:
            judge.declare(TABLES[2])
            assert np.all(judge.export()["witness"].values == 1)
            assert all(counters["updates_ignored"] > 0 for counters in judge.statistics().values())
