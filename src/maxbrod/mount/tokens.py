"""Bearer tokens: signed JWTs (RFC 7519), checked with public keys from a local file. Nothing is fetched.

Only asymmetric signatures count. A key fixes the algorithm that its signatures may have, never the token alone.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from maxbrod import strict_json
from maxbrod.errors import UsageError

PublicKey: TypeAlias = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey

_TOKEN_BYTES_MAX: Final = 64 << 10
_FILE_BYTES_MAX: Final = 1 << 20
_RSA_BITS_MIN: Final = 2048
_SKEW_S: Final = 30.0
"""How far the clocks of the issuer and of this machine may differ."""
_RSA_HASHES: Final[Mapping[str, hashes.HashAlgorithm]] = {
    "256": hashes.SHA256(),
    "384": hashes.SHA384(),
    "512": hashes.SHA512(),
}
_CURVES: Final[Mapping[str, tuple[str, ec.EllipticCurve, hashes.HashAlgorithm]]] = {
    "P-256": ("ES256", ec.SECP256R1(), hashes.SHA256()),
    "P-384": ("ES384", ec.SECP384R1(), hashes.SHA384()),
    "P-521": ("ES512", ec.SECP521R1(), hashes.SHA512()),
}


class TokenRefusedError(ValueError):
    """Why a token does not identify anybody. The message shows nothing of the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BearerToken:
    """A token that was checked."""

    principal: str
    expires_at_s: float


@dataclass(frozen=True, slots=True)
class _SigningKey:
    key_id: str | None
    algorithm: str | None
    key: PublicKey = field(repr=False)


@dataclass(slots=True, kw_only=True)
class TokenRules:
    """What a token must be. The file of keys is read again when it has changed, as issuers replace their keys."""

    keys_file: Path | None
    audience: str | None
    issuer: str | None = None
    principal_claim: str = "sub"
    unsecured: bool = False
    """Accept tokens without a signature: for tests on loopback only."""
    _keys: tuple[_SigningKey, ...] = ()
    _read_at: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.keys_file is not None:
            self._keys, self._read_at = read_keys(self.keys_file), _version(self.keys_file)
        elif not self.unsecured:
            raise UsageError("OAUTHBEARER needs a file of public keys", hint="give a JWKS file or a PEM public key")
        if self.audience is None and not self.unsecured:
            raise UsageError(
                "OAUTHBEARER needs the audience that tokens must have",
                hint="a token that was issued for another service must not open this one",
            )

    def check(self, token: str, now_s: float) -> BearerToken:
        """TokenRefusedError if it does not identify anybody now."""
        if len(token) > _TOKEN_BYTES_MAX:
            raise TokenRefusedError("the token is too long")
        try:
            head, body, signature = token.split(".")
            header, claims = _object(head), _object(body)
            signed = _decode(signature)
        except (ValueError, TypeError):
            raise TokenRefusedError("it is not a JWT") from None
        self._check_signature(header, f"{head}.{body}".encode(), signed)
        return self._check_claims(claims, now_s)

    def _check_signature(self, header: Mapping[str, Any], signed: bytes, signature: bytes) -> None:
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or "crit" in header:
            raise TokenRefusedError("its header asks for something that is not supported")
        if algorithm.lower() == "none":
            if not self.unsecured or signature:
                raise TokenRefusedError("it is not signed")
            return
        self._refresh()
        key_id = header.get("kid")
        fitting = [key for key in self._keys if key_id is None or key.key_id is None or key.key_id == key_id]
        if not any(_verifies(key, algorithm, signed, signature) for key in fitting):
            raise TokenRefusedError("no known key has signed it")

    def _check_claims(self, claims: Mapping[str, Any], now_s: float) -> BearerToken:
        expires = _number(claims.get("exp"))
        if expires is None or expires + _SKEW_S <= now_s:
            raise TokenRefusedError("it has expired, or does not say when")
        for name in ("nbf", "iat"):
            begins = _number(claims.get(name))
            if name in claims and (begins is None or begins - _SKEW_S > now_s):
                raise TokenRefusedError("it is not valid yet")
        if self.issuer is not None and claims.get("iss") != self.issuer:
            raise TokenRefusedError("it has another issuer")
        audience = claims.get("aud")
        meant = audience if isinstance(audience, list) else [audience]
        if self.audience is not None and self.audience not in meant:
            raise TokenRefusedError("it is for another audience")
        principal = claims.get(self.principal_claim)
        if not isinstance(principal, str) or not principal:
            raise TokenRefusedError("it names nobody")
        return BearerToken(principal=principal, expires_at_s=expires)

    def _refresh(self) -> None:
        if self.keys_file is None:
            return
        version = _version(self.keys_file)
        if version is not None and version != self._read_at:
            try:
                self._keys, self._read_at = read_keys(self.keys_file), version
            except UsageError:
                # Half written, or wrong: the keys that were good stay so until it is whole.
                return


def read_keys(path: Path) -> tuple[_SigningKey, ...]:
    """The keys of a JWKS file, or one PEM public key. UsageError if there is none that can be used."""
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise UsageError(f"the file of keys cannot be read: {error.strerror}", object_name=str(path)) from None
    try:
        if data.lstrip().startswith(b"-----BEGIN"):
            found = [_SigningKey(None, None, _usable(load_pem_public_key(data)))]
        else:
            document = strict_json.parse(data)
            listed = document.get("keys") if isinstance(document, dict) else None
            rows = listed if isinstance(listed, list) else []
            found = [key for row in rows if isinstance(row, dict) and (key := _from_jwk(row)) is not None]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"the file of keys cannot be used: {error}", object_name=str(path)) from None
    if not found:
        raise UsageError(
            "the file has no public key for signatures (RSA, EC or Ed25519)",
            object_name=str(path),
            hint="give the issuer's JWKS document, or a PEM public key",
        )
    return tuple(found)


def _from_jwk(row: Mapping[str, Any]) -> _SigningKey | None:
    """None for a key of another use or type: issuers list them together."""
    if row.get("use", "sig") != "sig":
        return None
    key: PublicKey
    if row.get("kty") == "RSA":
        exponent, modulus = (int.from_bytes(_decode(row[name]), "big") for name in ("e", "n"))
        key = rsa.RSAPublicNumbers(exponent, modulus).public_key()
    elif row.get("kty") == "EC" and row.get("crv") in _CURVES:
        x, y = (int.from_bytes(_decode(row[name]), "big") for name in ("x", "y"))
        key = ec.EllipticCurvePublicNumbers(x, y, _CURVES[row["crv"]][1]).public_key()
    elif row.get("kty") == "OKP" and row.get("crv") == "Ed25519":
        key = ed25519.Ed25519PublicKey.from_public_bytes(_decode(row["x"]))
    else:
        return None
    key_id, algorithm = row.get("kid"), row.get("alg")
    return _SigningKey(
        key_id if isinstance(key_id, str) else None, algorithm if isinstance(algorithm, str) else None, _usable(key)
    )


def _usable(key: object) -> PublicKey:
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < _RSA_BITS_MIN:
            raise ValueError(f"an RSA key has {key.key_size} bits, fewer than {_RSA_BITS_MIN}")
        return key
    if isinstance(key, ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey):
        return key
    raise ValueError("a key is neither RSA, EC nor Ed25519")


def _verifies(known: _SigningKey, algorithm: str, signed: bytes, signature: bytes) -> bool:
    if known.algorithm not in {None, algorithm}:
        return False
    key = known.key
    try:
        if isinstance(key, rsa.RSAPublicKey):
            digest = _RSA_HASHES.get(algorithm[2:])
            if digest is None or algorithm[:2] not in {"RS", "PS"}:
                return False
            scheme: padding.AsymmetricPadding = padding.PKCS1v15()
            if algorithm[:2] == "PS":
                scheme = padding.PSS(mgf=padding.MGF1(digest), salt_length=padding.PSS.DIGEST_LENGTH)
            key.verify(signature, signed, scheme, digest)
        elif isinstance(key, ed25519.Ed25519PublicKey):
            if algorithm not in {"EdDSA", "Ed25519"}:
                return False
            key.verify(signature, signed)
        else:
            return _verifies_by_curve(key, algorithm, signed, signature)
    except InvalidSignature:
        return False
    return True


def _verifies_by_curve(key: ec.EllipticCurvePublicKey, algorithm: str, signed: bytes, signature: bytes) -> bool:
    digest = next(
        (found for name, curve, found in _CURVES.values() if name == algorithm and curve.name == key.curve.name), None
    )
    size = (key.curve.key_size + 7) // 8
    if digest is None or len(signature) != 2 * size:
        return False
    r, s = (int.from_bytes(part, "big") for part in (signature[:size], signature[size:]))
    key.verify(encode_dss_signature(r, s), signed, ec.ECDSA(digest))
    return True


def _object(part: str) -> Mapping[str, Any]:
    document = strict_json.parse(_decode(part), unique=True)
    if not isinstance(document, dict):
        raise TypeError("it is no object")
    return document


def _decode(text: object) -> bytes:
    if not isinstance(text, str):
        raise TypeError("it is no text")
    try:
        return base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError("it is no base64url") from error


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _version(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - one call for each login
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
