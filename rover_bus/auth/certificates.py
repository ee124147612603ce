"""The stack's certificate authority and what it signs: how a connection knows that it speaks with this stack (docs/design/0049).

Fed by vault.py with the directory of keys; feeds the broker's configuration. `authority.pem` and its key are made once and kept
over upgrades; each host's certificate is made again when a third of its time is left. Apart from vault.py because `cryptography`
takes a tenth of a second to import, and a stack on loopback needs none of it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS, SERVED_DAYS = 20 * 365, 90
RENEWED_AT = 1 / 3  # of its time left
SKEW = timedelta(days=1)  # by which another machine's clock may be behind ours


class Pair(NamedTuple):
    """A certificate and its private key, each as PEM."""

    certificate: str
    key: str


def make_authority(now: datetime) -> Pair:
    """Return a new authority, which signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("rover stack")
    built = (
        _builder(name, name, key.public_key(), now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
    )
    return _pair(built.sign(key, hashes.SHA256()), key)


# A server of a cluster is a client of the others.
USES = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]


def make_served(authority: Pair, addresses: Iterable[str], now: datetime) -> Pair:
    """Return a certificate for what listens at these addresses (IPv4, IPv6 or names), signed by the authority."""
    signer = x509.load_pem_x509_certificate(authority.certificate.encode())
    signer_key = load_pem_private_key(authority.key.encode(), None)
    assert isinstance(signer_key, ec.EllipticCurvePrivateKey)
    key, names = ec.generate_private_key(ec.SECP256R1()), list(addresses)
    built = (
        _builder(_name(names[0]), signer.subject, key.public_key(), now, SERVED_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(USES), critical=False)
        .add_extension(x509.SubjectAlternativeName([_address(each) for each in names]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key()), critical=False
        )
    )
    return _pair(built.sign(signer_key, hashes.SHA256()), key)


def is_usable(served: Pair, authority: Pair, addresses: Iterable[str], now: datetime) -> bool:
    """Whether a certificate that was made before is this authority's, names these addresses, and has time left."""
    try:
        found = x509.load_pem_x509_certificate(served.certificate.encode())
        found.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate.encode()))
        named = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        key = load_pem_private_key(served.key.encode(), None)
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    left = found.not_valid_after_utc - now
    fresh = left > RENEWED_AT * timedelta(days=SERVED_DAYS)
    return (
        fresh
        and key.public_key() == found.public_key()
        and list(named) == [_address(each) for each in addresses]
    )


def days_left(certificate: Path, now: datetime) -> float | None:
    """Return how many days a certificate in a file has left, less than none when it has ended; None of what is no certificate."""
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (OSError, ValueError):
        return None
    return (found.not_valid_after_utc - now) / timedelta(days=1)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _address(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Pair(certificate.public_bytes(Encoding.PEM).decode(), private.decode())


def now_utc() -> datetime:
    """Return the time by which certificates are judged."""
    return datetime.now(UTC)
