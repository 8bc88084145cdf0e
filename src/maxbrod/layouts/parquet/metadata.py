"""What the footer of a Parquet file says of its row groups: where the chunks of columns are, and how large.

Nothing in it is believed: a field of another type is refused here, sizes are checked by whoever goes by them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeVar

from maxbrod.errors import CorruptDataError
from maxbrod.layouts.parquet.thrift import Struct, decode_struct

_BYTE_ARRAY: Final = 6
_DICTIONARIES: Final = frozenset({2, 8})
_UNCOMPRESSED: Final = 0
_INT64_BYTES: Final = 8

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChunk:
    """The values of one column in one row group."""

    column: str
    """Of a nested column the outermost name."""
    start: int
    packed_bytes: int
    unpacked_bytes: int
    has_dictionary: bool
    """Of bytes: long values may take little room."""
    is_packed: bool
    bounds: tuple[int, int] | None
    """Lowest and highest value of a column of 64 bits, if the statistics tell."""


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
    """CorruptDataError: this is no footer of a Parquet file."""
    fields, _ = decode_struct(footer, 0)
    groups = tuple(_row_group(each) for each in _structs(fields, 4))
    columns = frozenset(chunk.column for group in groups for chunk in group.chunks)
    return FileMetadata(rows=_get(fields, 3, int), columns=columns, groups=groups)


def _row_group(fields: Struct) -> RowGroup:
    return RowGroup(
        rows=_get(fields, 3, int), chunks=tuple(_chunk(_get(each, 3, dict)) for each in _structs(fields, 1))
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


def _bounds(statistics: Any) -> tuple[int, int] | None:  # noqa: ANN401 - whatever stands in the footer
    """By the fields of today, or those that older writers fill in."""
    if isinstance(statistics, dict):
        for least, most in ((6, 5), (2, 1)):
            low, high = statistics.get(least), statistics.get(most)
            if isinstance(low, bytes) and isinstance(high, bytes) and len(low) == len(high) == _INT64_BYTES:
                return int.from_bytes(low, "little", signed=True), int.from_bytes(high, "little", signed=True)
    return None


def _structs(fields: Struct, number: int) -> list[Struct]:
    found = _get(fields, number, list)
    if not all(isinstance(each, dict) for each in found):
        raise CorruptDataError(f"field {number} of a footer is no list of structs")
    return found


def _get(fields: Struct, number: int, kind: type[Kind]) -> Kind:
    value = fields.get(number)
    if not isinstance(value, kind):
        raise CorruptDataError(f"field {number} of a footer is {type(value).__name__}, not {kind.__name__}")
    return value
