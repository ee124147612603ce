"""Sockets between hosts: encrypted to the one process that the bus named, and nothing is said to any other."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from rover_bus.events.requests import ServerAddress
from rover_bus.events.starts import ServerStart
from rover_bus.ps.client import RemoteParameters
from rover_bus.ps.core import ServerCore
from rover_bus.ps.encryption import connect_encrypted, make_identity
from rover_bus.ps.handshake import MAGIC
from rover_bus.ps.routing import divide_slots
from rover_bus.ps.server import HANDSHAKE_S, Server, addresses_at
from rover_bus.ps.spec import Add, Growing
from rover_bus.ps.store import BatchKey, ServersUnreachable
from rover_bus.ps.stream import connect, parse_address

SECRET = b"of this stack"
FRAME = re.compile(rb"RPS1...\0.....\0\0\0", re.DOTALL)  # the first bytes of a frame, with their zeros
ROWS = np.full((4096, 16), 0.7310585786300049, "f4")  # what must not be seen on its way


@contextmanager
def serving() -> Iterator[Server]:
    server = Server(ServerCore(0, 1), SECRET, ["tls:127.0.0.1:0"])
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        server.call(
            lambda: server.core.admit(timeline=0, generation=0, start=ServerStart("empty", 0), seed=1)
        ).result(20)
        yield server
    finally:
        server.stop()
        thread.join(20)


class Relay:
    """Stands between a client and a server, and keeps what passes."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port, self.seen = port, bytearray()
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(("127.0.0.1", self._port))
        pumps = [
            threading.Thread(target=self._pump, args=ends) for ends in ((client, server), (server, client))
        ]
        for pump in pumps:
            pump.start()
        for pump in pumps:
            pump.join()
        client.close()
        server.close()
        self._listener.close()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.seen += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


def test_neither_rows_nor_gradients_nor_frames_pass_in_the_clear() -> None:
    with serving() as server:
        (address,) = server.addresses
        kind, host, port, fingerprint = address.split(":")
        relay = Relay(int(port))
        through = ServerAddress(0, 1, [f"{kind}:{host}:{relay.port}:{fingerprint}"])
        routing = divide_slots([through], 0, 0, 0)
        server.call(lambda: server.core.route(routing)).result(20)
        with RemoteParameters(routing, SECRET) as remote:
            remote.declare(Growing(name="item", width=16, optimizer=Add()))
            ids = np.arange(len(ROWS))
            remote.pull({"item": ids})
            remote.push(BatchKey(0, 0), {"item": ROWS})
            assert np.array_equal(remote.pull({"item": ids})["item"], ROWS)
    assert len(relay.seen) > 2 * ROWS.nbytes
    assert FRAME.search(relay.seen) is None
    for secret in (ROWS[0].tobytes(), ROWS[0, :2].tobytes(), MAGIC, SECRET):
        assert secret not in relay.seen


def test_a_process_that_the_bus_did_not_name_hears_nothing() -> None:
    with serving() as server:
        (address,) = server.addresses
        named = address.rpartition(":")[0] + ":" + make_identity().fingerprint
        server.call(lambda: server.core.route(divide_slots([ServerAddress(0, 1, [named])], 0, 0, 0))).result(
            20
        )
        with pytest.raises(ConnectionRefusedError, match="another process"):
            connect(named, 5)
        worker = RemoteParameters(
            divide_slots([ServerAddress(0, 1, [named])], 0, 0, 0), SECRET, patience_s=0.2
        )
        with worker, pytest.raises(ServersUnreachable):
            worker.declare(Growing(name="item", width=16, optimizer=Add()))
        assert server.call(lambda: server.core.counters.get("denied", 0)).result(20) == 0


def test_a_client_that_speaks_in_the_clear_is_dropped_and_others_are_served() -> None:
    with serving() as server:
        (address,) = server.addresses
        _, target = parse_address(address)
        with socket.create_connection(target) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            plain.settimeout(HANDSHAKE_S)
            said = b""
            with suppress(ConnectionResetError):
                while more := plain.recv(4096):
                    said += more
        assert len(said) < 64, "an alert of TLS at most"
        assert MAGIC not in said
        connect(address, 5).close()


def test_a_client_that_never_shakes_hands_costs_the_server_no_turns() -> None:
    """Interest in writing would wake the loop again and again: it is writable all the time."""
    with serving() as server:
        _, target = parse_address(server.addresses[0])
        with socket.create_connection(target):
            turns = server.call(lambda: [key.events for key in server._selector.get_map().values()])
            assert 2 not in {events & 2 for events in turns.result(20)}


def test_an_identity_is_its_processes_own() -> None:
    one, other = make_identity(), make_identity()
    assert one.fingerprint != other.fingerprint
    assert one.context.minimum_version == ssl.TLSVersion.TLSv1_3
    ours, theirs = socket.socketpair()
    answered = threading.Thread(
        target=lambda: one.context.wrap_socket(theirs, server_side=True).close(), daemon=True
    )
    answered.start()
    connect_encrypted(ours, one.fingerprint).close()
    answered.join(20)


def test_loopback_is_not_encrypted_and_all_else_is() -> None:
    assert not any(address.startswith("tls:") for address in addresses_at())
    assert any(address.startswith("tls:127.0.0.2:") for address in addresses_at("127.0.0.2"))
    assert not any(address.startswith("tcp:") for address in addresses_at("127.0.0.2"))
