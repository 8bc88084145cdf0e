"""The parts of Protocol Buffers' wire format that the tool's few messages need: varints, strings, nested messages.

Unknown fields are skipped, as the format requires; invalid bytes are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.errors import CorruptDataError, TruncatedDataError

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_VARINT_BYTES_MAX: Final = 10
_UINT64_MAX: Final = (1 << 64) - 1
_SIGN: Final = 1 << 63


def number_field(number: int, value: int) -> bytes:
    """Encode a number. 0 is omitted, as in proto3. Negative numbers take ten bytes."""
    return _varint(number << 3 | _VARINT) + _varint(value & _UINT64_MAX) if value else b""


def text_field(number: int, value: str) -> bytes:
    return message_field(number, value.encode()) if value else b""


def message_field(number: int, value: bytes) -> bytes:
    """Encode a nested message. Written even if empty: the tool's nested messages are always present."""
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


class Fields:
    """The fields of a message by number. The last occurrence of a field counts."""

    def __init__(self, data: bytes) -> None:
        self._numbers: dict[int, int] = {}
        self._blobs: dict[int, bytes] = {}
        for number, value in _walk(data):
            if isinstance(value, int):
                self._numbers[number] = value
            else:
                self._blobs[number] = value

    def unsigned(self, number: int, bits: int = 64) -> int:
        value = self._numbers.get(number, 0)
        if value >> bits:
            raise CorruptDataError(f"field {number} of the message has more than {bits} bits")
        return value

    def signed(self, number: int) -> int:
        value = self._numbers.get(number, 0)
        return value - (1 << 64) if value & _SIGN else value

    def text(self, number: int) -> str:
        try:
            return self._blobs.get(number, b"").decode()
        except UnicodeDecodeError as error:
            raise CorruptDataError(f"field {number} of the message is not UTF-8") from error

    def message(self, number: int) -> Fields:
        return Fields(self._blobs.get(number, b""))


def _walk(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise CorruptDataError("a field of the message has the number 0", position=at)
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield number, value
        elif kind == _BYTES:
            size, at = _read_varint(data, at)
            yield number, _cut(data, at, size)
            at += size
        elif kind in {_FIXED32, _FIXED64}:  # no known field: skipped
            size = 4 if kind == _FIXED32 else 8
            _cut(data, at, size)
            at += size
        else:
            raise CorruptDataError(f"field {number} of the message has the unknown type {kind}", position=at)


def _cut(data: bytes, at: int, size: int) -> bytes:
    if size > len(data) - at:
        raise TruncatedDataError(
            f"a field of {size} bytes is expected where only {len(data) - at} are left", position=at
        )
    return data[at : at + size]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        if at + index >= len(data):
            raise TruncatedDataError("a number of the message is cut off", position=at)
        byte = data[at + index]
        value |= (byte & 0x7F) << 7 * index
        if not byte & 0x80:
            return value & _UINT64_MAX, at + index + 1
    raise CorruptDataError("a number of the message has more than ten bytes", position=at)
