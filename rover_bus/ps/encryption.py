"""TLS on the sockets between hosts: a certificate of the process's own, which the bus vouches for (docs/design/0053).

The process that listens makes a key that never leaves its memory; the fingerprint of its certificate stands in its address, and
addresses come over the bus, which takes each from its owner alone. So a client knows which process it speaks with before it sends a
byte: no authority is asked, no key lies on a disk, nothing is renewed. Used by `stream` and by node/storage/peers.py.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import ssl
from functools import cache
from typing import NamedTuple

KIND = "tls"  # of an address
RECORD_BYTES = 16 << 10  # the most that one record holds
WAITS = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)  # of a socket that does not block


class SocketIdentity(NamedTuple):
    """What a process shows that listens. `fingerprint`: SHA-256 of its certificate, hexadecimal."""

    context: ssl.SSLContext
    fingerprint: str


def make_identity() -> SocketIdentity:
    """Return an identity that is this process's alone, and ends with it."""
    certificate, key = _make_certificate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # connections last; none is resumed
    descriptor = os.memfd_create("rover-certificate")  # OpenSSL reads files only: this one is memory
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(key + certificate)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    der = ssl.PEM_cert_to_DER_cert(certificate.decode())
    return SocketIdentity(context, hashlib.sha256(der).hexdigest())


def accept_encrypted(sock: socket.socket, identity: SocketIdentity) -> ssl.SSLSocket:
    """Return a connection that was accepted, as it is encrypted once its handshake is done. Raises OSError; then it is closed."""
    return identity.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)


def connect_encrypted(sock: socket.socket, fingerprint: str) -> ssl.SSLSocket:
    """Return the connection, encrypted to the process with this fingerprint. Raises OSError, and then the socket is closed."""
    encrypted = _client().wrap_socket(sock)
    shown = encrypted.getpeercert(binary_form=True) or b""
    if not hmac.compare_digest(hashlib.sha256(shown).hexdigest(), fingerprint):
        encrypted.close()
        raise ConnectionRefusedError("another process than the bus named listens there")
    return encrypted


@cache
def _client() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the fingerprint says more than a name
    context.verify_mode = ssl.CERT_NONE
    return context


def _make_certificate() -> tuple[bytes, bytes]:
    """Return a certificate and its key as PEM. It says nothing but its key: no name, no time is judged by."""
    from datetime import UTC, datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "rover socket")])
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(9999, 12, 31, tzinfo=UTC))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return built.public_bytes(Encoding.PEM), private
