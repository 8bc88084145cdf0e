"""The ring of an encrypted archive: who may open it, and the key pairs that its objects are sealed for. Pure.

A *recipient* is a key pair of a person or a service, with a label. An *epoch* is two key pairs of the archive, one for
records (`segments/`, `packs/`) and one for everything else; objects are sealed for the newest epoch. The private half
for records is wrapped for each recipient's public key. The one for everything else is wrapped by a key that follows
from a recipient's **public** key: so a host that has only that can read the catalog and write, and read no record.
Hence the ring names no public key in clear: whoever has the bucket alone can read neither.

A ring is a document, `keys/<number>.json`, and never changes: every change is the next number, so that two at once
cannot both take place, and the older ones are the history. It is bound to each recipient's public key, so that whoever
has none of them cannot forge one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import ConfigDict, TypeAdapter, ValidationError

from maxbrod import strict_json
from maxbrod.errors import CorruptDataError, RefusedError, UnsupportedFormatError, UsageError
from maxbrod.model import now_ms
from maxbrod.storage.interface import KEYS
from maxbrod.storage.sealing.format import EPOCH_BYTES, KEY_BYTES, SUITE
from maxbrod.storage.sealing.hidden_names import NAME_KEY_BYTES

RING_VERSION: Final = 1
_ID_BYTES: Final = 8
_CATALOG_INFO: Final = b"maxbrod keys: all but records"
_RECORDS_INFO: Final = b"maxbrod keys: records"
_NONCE_BYTES: Final = 12


class Sealed(IntEnum):
    """The classes of sealed objects."""

    CATALOG = 0
    RECORDS = 1


class RecipientKind(StrEnum):
    KEY = "key"
    """The private key is in a file or in the environment of whoever opens."""
    PASSPHRASE = "passphrase"  # noqa: S105 - a kind of key
    KMS = "kms"
    COMMAND = "command"


class RingChange(StrEnum):
    CREATED = "created"
    ADDED = "added"
    REMOVED = "removed"
    ROTATED = "rotated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """Who may open the archive. What it takes to get the private key is in `means`; never the key itself."""

    __pydantic_config__ = ConfigDict(strict=False, extra="forbid")

    id: str
    label: str
    kind: RecipientKind
    added_at_ms: int
    means: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.label} ({self.kind}, {self.id})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The public halves of the key pairs that objects were sealed for from this time on."""

    __pydantic_config__ = ConfigDict(strict=False, extra="forbid")

    id: str
    created_at_ms: int
    catalog: str
    records: str

    def public(self, kind: Sealed) -> X25519PublicKey:
        return X25519PublicKey.from_public_bytes(_bytes(self.records if kind is Sealed.RECORDS else self.catalog))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wraps:
    """What one recipient opens: `catalog` by his public key, `records` of each epoch by his private one."""

    __pydantic_config__ = ConfigDict(strict=False, extra="forbid")

    catalog: str
    records: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    __pydantic_config__ = ConfigDict(strict=False, extra="forbid")

    format: int
    ring: str
    number: int
    at_ms: int
    change: RingChange
    changed: str
    """The label of the recipient that was added or removed; empty for a rotation."""
    recipients: tuple[Recipient, ...]
    epochs: tuple[Epoch, ...]
    """The oldest first."""
    wraps: dict[str, Wraps]

    @property
    def path(self) -> str:
        return ring_path(self.number)

    @property
    def epoch(self) -> Epoch:
        """The one that new objects are sealed for."""
        return self.epochs[-1]

    def recipient(self, name: str) -> Recipient:
        """By label or id. UsageError: there is none."""
        found = next((recipient for recipient in self.recipients if name in {recipient.label, recipient.id}), None)
        if found is None:
            raise UsageError(
                f"no key of this archive has the label or id {name!r}", hint=f"there are {self.recipients_told()}"
            )
        return found

    def recipients_told(self) -> str:
        return ", ".join(map(str, self.recipients))

    def bound(self) -> bytes:
        """What the wraps of each recipient are bound to: all that is told in clear."""
        return json.dumps(
            {name: value for name, value in asdict(self).items() if name != "wraps"}, sort_keys=True
        ).encode()


_RING: Final = TypeAdapter(Ring)


def ring_path(number: int) -> str:
    return f"{KEYS}/{number:020}.json"


def encode_ring(ring: Ring) -> bytes:
    return json.dumps(asdict(ring), sort_keys=True, indent=1).encode()


def decode_ring(data: bytes, *, name: str) -> Ring:
    """CorruptDataError: this is no ring. UnsupportedFormatError: one of a newer release."""
    try:
        document = strict_json.parse(data, unique=True)
        if isinstance(document, dict) and document.get("format") != RING_VERSION:
            raise UnsupportedFormatError(
                f"the keys of this archive are in format {document.get('format')}, which this release does not know",
                object_name=name,
            )
        ring = _RING.validate_python(document)
        for epoch in ring.epochs:
            if len(bytes.fromhex(epoch.id)) != EPOCH_BYTES:
                raise ValueError("an epoch's id has another length")
            epoch.public(Sealed.CATALOG)
            epoch.public(Sealed.RECORDS)
        if not ring.epochs or not ring.recipients:
            raise ValueError("it has no epoch, or no recipient")
    except (ValidationError, ValueError) as error:
        raise CorruptDataError(
            "the document of the archive's keys is damaged",
            object_name=name,
            hint="bring it back from a copy: 'maxbrod key import' takes one that 'maxbrod key export' has written",
        ) from error
    return ring


def id_of(public: bytes) -> str:
    return hashlib.sha256(b"maxbrod recipient" + public).hexdigest()[: 2 * _ID_BYTES]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRing:
    """A ring that was opened with at least one public key."""

    ring: Ring
    publics: Mapping[str, bytes]
    """The public key of each recipient."""
    catalog: Mapping[str, X25519PrivateKey]
    records: Mapping[str, X25519PrivateKey]
    """By epoch. Empty if only a public key was given."""
    names: bytes
    """The key that hides topics in the names of objects."""
    by: Recipient

    def private(self, kind: int, epoch: bytes) -> X25519PrivateKey:
        """RefusedError: the keys at hand do not open this class of objects, or the ring lacks the epoch."""
        name = epoch.hex()
        if name not in self.catalog:
            raise RefusedError(
                f"the object was sealed with keys that this archive does not name (epoch {name})",
                hint="the archive's keys were set back to an older state, or the object is another archive's",
            )
        found = (self.records if kind == Sealed.RECORDS else self.catalog).get(name)
        if found is None:
            raise RefusedError(
                f"the key at hand, {self.by}, is a public one: it can write, and cannot read records",
                hint=f"give a private key: this archive opens with {self.ring.recipients_told()}",
            )
        return found

    @property
    def reads_records(self) -> bool:
        return bool(self.records)


def _catalog_key(public: bytes, ring: str) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=bytes.fromhex(ring), info=_CATALOG_INFO).derive(public)


def open_with_public(ring: Ring, public: bytes, *, name: str) -> OpenRing | None:
    """None: this is no key of the ring. CorruptDataError: the ring was changed by one who has no key."""
    id_ = id_of(public)
    recipient = next((recipient for recipient in ring.recipients if recipient.id == id_), None)
    if recipient is None or id_ not in ring.wraps:
        return None
    wrapped = _bytes(ring.wraps[id_].catalog)
    try:
        plain = AESGCM(_catalog_key(public, ring.ring)).decrypt(
            wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], ring.bound()
        )
    except InvalidTag:
        raise CorruptDataError(
            "the document of the archive's keys was altered by somebody who has none of them",
            object_name=name,
            hint="bring it back from a copy: 'maxbrod key import' takes one that 'maxbrod key export' has written",
        ) from None
    told = json.loads(plain)  # noqa: TID251 - authentic: a holder of a key wrote it
    return OpenRing(
        ring=ring,
        publics={key: _bytes(value) for key, value in told["publics"].items()},
        catalog={epoch: X25519PrivateKey.from_private_bytes(_bytes(key)) for epoch, key in told["catalog"].items()},
        records={},
        names=_bytes(told["names"]),
        by=recipient,
    )


def open_with_private(ring: Ring, private: X25519PrivateKey, *, name: str) -> OpenRing | None:
    opened = open_with_public(ring, private.public_key().public_bytes_raw(), name=name)
    if opened is None:
        return None
    records = {}
    for epoch, wrapped in ring.wraps[opened.by.id].records.items():
        try:
            key = SUITE.decrypt(_bytes(wrapped), private, _records_info(ring.ring, epoch))
        except (InvalidTag, ValueError):
            raise CorruptDataError(
                f"the archive's key of epoch {epoch} cannot be opened by {opened.by}: it was altered", object_name=name
            ) from None
        records[epoch] = X25519PrivateKey.from_private_bytes(key)
    return replace(opened, records=records)


def create_ring(recipients: Mapping[str, tuple[Recipient, bytes]], *, at_ms: int | None = None) -> Ring:
    """The first ring of an archive, for these recipients with their public keys, by id."""
    empty = Ring(
        format=RING_VERSION,
        ring=os.urandom(_ID_BYTES).hex(),
        number=-1,
        at_ms=at_ms if at_ms is not None else now_ms(),
        change=RingChange.CREATED,
        changed=", ".join(recipient.label for recipient, _ in recipients.values()),
        recipients=(),
        epochs=(),
        wraps={},
    )
    return _next(
        empty,
        recipients=[recipient for recipient, _ in recipients.values()],
        publics={id_: public for id_, (_, public) in recipients.items()},
        catalog={},
        records={},
        names=os.urandom(NAME_KEY_BYTES),
        new_epoch=True,
    )


def add_recipient(opened: OpenRing, recipient: Recipient, public: bytes) -> Ring:
    """The next ring, which this recipient opens as well, with all that was written before."""
    _demand_private(opened)
    for known in opened.ring.recipients:
        if known.label == recipient.label or known.id == recipient.id:
            raise RefusedError(f"the archive has this key, or another with this label: {known}")
    ring = replace(opened.ring, change=RingChange.ADDED, changed=recipient.label)
    return _next(
        ring,
        recipients=[*ring.recipients, recipient],
        publics={**opened.publics, recipient.id: public},
        catalog=opened.catalog,
        records=opened.records,
        names=opened.names,
        new_epoch=False,
    )


def remove_recipient(opened: OpenRing, name: str) -> Ring:
    """The next ring, with a new epoch that this recipient does not open."""
    _demand_private(opened)
    gone = opened.ring.recipient(name)
    left = [recipient for recipient in opened.ring.recipients if recipient is not gone]
    if not left:
        raise RefusedError(f"{gone} is the only key of this archive: without it nobody could read it")
    return _next(
        replace(opened.ring, change=RingChange.REMOVED, changed=gone.label),
        recipients=left,
        publics={id_: public for id_, public in opened.publics.items() if id_ != gone.id},
        catalog=opened.catalog,
        records=opened.records,
        names=opened.names,
        new_epoch=True,
    )


def rotate(opened: OpenRing) -> Ring:
    """The next ring, with a new epoch for the same recipients."""
    _demand_private(opened)
    return _next(
        replace(opened.ring, change=RingChange.ROTATED, changed=""),
        recipients=opened.ring.recipients,
        publics=opened.publics,
        catalog=opened.catalog,
        records=opened.records,
        names=opened.names,
        new_epoch=True,
    )


def _demand_private(opened: OpenRing) -> None:
    if not opened.reads_records:
        raise RefusedError(
            f"the key at hand, {opened.by}, is a public one, and the keys of an archive are changed with a private one",
            hint=f"this archive opens with {opened.ring.recipients_told()}",
        )


def _next(
    ring: Ring,
    *,
    recipients: Iterable[Recipient],
    publics: Mapping[str, bytes],
    catalog: Mapping[str, X25519PrivateKey],
    records: Mapping[str, X25519PrivateKey],
    names: bytes,
    new_epoch: bool,
) -> Ring:
    epochs, at_ms = ring.epochs, now_ms()
    if new_epoch:
        name = os.urandom(EPOCH_BYTES).hex()
        pairs = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        catalog, records = {**catalog, name: pairs[0]}, {**records, name: pairs[1]}
        told = [_text(pair.public_key().public_bytes_raw()) for pair in pairs]
        epochs = (*epochs, Epoch(id=name, created_at_ms=at_ms, catalog=told[0], records=told[1]))
    made = replace(ring, number=ring.number + 1, at_ms=at_ms, recipients=tuple(recipients), epochs=epochs, wraps={})
    secret = json.dumps(
        {
            "publics": {id_: _text(public) for id_, public in publics.items()},
            "catalog": {epoch: _text(pair.private_bytes_raw()) for epoch, pair in catalog.items()},
            "names": _text(names),
        }
    ).encode()
    bound, wraps = made.bound(), {}
    for id_, public in publics.items():
        nonce = os.urandom(_NONCE_BYTES)
        wraps[id_] = Wraps(
            catalog=_text(nonce + AESGCM(_catalog_key(public, made.ring)).encrypt(nonce, secret, bound)),
            records={
                epoch: _text(
                    SUITE.encrypt(
                        pair.private_bytes_raw(),
                        X25519PublicKey.from_public_bytes(public),
                        _records_info(made.ring, epoch),
                    )
                )
                for epoch, pair in records.items()
            },
        )
    return replace(made, wraps=wraps)


def _records_info(ring: str, epoch: str) -> bytes:
    return b"\0".join((_RECORDS_INFO, ring.encode(), epoch.encode()))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
