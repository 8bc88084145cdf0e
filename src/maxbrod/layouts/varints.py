"""Numbers of variable length, seven bits a byte, as Avro, Protocol Buffers and the records of Kafka have them."""

from __future__ import annotations

from typing import Final

from maxbrod.errors import CorruptDataError, TruncatedDataError

LONG_BYTES_MAX: Final = 10


def encode_varint(value: int) -> bytes:
    """Encode a number that is not negative."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_long(value: int) -> bytes:
    """Zig-zag, so that small negative numbers are short, too."""
    return encode_varint(((value << 1) ^ (value >> 63)) & ((1 << 64) - 1))


def encode_bytes(data: bytes) -> bytes:
    return encode_long(len(data)) + data


def decode_long(data: memoryview | bytes, at: int) -> tuple[int, int]:
    """A number and its end. TruncatedDataError: `data` ends within it; CorruptDataError: it is too long."""
    raw = 0
    for index, byte in enumerate(data[at : at + LONG_BYTES_MAX]):
        raw |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if raw >= 1 << 64:
                break
            return (raw >> 1) ^ -(raw & 1), at + index + 1
    if len(data) - at < LONG_BYTES_MAX:
        raise TruncatedDataError("a number is cut off", position=at)
    raise CorruptDataError("a number has more than 64 bits", position=at)
