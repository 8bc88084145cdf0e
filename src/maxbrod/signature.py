"""Signing keys, and signed JSON documents.

A key is an Ed25519 key in PEM form, or a secret of which both sides have a copy (HMAC-SHA-256). What is signed is the
canonical form of a document, so that a file may be written with other spaces and still verify. Without a key a document
gets a checksum in place of the signature: it shows an accident, and no forgery. Where keys and documents are kept is
not decided here.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
    load_pem_public_key,
)

from maxbrod import strict_json
from maxbrod.errors import CorruptDataError, UnsupportedFormatError, UsageError
from maxbrod.private_files import create_pair, create_private, refuse_readable_key

UNSIGNED: Final = "sha256"
"""The algorithm of a document that no key has signed."""
ED25519: Final = "ed25519"

_HMAC: Final = "hmac-sha256"
_SECRET_BYTES_MIN: Final = 16
_FIELDS: Final = {"algorithm", "key", "value"}
_HINT: Final = "give a file with 16 bytes or more of secret, or an Ed25519 key in PEM form"


@dataclass(frozen=True, slots=True)
class SigningKey:
    """Either a secret, or one half of an Ed25519 key. Its repr never shows the key."""

    secret: bytes | None = None
    private: Ed25519PrivateKey | None = None
    public: Ed25519PublicKey | None = None

    def __repr__(self) -> str:
        return f"SigningKey({self.algorithm}, {self.name})"

    @property
    def algorithm(self) -> str:
        return ED25519 if self.secret is None else _HMAC

    @property
    def name(self) -> str:
        """Identifies a key without revealing it."""
        if self.public is not None:
            return hashlib.sha256(self.public.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:16]
        return hashlib.sha256(b"maxbrod key " + (self.secret or b"")).hexdigest()[:16]

    def sign(self, text: bytes) -> bytes:
        """The signature of these bytes. UsageError: this is the public half of a key."""
        if self.secret is not None:
            return hmac.digest(self.secret, text, "sha256")
        if self.private is None:
            raise UsageError("a public key cannot sign", hint="give the private key")
        return self.private.sign(text)

    def has_signed(self, text: bytes, value: bytes) -> bool:
        """True if this key has signed these bytes."""
        if self.secret is not None:
            return hmac.compare_digest(hmac.digest(self.secret, text, "sha256"), value)
        try:
            if self.public is not None:
                self.public.verify(value, text)
                return True
        except (InvalidSignature, ValueError):
            pass
        return False


def create_signing_key(path: Path) -> SigningKey:
    """Create an Ed25519 key: the private half at `path`, mode 0600, the public half beside it, `.pub`.

    RefusedError if either exists: nothing is replaced, since what the older key has signed needs it.
    """
    private = Ed25519PrivateKey.generate()
    key = SigningKey(private=private, public=private.public_key())
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    create_pair(path, pem, public_pem(key))
    return key


def public_pem(key: SigningKey) -> bytes:
    """The public half in PEM form. UsageError: a secret has none."""
    if key.public is None:
        raise UsageError("a secret has no public half", hint="use an Ed25519 key")
    return key.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def read_key(path: Path) -> SigningKey:
    """Read a key. A line end after a secret is not part of it."""
    try:
        with path.open("rb") as file:
            data, found = file.read(), os.fstat(file.fileno())
    except OSError as error:
        raise UsageError(f"the key cannot be read: {error.strerror}", object_name=str(path), hint=_HINT) from error
    key = parse_key(data, name=str(path))
    if key.secret is not None or key.private is not None:
        refuse_readable_key(path, found)
    return key


def parse_key(data: bytes, *, name: str) -> SigningKey:
    try:
        if b"PRIVATE KEY-----" in data:
            private = load_pem_private_key(data, password=None)
            if isinstance(private, Ed25519PrivateKey):
                return SigningKey(private=private, public=private.public_key())
        elif b"PUBLIC KEY-----" in data:
            public = load_pem_public_key(data)
            if isinstance(public, Ed25519PublicKey):
                return SigningKey(public=public)
        elif len(data.rstrip(b"\r\n")) >= _SECRET_BYTES_MIN and not _is_public(data):
            return SigningKey(secret=data.rstrip(b"\r\n"))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        pass
    raise UsageError("this is not a signing key", object_name=name, hint=_HINT)


def _is_public(data: bytes) -> bool:
    """True if the data is some public key or certificate, which others may know and so is no secret."""
    text = data.lstrip()
    if text.startswith((b"-----BEGIN", b"---- BEGIN", b"ssh-", b"ecdsa-", b"sk-ssh-", b"{")):
        return True
    try:
        load_der_public_key(data)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return True


def signed(document: Mapping[str, Any], key: SigningKey | None) -> dict[str, Any]:
    """The document with its signature. It must consist of JSON values only."""
    text = canonical(document)
    if key is None:
        made = {"algorithm": UNSIGNED, "key": None, "value": hashlib.sha256(text).hexdigest()}
    else:
        made = {"algorithm": key.algorithm, "key": key.name, "value": key.sign(text).hex()}
    return {**document, "signature": made}


def verify_document(document: Mapping[str, Any], key: SigningKey | None, *, object_name: str) -> str:
    """The algorithm of the signature. CorruptDataError: the document was changed, or signed with another key."""
    rest = {name: value for name, value in document.items() if name != "signature"}
    text, found = canonical(rest), document.get("signature")
    if not isinstance(found, dict) or not isinstance(found.get("value"), str):
        raise CorruptDataError("it has no signature", operation="verify", object_name=object_name)
    # A signature does not cover itself, so it must contain nothing that is not compared with the expected value.
    if set(found) != _FIELDS:
        raise CorruptDataError(
            "its signature has unknown or missing fields",
            operation="verify",
            object_name=object_name,
            hint=f"a signature has {', '.join(sorted(_FIELDS))} and nothing else",
        )
    algorithm = str(found.get("algorithm"))
    if key is None and algorithm in {_HMAC, ED25519}:
        raise UsageError(
            f"it is signed ({algorithm}), but no key is given",
            object_name=object_name,
            hint="give the key, or its public half",
        )
    # If a key is given it must have signed the document: otherwise a forger could leave the signature out.
    expected, name = (UNSIGNED, None) if key is None else (key.algorithm, key.name)
    if algorithm != expected or found["key"] != name or not _holds(text, found["value"], key):
        what = "it is not signed" if algorithm == UNSIGNED and key is not None else "it is not what was signed"
        hint = "it was changed, or signed with another key"
        raise CorruptDataError(what, operation="verify", object_name=object_name, hint=hint)
    return algorithm


def canonical(document: Mapping[str, Any]) -> bytes:
    """The canonical form that is signed: sorted keys, no spaces, non-ASCII escaped."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _holds(text: bytes, value: str, key: SigningKey | None) -> bool:
    try:
        found = bytes.fromhex(value)
    except ValueError:
        return False
    return hashlib.sha256(text).digest() == found if key is None else key.has_signed(text, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedKind:
    """A kind of signed files: JSON with a version and one part, and a page for people beside it."""

    part: str
    version_field: str
    version: int
    noun: str
    """As in `the report cannot be read`."""
    called: str
    """As in `a report of version 2`."""
    wrong: str
    """What is said of another file."""

    def sign(self, values: Mapping[str, Any], key: SigningKey | None) -> dict[str, Any]:
        # Through JSON once, so that the signed values are those that a reader gets.
        part = strict_json.parse(json.dumps(values, allow_nan=False))
        return signed({self.version_field: self.version, self.part: part}, key)

    def write(self, folder: Path, stem: str, document: Mapping[str, Any], page: str) -> tuple[Path, Path]:
        """Write both files, of mode 0600. UsageError: one exists, or cannot be written."""
        data, shown = (folder / f"{stem}.{kind}" for kind in ("json", "html"))
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            create_private(data, (json.dumps(document, indent=2, sort_keys=True) + "\n").encode())
            create_private(shown, page.encode())
        except OSError as error:
            message = f"the {self.noun} cannot be written: {error.strerror}"
            raise UsageError(message, object_name=str(folder)) from error
        return data, shown

    def read(self, path: Path) -> dict[str, Any]:
        """The document in a file. Its signature is not verified yet."""
        name = str(path)
        try:
            document = strict_json.parse(path.read_bytes(), unique=True)
        except OSError as error:
            raise UsageError(f"the {self.noun} cannot be read: {error.strerror}", object_name=name) from error
        except ValueError as error:
            raise CorruptDataError(f"{self.wrong}: {error}", object_name=name) from error
        if not isinstance(document, dict) or not isinstance(document.get(self.part), dict):
            raise CorruptDataError(self.wrong, object_name=name)
        if (version := document.get(self.version_field)) != self.version:
            raise UnsupportedFormatError(
                f"{self.called} of version {version!r}", object_name=name, hint="use a newer release"
            )
        return document
