"""The sandbox's own certificate authority, and certificates for the brokers and for each user, as PEM.

For loopback and tests: keys are unencrypted, and only their owner can read them.
"""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from maxbrod.sandbox.node import write_private

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

CA_FILE: Final = "ca.pem"
_VALID_DAYS: Final = 365
_NAMES: Final = x509.SubjectAlternativeName(
    [x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
)


def write_certificates(folder: Path, users: Iterable[str]) -> None:
    """Write `ca.pem`; and `server.pem` and a `user-<name>.pem` for each user, which hold a key and its certificate."""
    folder.mkdir(mode=0o700)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = _authority(ca_key)
    write_private(folder / CA_FILE, _pem(ca))
    for name in ("server", *(user_file_stem(user) for user in users)):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(name.removeprefix(_USER), key.public_key(), ca, ca_key)
        write_private(folder / f"{name}.pem", _key_pem(key) + _pem(certificate))


_USER: Final = "user-"


def user_file_stem(user: str) -> str:
    # A user called "server" or "ca" must not overwrite the files of those.
    return f"{_USER}{user}"


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = _name("maxbrod sandbox")
    draft = _draft(name, name, key.public_key())
    draft = draft.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    draft = draft.add_extension(_usage(ca=True), critical=True)
    draft = draft.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return draft.sign(key, hashes.SHA256())


def _certificate(
    common_name: str, key: ec.EllipticCurvePublicKey, ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    draft = _draft(_name(common_name), ca.subject, key)
    purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    draft = draft.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    draft = draft.add_extension(_usage(ca=False), critical=True)
    draft = draft.add_extension(purposes, critical=False)
    draft = draft.add_extension(issuer, critical=False)
    return draft.add_extension(_NAMES, critical=False).sign(ca_key, hashes.SHA256())


def _draft(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # A container's clock may lag behind the one that signed.
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_VALID_DAYS))
    )


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    # PKCS 8, the only form that Kafka's PEM key store reads.
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
