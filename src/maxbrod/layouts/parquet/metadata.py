"""Reads the metadata of a Parquet file: its footer with the positions and sizes of column chunks, and page headers.

Both are structs in Thrift's compact protocol, decoded to dicts by field number. Arrow decodes them, too, but aborts the
process if a damaged footer contradicts itself. So we read them here, and use Arrow only for rows, where it raises
errors. Nothing is trusted: a field of another type is refused here, and sizes are checked before they are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from maxbrod.errors import CorruptDataError, TruncatedDataError

_TRUE, _FALSE = 1, 2
_BYTE, _DOUBLE = 3, 7
_INTEGERS: Final = frozenset({4, 5, 6})
_BINARY, _LIST, _SET, _STRUCT = 8, 9, 10, 12
_DEPTH_MAX: Final = 16
_VARINT_BYTES_MAX: Final = 10

Struct = dict[int, Any]


def decode_struct(data: memoryview, at: int, depth: int = 0) -> tuple[Struct, int]:
    """The fields of the struct at `at`, and its end. CorruptDataError: it is not a struct."""
    if depth > _DEPTH_MAX:
        raise CorruptDataError("a struct is nested too deeply", position=at)
    fields: Struct = {}
    number = 0
    while True:
        byte, at = _byte(data, at)
        if not byte:
            return fields, at
        step, kind = byte >> 4, byte & 0x0F
        if step:
            number += step
        else:
            number, at = _integer(data, at)
        if kind in {_TRUE, _FALSE}:
            fields[number] = kind == _TRUE
        else:
            fields[number], at = _value(data, at, kind, depth)


def _value(data: memoryview, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in _INTEGERS:
        return _integer(data, at)
    if kind == _BINARY:
        size, at = _varint(data, at)
        return bytes(_cut(data, at, size)), at + size
    if kind == _STRUCT:
        return decode_struct(data, at, depth + 1)
    if kind in {_LIST, _SET}:
        return _list(data, at, depth)
    if kind in {_TRUE, _FALSE, _BYTE}:  # in a list
        return _byte(data, at)
    if kind == _DOUBLE:
        return bytes(_cut(data, at, 8)), at + 8
    raise CorruptDataError(f"a field has the unknown type {kind}", position=at)


def _list(data: memoryview, at: int, depth: int) -> tuple[list[Any], int]:
    byte, at = _byte(data, at)
    count, kind = byte >> 4, byte & 0x0F
    if count == 15:
        count, at = _varint(data, at)
    _cut(data, at, count)  # each has at least a byte
    if depth > _DEPTH_MAX:
        raise CorruptDataError("a list is nested too deeply", position=at)
    values = []
    for _ in range(count):
        value, at = _value(data, at, kind, depth + 1)
        values.append(value)
    return values, at


def _cut(data: memoryview, at: int, size: int) -> memoryview:
    if size > len(data) - at:
        raise TruncatedDataError(f"{size} bytes are expected where only {len(data) - at} are left", position=at)
    return data[at : at + size]


def _byte(data: memoryview, at: int) -> tuple[int, int]:
    if at >= len(data):
        raise TruncatedDataError("a struct is cut off", position=at)
    return data[at], at + 1


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        byte, at = _byte(data, at)
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at
    raise CorruptDataError("a number has too many bytes", position=at)


def _integer(data: memoryview, at: int) -> tuple[int, int]:
    """Zig-zag: the sign is the lowest bit."""
    value, at = _varint(data, at)
    return value >> 1 ^ -(value & 1), at


_BYTE_ARRAY: Final = 6
_DICTIONARIES: Final = frozenset({2, 8})
_UNCOMPRESSED: Final = 0
_INT64_BYTES: Final = 8

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChunk:
    """The values of one column in one row group."""

    column: str
    """For a nested column, the outermost name."""
    start: int
    packed_bytes: int
    unpacked_bytes: int
    has_dictionary: bool
    """A dictionary of bytes: long values may take little space."""
    is_packed: bool
    bounds: tuple[int, int] | None
    """The lowest and highest value of a column of 64 bits, if the statistics have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    rows: int
    chunks: tuple[ColumnChunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMetadata:
    rows: int
    columns: frozenset[str]
    groups: tuple[RowGroup, ...]


def parse_metadata(footer: memoryview) -> FileMetadata:
    """The metadata in a footer. CorruptDataError: it is not the footer of a Parquet file."""
    fields, _ = decode_struct(footer, 0)
    groups = tuple(_row_group(struct) for struct in _structs(fields, 4))
    columns = frozenset(chunk.column for group in groups for chunk in group.chunks)
    return FileMetadata(rows=_get(fields, 3, int), columns=columns, groups=groups)


def _row_group(fields: Struct) -> RowGroup:
    return RowGroup(
        rows=_get(fields, 3, int), chunks=tuple(_chunk(_get(struct, 3, dict)) for struct in _structs(fields, 1))
    )


def _chunk(fields: Struct) -> ColumnChunk:
    path = _get(fields, 3, list)
    if not path or not isinstance(path[0], bytes):
        raise CorruptDataError("a column has no name")
    data, dictionary = _get(fields, 9, int), fields.get(11)
    return ColumnChunk(
        column=path[0].decode(errors="replace"),
        start=min(data, dictionary) if isinstance(dictionary, int) and dictionary > 0 else data,
        packed_bytes=_get(fields, 7, int),
        unpacked_bytes=_get(fields, 6, int),
        has_dictionary=_get(fields, 1, int) == _BYTE_ARRAY and not _DICTIONARIES.isdisjoint(_get(fields, 2, list)),
        is_packed=_get(fields, 4, int) != _UNCOMPRESSED,
        bounds=_bounds(fields.get(12)),
    )


def _bounds(statistics: Any) -> tuple[int, int] | None:  # noqa: ANN401 - any field of the footer
    """From the current fields, or those of older writers."""
    if isinstance(statistics, dict):
        for least, most in ((6, 5), (2, 1)):
            low, high = statistics.get(least), statistics.get(most)
            if isinstance(low, bytes) and isinstance(high, bytes) and len(low) == len(high) == _INT64_BYTES:
                return int.from_bytes(low, "little", signed=True), int.from_bytes(high, "little", signed=True)
    return None


def _structs(fields: Struct, number: int) -> list[Struct]:
    found = _get(fields, number, list)
    if not all(isinstance(element, dict) for element in found):
        raise CorruptDataError(f"field {number} of a footer is not a list of structs")
    return found


def _get(fields: Struct, number: int, kind: type[Kind]) -> Kind:
    value = fields.get(number)
    if not isinstance(value, kind):
        raise CorruptDataError(f"field {number} of a footer is {type(value).__name__}, not {kind.__name__}")
    return value


PAGE_BYTES_MAX: Final = 256 << 20
"""A record lies within a page. This is more than twice the largest message that brokers are configured for."""
_CLAIM_BYTES_FREE: Final = 1 << 20
"""A footer may be wrong by this much, or by a factor of two: writers count differently."""
_UNPACKED_BYTES: Final = 2
_PACKED_BYTES: Final = 3


def check_pages(chunk: memoryview, *, column: str, unpacked_bytes: int) -> None:
    """Check page headers before Arrow decompresses the pages: a few bytes may claim gigabytes.

    CorruptDataError: a page claims to unpack to more than PAGE_BYTES_MAX, or than the footer allows for the chunk.
    """
    most = min(PAGE_BYTES_MAX, max(_CLAIM_BYTES_FREE, 2 * unpacked_bytes))
    for unpacked in _unpacked_sizes(chunk):
        if not 0 <= unpacked <= most:
            raise CorruptDataError(f"a page of {column} claims to unpack to {unpacked} bytes")


def _unpacked_sizes(chunk: memoryview) -> Iterator[int]:
    at = 0
    while at < len(chunk):
        header, at = decode_struct(chunk, at)
        packed, unpacked = header.get(_PACKED_BYTES), header.get(_UNPACKED_BYTES)
        if not isinstance(packed, int) or not isinstance(unpacked, int) or not 0 <= packed <= len(chunk) - at:
            raise CorruptDataError(f"a page of {packed} bytes begins where {len(chunk) - at} are left", position=at)
        yield unpacked
        at += packed
