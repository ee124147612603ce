"""Which process may speak: challenge and response with the stack's secret, both ways, before any byte of a message is read.

    server -> worker   magic (8 bytes), nonce (32)
    worker -> server   nonce (32), HMAC-SHA256(secret, "worker" + server's nonce + worker's nonce)
    server -> worker   HMAC-SHA256(secret, "server" + worker's nonce + server's nonce)

Used by both shells. Fixed lengths, nothing to decode. The server proves itself too, so that gradients never go to whatever
listens on a port that a dead server has left.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from rover_bus.events.errors import AccessDenied, BadMessage

MAGIC = b"ROVERPS1"
NONCE_BYTES = 32
CHALLENGE_BYTES = len(MAGIC) + NONCE_BYTES
PROOF_BYTES = 32
RESPONSE_BYTES = NONCE_BYTES + PROOF_BYTES


def challenge(server_nonce: bytes) -> bytes:
    """What a server says first."""
    return MAGIC + server_nonce


def read_challenge(message: bytes) -> bytes:
    """Return the server's nonce. Raises BadMessage when this is no parameter server."""
    if len(message) != CHALLENGE_BYTES or not message.startswith(MAGIC):
        raise BadMessage("this address is not a parameter server of this version")
    return message[len(MAGIC) :]


def respond(secret: bytes, server_nonce: bytes, worker_nonce: bytes) -> bytes:
    """What a worker answers."""
    return worker_nonce + _proof(secret, b"worker", server_nonce, worker_nonce)


def accept(known: Iterable[bytes], server_nonce: bytes, response: bytes) -> tuple[bytes, bytes]:
    """Check a worker's response; return the secret that it has, and the server's own proof. Raises AccessDenied."""
    worker_nonce, proof = response[:NONCE_BYTES], response[NONCE_BYTES:]
    for secret in known:
        if hmac.compare_digest(proof, _proof(secret, b"worker", server_nonce, worker_nonce)):
            return secret, _proof(secret, b"server", worker_nonce, server_nonce)
    raise AccessDenied("a worker with another secret was refused")


def check_server(secret: bytes, server_nonce: bytes, worker_nonce: bytes, proof: bytes) -> None:
    """Check the server's proof. Raises AccessDenied."""
    if not hmac.compare_digest(proof, _proof(secret, b"server", worker_nonce, server_nonce)):
        raise AccessDenied(
            "the parameter server has another secret: is its address from this job's routing table?"
        )


def _proof(secret: bytes, role: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.digest(secret, role + first + second, hashlib.sha256)
