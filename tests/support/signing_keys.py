"""Keys that sign, made for one test."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from maxbrod.signature import SigningKey, parse_key

SECRET = parse_key(b"0123456789abcdef\n", name="test")


def pem_pair() -> tuple[bytes, bytes]:
    key = Ed25519PrivateKey.generate()
    return (
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    )


def key_pair() -> tuple[SigningKey, SigningKey]:
    private, public = (parse_key(data, name="test") for data in pem_pair())
    return private, public


def public_half(path: Path) -> Path:
    """Where `create_signing_key` writes the public half."""
    return path.with_name(f"{path.name}.pub")
