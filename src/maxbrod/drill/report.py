"""The report of a drill: as a value, as a signed document, and as files."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
    load_pem_public_key,
)

from maxbrod import strict_json
from maxbrod.archive.archive import Proof
from maxbrod.drill.html import render
from maxbrod.errors import EXIT_DONE, EXIT_FAILED, EXIT_INCOMPLETE, CorruptDataError, UnsupportedFormatError, UsageError
from maxbrod.private_files import refuse_readable_key
from maxbrod.work.report import Report

if TYPE_CHECKING:
    from maxbrod.restore.plan.sources import Source

VERSION_FIELD: Final = "maxbrod.drill"
VERSION: Final = 1
NOT_COMPARED: Final = "not compared"


class DrillVerdict(StrEnum):
    PROVEN = "proven"
    """Every sampled record was restored and equals the archive's."""
    DIFFERS = "differs"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """A sampled partition: the offsets that the archive covers, and those that it lacks."""

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    gaps: Mapping[str, int]
    """Offsets without data, by reason."""
    lacking: int
    """The number of ranges that the catalog knows to be damaged, or neither archived nor explained."""
    outcome: str = NOT_COMPARED
    """The outcome: equal, differs, failed, or not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillReport(Report):
    published = ("exit_code", "records", "lacking")

    drill_id: str
    verdict: DrillVerdict
    archive: str
    run_id: str | None
    """The backup as of which the archive was read."""
    cluster: str
    """The bootstrap servers, or `sandbox`."""
    cluster_id: str
    started_at_ms: int
    finished_at_ms: int
    sample: str
    seed: int | None
    """Draws the same partitions again; None if all were drawn."""
    partitions_known: int
    """The number of partitions with records."""
    covered: tuple[Covered, ...]
    durations_s: Mapping[str, float]
    versions: Mapping[str, str]
    restore: Mapping[str, Any] | None = None
    comparison: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    """The error that ended it; of several failures the gravest."""
    failures: tuple[Mapping[str, Any], ...] = ()
    """All failures, with topic or partition, offset, object and error."""
    leftovers: tuple[str, ...] = ()
    """Topics of earlier, killed drills, which this drill removed."""
    remains: tuple[str, ...] = field(default=())
    """Topics of this drill that could not be removed."""

    @property
    def exit_code(self) -> int:
        if self.verdict is DrillVerdict.PROVEN:
            return EXIT_FAILED if self.remains else EXIT_DONE
        if self.verdict is DrillVerdict.FAILED and self.error is not None:
            return int(self.error["exit_code"])
        return EXIT_INCOMPLETE

    @property
    def lacking(self) -> int:
        """The number of ranges that the archive is known to lack in the sample."""
        return sum(range_.lacking for range_ in self.covered)

    @property
    def records(self) -> int:
        return 0 if self.comparison is None else int(self.comparison["source_records"])


def covered_of(source: Source) -> Covered:
    return Covered(
        topic=source.topic,
        partition=source.partition,
        first_offset=source.asked_first,
        end_offset=source.asked_end,
        gaps=dict(source.gaps),
        lacking=source.troubles_total,
    )


def write_report(report: DrillReport, folder: Path, key: Key | None, proofs: Sequence[Proof] = ()) -> tuple[Path, Path]:
    """Write signed JSON, and an HTML page with a trend over `proofs`.

    Both names contain time and id, so no file is ever replaced.
    """
    time = datetime.fromtimestamp(report.started_at_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    document = sign_report(report, key)
    data, page = (folder / f"drill-{time}-{report.drill_id}.{kind}" for kind in ("json", "html"))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_private(data, json.dumps(document, indent=2, sort_keys=True) + "\n")
        _write_private(page, render(document, proofs))
    except OSError as error:
        raise UsageError(f"the report cannot be written: {error.strerror}", object_name=str(folder)) from error
    return data, page


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def sign_report(report: DrillReport, key: Key | None) -> dict[str, Any]:
    # Through JSON once, so that the signed values are those that a reader gets.
    values = strict_json.parse(json.dumps(report.as_dict(), allow_nan=False))
    return signed({VERSION_FIELD: VERSION, "report": values}, key)


def read_report(path: Path) -> dict[str, Any]:
    """The document of a report. Its signature is not verified yet."""
    try:
        document = strict_json.parse(path.read_bytes(), unique=True)
    except OSError as error:
        raise UsageError(f"the report cannot be read: {error.strerror}", object_name=str(path)) from error
    except ValueError as error:
        raise CorruptDataError(f"this is not a report of a drill: {error}", object_name=str(path)) from error
    if not isinstance(document, dict) or not isinstance(document.get("report"), dict):
        raise CorruptDataError("this is not a report of a drill", object_name=str(path))
    if document.get(VERSION_FIELD) != VERSION:
        raise UnsupportedFormatError(
            f"a report of version {document.get(VERSION_FIELD)!r}", object_name=str(path), hint="use a newer release"
        )
    return document


UNSIGNED: Final = "sha256"

_HMAC: Final = "hmac-sha256"

_ED25519: Final = "ed25519"

_SECRET_BYTES_MIN: Final = 16

_FIELDS: Final = {"algorithm", "key", "value"}

_HINT: Final = "give a file with 16 bytes or more of secret, or an Ed25519 key in PEM form"


@dataclass(frozen=True, slots=True)
class Key:
    """Either a secret, or one half of an Ed25519 key. Its repr never shows the key."""

    secret: bytes | None = None
    private: Ed25519PrivateKey | None = None
    public: Ed25519PublicKey | None = None

    def __repr__(self) -> str:
        return f"Key({self.algorithm}, {self.name})"

    @property
    def algorithm(self) -> str:
        return _ED25519 if self.secret is None else _HMAC

    @property
    def name(self) -> str:
        """Identifies a key without revealing it."""
        if self.public is not None:
            return hashlib.sha256(self.public.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:16]
        return hashlib.sha256(b"maxbrod key " + (self.secret or b"")).hexdigest()[:16]


def read_key(path: Path) -> Key:
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


def parse_key(data: bytes, *, name: str) -> Key:
    try:
        if b"PRIVATE KEY-----" in data:
            private = load_pem_private_key(data, password=None)
            if isinstance(private, Ed25519PrivateKey):
                return Key(private=private, public=private.public_key())
        elif b"PUBLIC KEY-----" in data:
            public = load_pem_public_key(data)
            if isinstance(public, Ed25519PublicKey):
                return Key(public=public)
        elif len(data.rstrip(b"\r\n")) >= _SECRET_BYTES_MIN and not _is_public(data):
            return Key(secret=data.rstrip(b"\r\n"))
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


def signed(document: Mapping[str, Any], key: Key | None) -> dict[str, Any]:
    """The document with its signature. It must consist of JSON values only."""
    text = canonical(document)
    if key is None:
        made = {"algorithm": UNSIGNED, "key": None, "value": hashlib.sha256(text).hexdigest()}
    elif key.secret is not None:
        value = hmac.new(key.secret, text, hashlib.sha256).hexdigest()
        made = {"algorithm": _HMAC, "key": key.name, "value": value}
    elif key.private is not None:
        made = {"algorithm": _ED25519, "key": key.name, "value": key.private.sign(text).hex()}
    else:
        raise UsageError("a public key cannot sign", hint="give the private key")
    return {**document, "signature": made}


def verify_document(document: Mapping[str, Any], key: Key | None, *, object_name: str) -> str:
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
    if key is None and algorithm in {_HMAC, _ED25519}:
        raise UsageError(
            f"it is signed ({algorithm}), but no key is given", object_name=object_name, hint="give --key-file"
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


def _holds(text: bytes, value: str, key: Key | None) -> bool:
    if key is None:
        return hmac.compare_digest(hashlib.sha256(text).hexdigest().encode(), value.encode(errors="replace"))
    if key.secret is not None:
        made = hmac.new(key.secret, text, hashlib.sha256).hexdigest()
        return hmac.compare_digest(made.encode(), value.encode(errors="replace"))
    try:
        if key.public is not None:
            key.public.verify(bytes.fromhex(value), text)
            return True
    except (InvalidSignature, ValueError):
        pass
    return False
