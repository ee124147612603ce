"""Staged parts from daemon to daemon: a small server and its client, both blocking, each on a thread that gives way.

    handshake with the stack's secret (ps/handshake.py)
    holder -> owner   length (u32), Wanted (msgpack)
    owner -> holder   length (u32), Offered (msgpack), then the bytes that the offer describes (flash/copies.py)

Fed by the daemon's root of shared memory; used by the persister to hold copies, and to fetch a part that a server here
restores from. Sizes are bounded before anything is read; nothing is served that has no digests (P12).
"""

from __future__ import annotations

import secrets
import socket
import ssl
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from rover_bus.events.errors import AccessDenied, BadMessage, RoverError
from rover_bus.events.logs import get_logger
from rover_bus.flash import copies, places
from rover_bus.flash.copies import Offer, Since
from rover_bus.flash.errors import NoCheckpoint, StorageFailed
from rover_bus.flash.layout import Array
from rover_bus.flash.staged import StagedCut
from rover_bus.node.storage.parities import Parities, ServedParity
from rover_bus.node.storage.state import PartOfCut
from rover_bus.node.storage.throttle import give_way
from rover_bus.node.users import MemberUsers, acting
from rover_bus.ps import handshake
from rover_bus.ps.encryption import SocketIdentity, accept_encrypted, make_identity
from rover_bus.ps.server import LOOPBACK
from rover_bus.ps.shared_secret import Secret, known
from rover_bus.ps.stream import address_of, connect

LENGTH = struct.Struct("<I")
MOST_WANTED_BYTES = 1 << 16
MOST_OFFERED_BYTES = 1 << 28
SILENCE_S = 30.0
CONNECT_S = 3.0  # a host that is gone does not refuse: others are asked then
MOST_CONNECTIONS = 16
T = TypeVar("T")
log = get_logger("rover.node")


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of which cut, and what the holder has of it."""

    uid: str
    part: str
    generation: int
    cut: int
    since: Since = Since()
    differences: bool = False  # old XOR new, for a holder of parity
    parity: bool = False  # not the part itself: the parity block that stands for it


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """An offer, or why there is none."""

    offer: Offer | None = None
    parity: ServedParity | None = None
    problem: str = ""


WANTED, OFFERED = msgspec.msgpack.Decoder(Wanted), msgspec.msgpack.Decoder(Offered)  # as in flash/journal.py


class PartServer:
    """Serves what is staged below `root`, and the copies held there, to daemons that know the secret. At `address`, `host:port`."""

    def __init__(
        self,
        root: Path,
        secret: Secret,
        bind: str = "127.0.0.1",
        parities: Parities | None = None,
        users: MemberUsers | None = None,
    ) -> None:
        self._root, self._secret, self._parities = root, secret, parities or Parities()
        self._users = users
        self._listener = socket.create_server((bind, 0), backlog=MOST_CONNECTIONS)
        self._where = str(bind), int(self._listener.getsockname()[1])
        self._identity = None if bind == LOOPBACK else make_identity()
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._open: set[socket.socket] = set()
        self._closing = False
        asked = "tcp:" if self._identity is None else "tls:"
        self.address = address_of(self._listener, asked, self._identity)
        self._thread = threading.Thread(target=self._accept, name="rover-peers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End every connection; return when no thread is left."""
        self._closing = True
        with socket.socket() as last:  # wakes the one that accepts
            last.settimeout(1.0)
            last.connect_ex(self._where)
        self._thread.join()
        self._listener.close()
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for _ in range(MOST_CONNECTIONS):
            self._free.acquire()

    def _accept(self) -> None:
        give_way()
        while not self._closing:
            connection, _ = self._listener.accept()
            if self._closing or not self._free.acquire(blocking=False):
                connection.close()
                continue
            self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), name="rover-peer", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        give_way()
        try:
            connection.settimeout(SILENCE_S)
            if self._identity is not None:
                connection = self._encrypt(connection, self._identity)
                connection.do_handshake()
            self._prove(connection)
            wanted = _read_struct(connection, MOST_WANTED_BYTES, WANTED)
            with acting(self._users, wanted.uid):
                self._answer(connection, wanted)
        except (OSError, RoverError) as error:
            log.debug("a peer was not served", why=str(error))
        finally:
            self._open.discard(connection)
            connection.close()
            self._free.release()

    def _encrypt(self, connection: socket.socket, identity: SocketIdentity) -> ssl.SSLSocket:
        """Return the connection as it is spoken on beyond loopback. Raises OSError."""
        encrypted = accept_encrypted(connection, identity)
        self._open.discard(connection)  # its descriptor is the encrypted one's now
        self._open.add(encrypted)
        return encrypted

    def _prove(self, connection: socket.socket) -> None:
        nonce = secrets.token_bytes(handshake.NONCE_BYTES)
        connection.sendall(handshake.challenge(nonce))
        response = _exactly(connection, handshake.RESPONSE_BYTES)
        connection.sendall(handshake.accept(known(self._secret), nonce, response)[1])

    def _answer(self, connection: socket.socket, wanted: Wanted) -> None:
        try:
            if wanted.parity:
                served, block = self._parities.serve(wanted.uid, wanted.part, wanted.generation, wanted.cut)
                _send_struct(connection, Offered(parity=served))
                connection.sendall(block.data)
                return
            directory, staged = self._find(wanted)
        except RoverError as error:
            _send_struct(connection, Offered(problem=str(error)))
            return
        with staged:
            self._send(connection, wanted, directory, staged)

    def _send(self, connection: socket.socket, wanted: Wanted, directory: Path, staged: StagedCut) -> None:
        try:
            offer, blocks = copies.serve(
                directory, staged, wanted.part, wanted.since, differences=wanted.differences
            )
        except RoverError as error:
            _send_struct(connection, Offered(problem=str(error)))
            return
        _send_struct(connection, Offered(offer=offer))
        for block in blocks:
            connection.sendall(block.data)

    def _find(self, wanted: Wanted) -> tuple[Path, StagedCut]:
        """The part as it is staged here, else as it is held here for another host."""
        own = places.job_directory(self._root, wanted.uid)
        held = places.job_directory(self._root, copies.copies_of(wanted.uid))
        places.checked(wanted.part, "part")
        try:
            return own, copies.open_exactly(own, wanted.part, wanted.generation, wanted.cut)
        except NoCheckpoint:
            return held, copies.open_exactly(held, wanted.part, wanted.generation, wanted.cut)


class PeerSource:
    """One connection to the daemon at `address`, as `copies.Source`."""

    def __init__(
        self,
        address: str,
        secret: Secret,
        which: PartOfCut,
        *,
        differences: bool = False,
    ) -> None:
        generation, cut = which.cut
        self._wanted = Wanted(
            uid=which.uid, part=which.part, generation=generation, cut=cut, differences=differences
        )
        *newer, oldest = known(secret)
        for each in newer:
            with suppress(AccessDenied):  # it does not know this one yet
                self._open(address, each)
                return
        self._open(address, oldest)

    def _open(self, address: str, secret: bytes) -> None:
        try:
            self._socket = connect(address, CONNECT_S)
            self._socket.settimeout(SILENCE_S)
        except (OSError, ValueError) as error:
            raise StorageFailed(f"the daemon at {address} cannot be reached: {error}", delay_s=1.0) from None
        try:
            self._prove(secret)
        except BaseException:
            self._socket.close()
            raise

    def _prove(self, secret: bytes) -> None:
        nonce = secrets.token_bytes(handshake.NONCE_BYTES)
        server = handshake.read_challenge(_exactly(self._socket, handshake.CHALLENGE_BYTES))
        self._socket.sendall(handshake.respond(secret, server, nonce))
        try:
            proof = _exactly(self._socket, handshake.PROOF_BYTES)
        except StorageFailed:
            raise AccessDenied("a daemon refused the secret: is it of the same stack?") from None
        handshake.check_server(secret, server, nonce, proof)

    def ask(self, since: Since) -> Offer:
        _send_struct(self._socket, msgspec.structs.replace(self._wanted, since=since))
        offered = _read_struct(self._socket, MOST_OFFERED_BYTES, OFFERED)
        if offered.offer is None:
            raise NoCheckpoint(offered.problem or "the daemon has no such part")
        return offered.offer

    def read_parity(self) -> tuple[ServedParity, Array]:
        """The parity block that stands for the part. Raises NoCheckpoint if this daemon has none."""
        _send_struct(self._socket, msgspec.structs.replace(self._wanted, parity=True))
        offered = _read_struct(self._socket, MOST_OFFERED_BYTES, OFFERED)
        if offered.parity is None:
            raise NoCheckpoint(offered.problem or "the daemon has no such parity")
        block = np.empty(offered.parity.size_bytes, np.uint8)
        self.read_into(block)
        return offered.parity, block

    def read_into(self, target: Array) -> None:
        view = target.data
        while len(view):
            try:
                count = self._socket.recv_into(view)
            except OSError as error:
                raise StorageFailed(f"a daemon was lost while it sent a part: {error}", delay_s=1.0) from None
            if not count:
                raise StorageFailed("a daemon closed the connection while it sent a part", delay_s=1.0)
            view = view[count:]

    def close(self) -> None:
        self._socket.close()


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        try:
            more = connection.recv(min(size - len(received), 1 << 20))
        except OSError as error:
            raise StorageFailed(f"a daemon was lost: {error}", delay_s=1.0) from None
        if not more:
            raise StorageFailed("a daemon closed the connection", delay_s=1.0)
        received += more
    return received


def _send_struct(connection: socket.socket, value: msgspec.Struct) -> None:
    body = msgspec.msgpack.encode(value)
    try:
        connection.sendall(LENGTH.pack(len(body)) + body)
    except OSError as error:
        raise StorageFailed(f"a daemon was lost: {error}", delay_s=1.0) from None


def _read_struct(connection: socket.socket, most_bytes: int, kind: msgspec.msgpack.Decoder[T]) -> T:
    (length,) = LENGTH.unpack(_exactly(connection, LENGTH.size))
    if length > most_bytes:
        raise BadMessage(
            f"a message of {length} bytes where {most_bytes} are the most: the other side is no daemon of this release"
        )
    try:
        return kind.decode(_exactly(connection, length))
    except msgspec.MsgspecError as error:
        raise BadMessage(f"a message that no daemon of this release sends: {error}") from None
