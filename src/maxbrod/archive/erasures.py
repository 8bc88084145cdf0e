"""The ledger of erasures: what nobody may read from this archive any more, whatever objects still hold it.

An erasure is the object `erasures/<run>.json.zst`. It names topics and their incarnations, and for each partition: how
far the archive went, the offsets that were looked at, and those of the records that were erased. Keys are in it as
keyed hashes only. It is put before the first row is rewritten, so that from then on no reader returns the records: also
where a row stays as it is because of a hold, where a catalog was rebuilt from old objects, or where a backup reads the
source again. This module decides what is left out of a row; `layouts.reader` leaves it out.

Offset and leader epoch decide for everything that the erasure looked at: within an incarnation they identify a record
forever. For offsets that it could not look at (a gap that is filled later, a copy from elsewhere), the hashes decide.
"""

from __future__ import annotations

import re
import secrets
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from maxbrod import strict_json
from maxbrod.archive.checked_documents import decode_document, encode_document, unreadable
from maxbrod.batch.compression import compress, unpack_document
from maxbrod.batch.erased import HASH_BYTES, ErasedPart, ErasedRecords, Ranges, hash_keys_sorted
from maxbrod.catalog.replaced import merge
from maxbrod.catalog.rows import Gap, Segment, slice_of
from maxbrod.errors import ObjectExistsError, ObjectNotFoundError, naming
from maxbrod.layouts.kafka.format import Slice
from maxbrod.model import Codec, GapReason, PartitionId
from maxbrod.storage.interface import Storage

ERASURES: Final = "erasures"
"""The folder of the ledger."""
SALT_BYTES: Final = 32
_SALT: Final = f"{ERASURES}/salt.json"
_NAME: Final = re.compile(rf"{ERASURES}/([A-Za-z0-9-]+)\.json\.zst")
_CERTIFICATE: Final = re.compile(rf"{ERASURES}/([A-Za-z0-9-]+)\.certificate\.json")
_DOCUMENT: Final = "maxbrod.erasure"
_DEPTH_MAX: Final = 12
_SALT_DOCUMENT: Final = "maxbrod.erasures.salt"
_NOUN: Final = "a document of the ledger of erasures"
_HINT: Final = (
    "without it, records that a person had erased could come back: restore the object from a copy of the archive; or "
    "delete it, knowing that"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedOffsets:
    """Offsets of erased records of one leader epoch: where a log was truncated, others of a later one have them."""

    leader_epoch: int
    offsets: Ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedPartition:
    """What an erasure says of one partition."""

    partition: int
    end_offset: int
    """Records from here on are not meant: the person may have come back."""
    leader_epoch: int
    """The last one that the archive had. Keys of records of a later epoch are not looked up. -1: none is known."""
    erased: tuple[ErasedOffsets, ...] = ()
    seen: Ranges = ()
    """The offsets of rows that were looked at: of these `erased` says all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedTopic:
    topic: str
    topic_id: str
    partitions: tuple[ErasedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """One execution of `maxbrod erase`."""

    id: str
    """The run that rewrote the rows."""
    at_ms: int
    how: str
    """How the records were chosen: by `keys`, `where`, `below-log-start`, or `ledger` if it applied older erasures."""
    salt: str = ""
    hashes: tuple[str, ...] = ()
    """HMAC-SHA256 of each key with the salt; both in hexadecimal digits. None, if keys did not choose."""
    topics: tuple[ErasedTopic, ...] = ()
    applied: tuple[str, ...] = ()
    """Older erasures that the rows of this run are without as well."""

    @property
    def path(self) -> str:
        return f"{ERASURES}/{self.id}.json.zst"


@dataclass(frozen=True, kw_only=True)
class Erasures:
    """All erasures of an archive, in order of their ids."""

    documents: tuple[Erasure, ...] = ()
    certified: frozenset[str] = frozenset()
    """The ids of erasures that ended, with a certificate."""

    def __bool__(self) -> bool:
        return bool(self.documents)

    @cached_property
    def _by_partition(self) -> Mapping[PartitionId, Sequence[tuple[Erasure, ErasedPartition]]]:
        found: dict[PartitionId, list[tuple[Erasure, ErasedPartition]]] = {}
        for erasure in self.documents:
            for topic in erasure.topics:
                for part in topic.partitions:
                    place = PartitionId(topic_id=topic.topic_id, partition=part.partition)
                    found.setdefault(place, []).append((erasure, part))
        return found

    @cached_property
    def _without(self) -> Mapping[str, Collection[str]]:
        """For each run that rewrote rows, the erasures whose records these do not have."""
        return {erasure.id: {erasure.id, *erasure.applied} for erasure in self.documents}

    @property
    def topic_ids(self) -> frozenset[str]:
        """The incarnations that some erasure concerns."""
        return frozenset(place.topic_id for place in self._by_partition)

    def ranges(self) -> Iterator[tuple[PartitionId, int, int]]:
        """Yield the offsets [first, end) that were erased from each partition."""
        for place, parts in self._by_partition.items():
            for first, end in merge(pair for _, part in parts for erased in part.erased for pair in erased.offsets):
                yield place, first, end

    def unfinished(self) -> tuple[Erasure, ...]:
        """Return erasures that were killed, and that no later one has ended: objects may still hold their records."""
        ended = {done for erasure in self.documents if erasure.id in self.certified for done in erasure.applied}
        return tuple(
            erasure for erasure in self.documents if erasure.id not in self.certified and erasure.id not in ended
        )

    def of_topics(self, topic_ids: Iterable[str]) -> tuple[Erasure, ...]:
        chosen = set(topic_ids)
        return tuple(erasure for erasure in self.documents if any(topic.topic_id in chosen for topic in erasure.topics))

    def slice_of(self, row: Segment) -> Slice:
        """Return the slice of a row as readers get it: it says what they leave out."""
        stored = slice_of(row)
        erased = self.records_in(row.id, row.base_offset, row.end_offset, run_id=row.run_id)
        return stored if erased is None else replace(stored, erased=erased)

    def explained(self, row: Segment | Gap) -> Segment | Gap:
        """Return the row with a reason for the records that readers leave out of it."""
        if isinstance(row, Gap) or row.reason is not None:
            return row
        erased = self.records_in(row.id, row.base_offset, row.end_offset, run_id=row.run_id)
        return row if erased is None else replace(row, reason=GapReason.ERASED)

    def records_in(self, place: PartitionId, base: int, end: int, *, run_id: str | None = None) -> ErasedRecords | None:
        """Return what is left out of the offsets [base, end) of a partition; None: nothing.

        `run_id` is the run that wrote the row. What an erasure has rewritten does not have the records.
        """
        documents = self._by_partition.get(place)
        if documents is None:
            return None
        clean = () if run_id is None else self._without.get(run_id, ())
        parts = [
            part
            for erasure, found in documents
            if erasure.id not in clean
            for part in _parts(erasure, found, base, min(end, found.end_offset))
        ]
        return ErasedRecords(parts=tuple(parts)) if parts else None


NO_ERASURES: Final = Erasures()


def _parts(erasure: Erasure, found: ErasedPartition, base: int, end: int) -> Iterator[ErasedPart]:
    for erased in found.erased:
        if offsets := clip(erased.offsets, base, end):
            yield ErasedPart(offsets=offsets, offsets_epoch=erased.leader_epoch)
    unseen = outside(found.seen, base, end) if erasure.hashes else ()
    if unseen:
        yield ErasedPart(
            unseen=unseen,
            salt=bytes.fromhex(erasure.salt),
            hashes=bytes.fromhex("".join(erasure.hashes)),
            epoch=found.leader_epoch,
        )


def clip(ranges: Ranges, base: int, end: int) -> Ranges:
    """Return the part of ordered ranges within [base, end)."""
    found: list[tuple[int, int]] = []
    for first, stop in ranges[bisect_right(ranges, base, key=lambda pair: pair[1]) :]:
        if first >= end:
            break
        found.append((max(first, base), min(stop, end)))
    return tuple(found)


def outside(ranges: Ranges, base: int, end: int) -> Ranges:
    """Return the part of [base, end) that ordered ranges do not cover."""
    found, reached = [], base
    for first, stop in clip(ranges, base, end):
        if reached < first:
            found.append((reached, first))
        reached = stop
    if reached < end:
        found.append((reached, end))
    return tuple(found)


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return ranges, in any order, as ordered ones that do not meet."""
    return tuple(merge(list(ranges)))


def read_erasures(storage: Storage) -> Erasures:
    """Return the ledger of an archive. CorruptDataError: a document cannot be read; then nobody may read records."""
    found: list[Erasure] = []
    certified: set[str] = set()
    for info in storage.list(ERASURES):
        if (ended := _CERTIFICATE.fullmatch(info.path)) is not None:
            certified.add(ended[1])
        if (name := _NAME.fullmatch(info.path)) is None:
            continue
        with naming(storage.name_of(info.path)):
            found.append(decode_erasure(bytes(storage.get(info.path)), name[1]))
    return Erasures(documents=tuple(sorted(found, key=lambda erasure: erasure.id)), certified=frozenset(certified))


def decode_erasure(data: bytes, erasure_id: str) -> Erasure:
    fields = decode_document(_DOCUMENT, unpack_document(data), noun=_NOUN, hint=_HINT, depth_max=_DEPTH_MAX)
    try:
        erasure = strict_json.value_of(Erasure, fields)
        wrong = _fault(erasure)
    except ValueError as error:
        raise unreadable(_NOUN, str(error), _HINT) from None
    if erasure.id != erasure_id or wrong is not None:
        raise unreadable(_NOUN, wrong or f"it is that of {erasure.id}", _HINT)
    return erasure


def _fault(erasure: Erasure) -> str | None:
    """Return what is wrong with an erasure; ValueError: digits are wrong."""
    if erasure.hashes and not bytes.fromhex(erasure.salt):
        return "it has hashes without a salt"
    if any(len(bytes.fromhex(digits)) != HASH_BYTES for digits in erasure.hashes):
        return "a hash has not 32 bytes"
    for topic in erasure.topics:
        for part in topic.partitions:
            for ranges in (*(erased.offsets for erased in part.erased), part.seen):
                edges = [edge for pair in ranges for edge in pair]
                if edges != sorted(set(edges)) or (edges and edges[0] < 0):
                    return f"ranges of {topic.topic}-{part.partition} are not in order"
    return None


def encode_erasure(erasure: Erasure) -> bytes:
    text = encode_document(_DOCUMENT, asdict(erasure), indent=None)
    return compress(Codec.ZSTD, np.frombuffer(text, np.uint8))


def put_erasure(storage: Storage, erasure: Erasure) -> None:
    """Put a document into the ledger: from now on no reader returns the records."""
    storage.put(erasure.path, encode_erasure(erasure))


def ledger_salt(storage: Storage) -> bytes:
    """Return the salt of an archive, which is made once."""
    fields: dict[str, Any] = {"salt": secrets.token_hex(SALT_BYTES)}
    try:
        found = storage.get(_SALT)
    except ObjectNotFoundError:
        try:
            storage.put(_SALT, encode_document(_SALT_DOCUMENT, fields))
            return bytes.fromhex(fields["salt"])
        except ObjectExistsError:
            # Another erasure was first.
            found = storage.get(_SALT)
    with naming(storage.name_of(_SALT)):
        fields = decode_document(_SALT_DOCUMENT, bytes(found), noun="the salt of the ledger", hint=_HINT)
        try:
            return bytes.fromhex(fields["salt"])
        except (KeyError, TypeError, ValueError) as error:
            raise unreadable("the salt of the ledger", str(error), _HINT) from None


def hashes_of(salt: bytes, keys: Iterable[bytes]) -> tuple[str, ...]:
    """Return the keyed hashes of keys as the ledger has them."""
    whole = hash_keys_sorted(salt, keys)
    return tuple(whole[at : at + HASH_BYTES].hex() for at in range(0, len(whole), HASH_BYTES))


def not_erased(storage: Storage, erasures: Erasures) -> tuple[str, ...]:
    """Return the ids of erasures whose records may still be in objects: without a certificate that says otherwise."""
    found = [erasure.id for erasure in erasures.unfinished()]
    ended = {done for erasure in erasures.documents if erasure.id in erasures.certified for done in erasure.applied}
    for erasure in erasures.documents:
        if erasure.id in erasures.certified and erasure.id not in ended:
            try:
                complete = strict_json.parse(storage.get(certificate_path(erasure.id)))["complete"]
            except (ValueError, KeyError, TypeError, ObjectNotFoundError):
                complete = False
            if complete is not True:
                found.append(erasure.id)
    return tuple(sorted(found))


def certificate_path(erasure_id: str) -> str:
    return f"{ERASURES}/{erasure_id}.certificate.json"
