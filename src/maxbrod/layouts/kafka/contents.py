"""The table of contents at the end of an object: what its slices are, for the day on which the catalog is lost.

Packs have one, and segments in zstd frames. It is one control batch with one record, so that `kafka-dump-log` reads on
to the end of a pack and consumers pass over it. In a log of frames it is inside a skippable frame, which `zstd -d`
passes over. Plain segments have none: they hold a Kafka log and nothing else, and a reader derives the rest from their
batches and their name.

The last 16 bytes of the object are the size of the batch and a magic: an object that was cut does not end with them.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any, Final

import cramjam
import numpy as np
from pydantic import TypeAdapter, ValidationError

from maxbrod import strict_json
from maxbrod.batch.compression import unpack_document
from maxbrod.batch.crc import crc32c
from maxbrod.batch.headers import CRC_START, HEADER_BYTES, walk
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.layouts.kafka.format import Slice, is_framed
from maxbrod.layouts.varints import decode_long, encode_bytes, encode_long
from maxbrod.storage.interface import Storage

VERSION: Final = 1
CONTROL_TYPE: Final = 0x6D62
"""The type of the control record. Kafka's own are small numbers, and its readers pass over those they do not know."""
MAGIC: Final = b"MAXBRODC"
_TRAILER: Final = struct.Struct(">Q8s")
_SKIPPABLE: Final = struct.Struct("<II")
_SKIPPABLE_MAGIC: Final = 0x184D2A5B
_HEADER_KEY: Final = b"maxbrod.contents"
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CONTROL: Final = 0x20
_TAIL_BYTES: Final = 64 << 10
"""Read at once from the end: the whole table of most objects."""
_TABLE_BYTES_MAX: Final = 256 << 20
_HINT: Final = "the object is damaged, or it was cut; restore it from a copy or an older object version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One slice of the object, and whose it is."""

    topic: str
    topic_id: str
    partition: int
    slice: Slice
    epochs: tuple[tuple[int, int], ...] = ()
    """The starts of leader epochs within the slice: offset and epoch. The first is that of the first batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    run_id: str
    written_at: int
    entries: tuple[Entry, ...]
    level: int = 0


def has_contents(path: str) -> bool:
    """True if an object of this name gets a table of contents when it is written."""
    return is_framed(path) or path.startswith("packs/")


_ENTRIES: Final = TypeAdapter(tuple[Entry, ...])


def encode_contents(contents: Contents, *, framed: bool) -> bytes:
    """The end of an object, to be written after its last slice."""
    document = {
        "maxbrod.contents": VERSION,
        "run_id": contents.run_id,
        "written_at": contents.written_at,
        "level": contents.level,
        "slices": [_fields(entry) for entry in contents.entries],
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    batch = _batch(bytes(cramjam.zstd.compress(text, level=1)), contents.written_at)
    return _SKIPPABLE.pack(_SKIPPABLE_MAGIC, len(batch)) + batch if framed else batch


def read_contents(storage: Storage, path: str, size: int) -> Contents | None:
    """The table of contents of an object of this size; None if it has none, or was cut.

    CorruptDataError: it is damaged. UnsupportedFormatError: a newer release wrote it.
    """
    if size < _TRAILER.size + HEADER_BYTES:
        return None
    tail = bytes(storage.get_range(path, max(size - _TAIL_BYTES, 0), min(size, _TAIL_BYTES)))
    length, magic = _TRAILER.unpack_from(tail, len(tail) - _TRAILER.size)
    if magic != MAGIC:
        return None
    name = storage.name_of(path)
    if not HEADER_BYTES <= length <= min(size, _TABLE_BYTES_MAX):
        raise _damaged(f"it claims to have {length} bytes", name)
    if length > len(tail):
        tail = bytes(storage.get_range(path, size - length, length))
    return _decode(tail[len(tail) - length :], path, name)


def _fields(entry: Entry) -> dict[str, Any]:
    found = entry.slice
    return {
        "topic": entry.topic,
        "topic_id": entry.topic_id,
        "partition": entry.partition,
        **{name: getattr(found, name) for name in _SLICE_FIELDS},
        "aborted": [[ended.producer_id, ended.first_offset, ended.last_offset] for ended in found.aborted],
        "epochs": [list(epoch) for epoch in entry.epochs],
    }


_SLICE_FIELDS: Final = (
    *("position", "bytes", "raw_bytes", "codec", "base_offset", "end_offset", "records", "control_records"),
    *("min_timestamp", "max_timestamp", "min_timestamp_exact", "first_leader_epoch", "last_leader_epoch", "digest"),
)


def _batch(value: bytes, written_at: int) -> bytes:
    """A control batch of magic 2 with one record, whose last header ends in the trailer."""
    key = struct.pack(">hh", 0, CONTROL_TYPE)
    header = encode_long(1) + encode_bytes(_HEADER_KEY) + encode_long(_TRAILER.size)
    body = b"\0\0\0" + encode_bytes(key) + encode_bytes(value) + header
    record = encode_long(len(body) + _TRAILER.size) + body
    size = HEADER_BYTES + len(record) + _TRAILER.size
    record += _TRAILER.pack(size, MAGIC)
    fields = (_CONTROL, 0, written_at, written_at, -1, -1, -1, 1)
    unsigned = _HEADER.pack(0, size - 12, -1, 2, 0, *fields)[CRC_START:] + record
    checksum = crc32c(np.frombuffer(unsigned, np.uint8))
    return _HEADER.pack(0, size - 12, -1, 2, checksum, *fields) + record


def _decode(batch: bytes, path: str, name: str) -> Contents:
    try:
        walk(batch, whole=True, object_name=name)  # its checksum covers all that follows
        _, at = decode_long(batch, HEADER_BYTES)
        at += 3
        key_size, at = decode_long(batch, at)
        at += key_size
        value_size, at = decode_long(batch, at)
        text = unpack_document(batch[at : at + value_size])
        document = strict_json.parse(text)
    except (ValueError, IndexError, CorruptDataError) as error:
        raise _damaged(str(error), name) from None
    version = document.get("maxbrod.contents") if isinstance(document, dict) else None
    if version != VERSION:
        raise UnsupportedFormatError(
            f"the table of contents has version {version!r}; this release reads {VERSION}",
            object_name=name,
            hint="use the release of maxbrod that wrote it, or a newer one",
        )
    keys = ("producer_id", "first_offset", "last_offset")
    try:
        entries = [
            {
                **{key: row[key] for key in ("topic", "topic_id", "partition", "epochs")},
                "slice": {
                    "path": path,
                    **{key: row[key] for key in _SLICE_FIELDS},
                    "aborted": [dict(zip(keys, ended, strict=True)) for ended in row["aborted"]],
                },
            }
            for row in document["slices"]
        ]
        return Contents(
            run_id=str(document["run_id"]),
            written_at=int(document["written_at"]),
            level=int(document["level"]),
            entries=_ENTRIES.validate_python(entries),
        )
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise _damaged(f"a field is missing or wrong: {error}".splitlines()[0], name) from None


def _damaged(what: str, name: str) -> CorruptDataError:
    return CorruptDataError(f"the table of contents cannot be read: {what}", object_name=name, hint=_HINT)
