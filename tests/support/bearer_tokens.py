"""Signed JWTs, made by hand, and the keys that verify them as a JWKS document has them."""

from __future__ import annotations

import base64
import hmac
import json
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

NOW_S = 1_000_000.0


def b64(data: bytes | dict[str, Any]) -> str:
    raw = json.dumps(data).encode() if isinstance(data, dict) else data
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def number(value: int) -> str:
    return b64(value.to_bytes((value.bit_length() + 7) // 8, "big"))


RSA = rsa.generate_private_key(65537, 2048)
CURVE = ec.generate_private_key(ec.SECP256R1())
EDWARDS = ed25519.Ed25519PrivateKey.generate()
STRANGER = rsa.generate_private_key(65537, 2048)
CLAIMS = {"sub": "alice", "aud": ["kafka", "other"], "iss": "https://issuer", "exp": NOW_S + 300, "iat": NOW_S}


def signed(header: dict[str, Any], claims: dict[str, Any], key: Any = None) -> str:
    text = f"{b64(header)}.{b64(claims)}"
    algorithm, data = header.get("alg", ""), text.encode()
    if isinstance(key, rsa.RSAPrivateKey):
        digest = hashes.SHA256()
        scheme: Any = padding.PKCS1v15()
        if algorithm.startswith("PS"):
            scheme = padding.PSS(mgf=padding.MGF1(digest), salt_length=32)
        signature = key.sign(data, scheme, digest)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        r, s = decode_dss_signature(key.sign(data, ec.ECDSA(hashes.SHA256())))
        signature = r.to_bytes(32, "big") + s.to_bytes(32, "big")
    elif isinstance(key, ed25519.Ed25519PrivateKey):
        signature = key.sign(data)
    elif isinstance(key, bytes):
        signature = hmac.digest(key, data, "sha256")
    else:
        signature = b""
    return f"{text}.{b64(signature)}"


def rsa_jwk(key: rsa.RSAPrivateKey, **fields: str) -> dict[str, Any]:
    numbers = key.public_key().public_numbers()
    return {"kty": "RSA", "n": number(numbers.n), "e": number(numbers.e), **fields}
