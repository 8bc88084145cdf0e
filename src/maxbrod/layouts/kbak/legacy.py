"""Segments of the tool's first versions: a JSON array of records, bytes in base64, optionally compressed as a whole.

Read, never written. Such a segment has no checksum and is parsed in memory, so its size is limited.
"""

from __future__ import annotations

import json
from base64 import b64encode
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from maxbrod.batch.columns import binary_array, binary_column, conform, headers_array, number_column
from maxbrod.batch.kernels import sealed
from maxbrod.bounds import check_document
from maxbrod.errors import CorruptDataError, TruncatedDataError, UsageError
from maxbrod.layouts.kbak import kernels
from maxbrod.layouts.kbak.format import decompress_lz4

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from maxbrod.layouts.foreign import ForeignSegment
    from maxbrod.layouts.found import Stored

TEXT_BYTES_MAX: Final = 512 << 20
_ZSTD_MAGIC: Final = bytes.fromhex("28b52ffd")

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.string())])
_RECORD: Final = pa.struct(
    [
        pa.field("key", pa.string()),
        pa.field("value", pa.string()),
        pa.field("headers", pa.list_(_HEADER)),
        pa.field("timestamp", pa.int64()),
        pa.field("offset", pa.int64()),
    ]
)


def read_legacy(stored: Stored, segment: ForeignSegment, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    records = _parse(_text(stored, segment.path))
    if records.num_rows:
        offset = number_column(records.column("offset"))
        if (np.diff(offset) <= 0).any():
            raise CorruptDataError(kernels.MEANING[kernels.BAD_OFFSET], offset=int(offset[0]))
        if int(offset[-1]) + 1 != segment.end_offset:
            raise CorruptDataError(
                f"the segment ends with offset {offset[-1]}, and the manifest says {segment.end_offset - 1}",
                offset=segment.base_offset,
            )
    if segment.records not in {None, records.num_rows}:
        raise CorruptDataError(
            f"the segment has {records.num_rows} records, and the manifest says {segment.records}",
            offset=segment.base_offset,
        )
    yield records.select(schema.names)


def _text(stored: Stored, path: str) -> memoryview:
    if stored.size > TEXT_BYTES_MAX:
        raise CorruptDataError(f"a segment of {stored.size} bytes without the magic cannot be right")
    data = stored.range(0, stored.size)
    if bytes(data[:4]) == _ZSTD_MAGIC:
        try:
            text = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), "zstd").read(TEXT_BYTES_MAX + 1)
        except OSError as error:
            raise CorruptDataError(f"the records cannot be decompressed: {error}") from error
        if len(text) > TEXT_BYTES_MAX:
            raise CorruptDataError(f"the records decompress to more than {TEXT_BYTES_MAX} bytes")
        return memoryview(text)
    if path.endswith(".lz4"):
        return memoryview(decompress_lz4(bytes(data)))
    return data


def _parse(text: memoryview) -> pa.RecordBatch:
    if not text:
        raise TruncatedDataError("the segment is empty")
    if bytes(text[:64]).lstrip()[:1] != b"[":
        raise CorruptDataError("this is not a segment: it begins neither with the magic nor as a JSON array")
    try:
        check_document(bytes(text))
        rows = pa.array(json.loads(bytes(text), parse_float=_no_fraction), _RECORD)  # noqa: TID251 - checked
    except (ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException) as error:
        raise CorruptDataError(f"a segment of JSON cannot be read: {str(error)[:200]}") from error
    headers = rows.field("headers")
    columns = {
        "offset": rows.field("offset"),
        "timestamp_ms": rows.field("timestamp"),
        "key": _bytes(rows.field("key")),
        "value": _bytes(rows.field("value")),
        "headers": _headers(headers),
    }
    if any(columns[name].null_count for name in ("offset", "timestamp_ms")) or rows.null_count:
        raise CorruptDataError("a record of JSON has no offset or no timestamp")
    try:
        return conform(pa.RecordBatch.from_pydict(columns))
    except UsageError as error:
        raise CorruptDataError(f"a segment of JSON cannot be read: {error}") from error


def _no_fraction(text: str) -> float:
    """Arrow would silently truncate it."""
    raise ValueError(f"{text[:40]} is not an integer")


def _headers(lists: pa.Array) -> pa.Array:
    filled = lists.flatten()
    if filled.field("key").null_count or filled.null_count:
        raise CorruptDataError("a header of JSON has no key")
    counts = lists.value_lengths().fill_null(0)
    ends = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(np.frombuffer(counts.buffers()[1], np.int32)[: len(lists)], out=ends[1:])
    return headers_array(ends, filled.field("key").cast(pa.binary()), _bytes(filled.field("value")))


def _bytes(column: pa.Array) -> pa.Array:
    text = binary_column(column.cast(pa.binary()))
    out_ends = np.zeros(len(column) + 1, np.int32)
    out = np.empty(int(text.ends[-1]) - int(text.ends[0]), np.uint8)
    row = kernels.decode_base64(sealed(text.ends), sealed(text.data), sealed(_letters()), out_ends, out)
    if row >= 0:
        raise CorruptDataError(f"bytes of a segment of JSON are not in base64, in row {row}")
    return binary_array(out_ends, out[: out_ends[-1]], text.valid)


@cache
def _letters() -> NDArray[Any]:
    letters = np.full(256, 64, np.uint8)
    # The encoding of all values of six bits in order is the alphabet.
    sixes = np.packbits(np.unpackbits(np.arange(64, dtype=np.uint8)[:, None], axis=1)[:, 2:].ravel())
    letters[np.frombuffer(b64encode(sixes.tobytes()), np.uint8)] = np.arange(64)
    return letters
