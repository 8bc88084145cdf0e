"""Thrift's compact protocol, in which Parquet keeps its footers and page headers: structs as dicts by field number.

Arrow decodes them, too, but ends the process where a damaged footer contradicts itself. So whatever is wanted of them
is read here, and Arrow is asked for rows alone, where it raises its errors.
"""

from __future__ import annotations

from typing import Any, Final

from maxbrod.errors import CorruptDataError, TruncatedDataError

_TRUE, _FALSE = 1, 2
_BYTE, _DOUBLE = 3, 7
_INTEGERS: Final = frozenset({4, 5, 6})
_BINARY, _LIST, _SET, _STRUCT = 8, 9, 10, 12
_DEPTH_MAX: Final = 16
_VARINT_BYTES_MAX: Final = 10

Struct = dict[int, Any]


def decode_struct(data: memoryview, at: int, depth: int = 0) -> tuple[Struct, int]:
    """The fields of a struct that begins at `at`, and where it ends. CorruptDataError: it cannot be one."""
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
    if kind in {_TRUE, _FALSE, _BYTE}:  # within a list
        return _byte(data, at)
    if kind == _DOUBLE:
        return bytes(_cut(data, at, 8)), at + 8
    raise CorruptDataError(f"a field is of the unknown type {kind}", position=at)


def _list(data: memoryview, at: int, depth: int) -> tuple[list[Any], int]:
    byte, at = _byte(data, at)
    count, kind = byte >> 4, byte & 0x0F
    if count == 15:
        count, at = _varint(data, at)
    _cut(data, at, count)  # each has a byte at least
    if depth > _DEPTH_MAX:
        raise CorruptDataError("a list is nested too deeply", position=at)
    values = []
    for _ in range(count):
        value, at = _value(data, at, kind, depth + 1)
        values.append(value)
    return values, at


def _cut(data: memoryview, at: int, size: int) -> memoryview:
    if size > len(data) - at:
        raise TruncatedDataError(f"{size} bytes should begin where {len(data) - at} are left", position=at)
    return data[at : at + size]


def _byte(data: memoryview, at: int) -> tuple[int, int]:
    if at >= len(data):
        raise TruncatedDataError("a struct is cut", position=at)
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
