"""The security of a sandbox: its certificate authority, certificates for brokers and users, and how a client logs in.

For loopback and tests: keys are unencrypted, and only their owner can read them.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from kafka.net.sasl.oauth import AbstractTokenProvider

from maxbrod.sandbox.process import write_private
from maxbrod.sandbox.spec import PROTOCOLS, SASL_PLAINTEXT, SASL_SSL, SSL, jaas_client

CA_FILE: Final = "ca.pem"
_USER: Final = "user-"
_AUTHORITY: Final = "maxbrod sandbox"
_VALID_DAYS: Final = 365
_NAMES: Final = x509.SubjectAlternativeName(
    [x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
)

_TOKEN_LIFE_S: Final = 3600


def write_certificates(folder: Path, users: Iterable[str]) -> None:
    """Write `ca.pem`; and `server.pem` and a `user-<name>.pem` for each user, which hold a key and its certificate."""
    folder.mkdir(mode=0o700)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    write_private(folder / CA_FILE, _certificate(_AUTHORITY, ca_key.public_key(), ca_key, ca=True))
    for name in ("server", *(user_file_stem(user) for user in users)):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(name.removeprefix(_USER), key.public_key(), ca_key, ca=False)
        # PKCS 8, the only form that Kafka's PEM key store reads.
        key_pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
        write_private(folder / f"{name}.pem", key_pem + certificate)


def user_file_stem(user: str) -> str:
    # A user called "server" or "ca" must not overwrite the files of those.
    return f"{_USER}{user}"


def _certificate(
    common_name: str, key: ec.EllipticCurvePublicKey, signer: ec.EllipticCurvePrivateKey, *, ca: bool
) -> str:
    now = datetime.now(UTC)
    usage = x509.KeyUsage(
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
    draft = (
        x509.CertificateBuilder()
        .subject_name(_name(common_name))
        .issuer_name(_name(_AUTHORITY))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # A container's clock may lag behind the one that signed.
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
    )
    if ca:
        draft = draft.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    else:
        purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        for extension in (purposes, issuer, _NAMES):
            draft = draft.add_extension(extension, critical=False)
    return draft.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user on a listener."""

    bootstrap: str
    listener: str
    user: str
    password: str = field(repr=False)
    mechanism: str
    tls_dir: Path

    @property
    def protocol(self) -> str:
        return PROTOCOLS[self.listener]

    @property
    def sasl(self) -> bool:
        return self.protocol in {SASL_PLAINTEXT, SASL_SSL}

    @property
    def tls(self) -> bool:
        return self.protocol in {SSL, SASL_SSL}

    @property
    def user_pem(self) -> str:
        return str(self.tls_dir / f"{user_file_stem(self.user)}.pem")

    @property
    def ca_pem(self) -> str:
        return str(self.tls_dir / CA_FILE)


def kafka_python_properties(login: Login) -> dict[str, Any]:
    properties: dict[str, Any] = {"bootstrap_servers": login.bootstrap, "security_protocol": login.protocol}
    if login.tls:
        properties["ssl_cafile"] = login.ca_pem
    if login.protocol == SSL:
        properties |= {"ssl_certfile": login.user_pem, "ssl_keyfile": login.user_pem}
    if login.sasl and login.mechanism == "OAUTHBEARER":
        properties |= {"sasl_mechanism": login.mechanism, "sasl_oauth_token_provider": UnsecuredToken(login.user)}
    elif login.sasl:
        properties |= {
            "sasl_mechanism": login.mechanism,
            "sasl_plain_username": login.user,
            "sasl_plain_password": login.password,
        }
    return properties


def java_properties(login: Login) -> dict[str, str]:
    properties = {"bootstrap.servers": login.bootstrap, "security.protocol": login.protocol}
    if login.tls:
        properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": login.ca_pem}
    if login.protocol == SSL:
        properties |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": login.user_pem}
    if login.sasl:
        jaas = jaas_client(login.mechanism, login.user, login.password)
        properties |= {"sasl.mechanism": login.mechanism, "sasl.jaas.config": jaas}
    return properties


class UnsecuredToken(AbstractTokenProvider):  # type: ignore[misc] # kafka-python is untyped
    """An unsigned bearer token (RFC 7515, appendix A.5): the broker believes every claim."""

    def __init__(self, user: str) -> None:
        super().__init__()
        self._user = user

    def token(self) -> str:
        now = int(time.time())
        claims = {"sub": self._user, "iat": now, "exp": now + _TOKEN_LIFE_S}
        return f"{_base64url({'alg': 'none'})}.{_base64url(claims)}."


def _base64url(document: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()
