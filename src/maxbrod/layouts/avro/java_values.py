"""Header values that the tool wrote as serialised Java objects, besides `byte[]` and plain `String`.

Connect's default converter parses a header that looks like a number or a boolean; its text is the original header.
Nothing is deserialised: the few possible forms are compared byte by byte.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from maxbrod.batch.schema import HEADERS_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBER: Final = bytes.fromhex("787200106a6176612e6c616e672e4e756d62657286ac951d0b94e08b0200007870")
_STRING_HEAD: Final = bytes.fromhex("aced000574")


def _boxed(name: bytes, serial: str, field: bytes, rest: bytes = _NUMBER) -> bytes:
    """The bytes before the value of a boxed primitive: its class with the field `value`, and its superclass."""
    described = len(name).to_bytes(2, "big") + name + bytes.fromhex(serial) + b"\x02\x00\x01" + field + b"\x00\x05value"
    return bytes.fromhex("aced00057372") + described + rest


def _whole(form: str) -> Callable[[bytes], bytes | None]:
    def text(data: bytes) -> bytes | None:
        return str(struct.unpack(form, data)[0]).encode()

    return text


def _decimal(form: str) -> Callable[[bytes], bytes | None]:
    def text(data: bytes) -> bytes | None:
        (value,) = struct.unpack(form, data)
        shortest = float(f"{value:.9g}") if form == ">f" and math.isfinite(value) else value
        # Beyond these, Java's notation and the original header are unknown.
        plain = value == 0 or 1e-3 <= abs(value) < 1e7
        return repr(shortest).encode() if plain else None

    return text


def _truth(data: bytes) -> bytes | None:
    return {b"\x00": b"false", b"\x01": b"true"}.get(data)


_BOXED: Final[tuple[tuple[bytes, int, Callable[[bytes], bytes | None]], ...]] = (
    (_boxed(b"java.lang.Long", "3b8be490cc8f23df", b"J"), 8, _whole(">q")),
    (_boxed(b"java.lang.Integer", "12e2a0a4f7818738", b"I"), 4, _whole(">i")),
    (_boxed(b"java.lang.Short", "684d37133460da52", b"S"), 2, _whole(">h")),
    (_boxed(b"java.lang.Byte", "9c4e6084ee50f51c", b"B"), 1, _whole(">b")),
    (_boxed(b"java.lang.Double", "80b3c24a296bfb04", b"D"), 8, _decimal(">d")),
    (_boxed(b"java.lang.Float", "daedc9a2db3cf0ec", b"F"), 4, _decimal(">f")),
    (_boxed(b"java.lang.Boolean", "cd207280d59cfaee", b"Z", bytes.fromhex("7870")), 1, _truth),
)


def text_of(value: bytes) -> bytes:
    """The text of a serialised value; the value itself if its form is unknown."""
    for head, size, text in _BOXED:
        if value.startswith(head) and len(value) == len(head) + size:
            return text(value[len(head) :]) or value
    if value.startswith(_STRING_HEAD) and len(value) - 7 == int.from_bytes(value[5:7], "big"):
        return _from_java_utf8(value[7:]) or value
    return value


def _from_java_utf8(data: bytes) -> bytes | None:
    try:
        text = data.replace(b"\xc0\x80", b"\x00").decode("utf-8", "surrogatepass")
        return text.encode("utf-16", "surrogatepass").decode("utf-16").encode()
    except UnicodeError:
        return None


def unwrap(headers: pa.Array) -> pa.Array:
    """Headers with the original text of values that Java serialised. Decodes each distinct value once."""
    entries = headers.values
    values = entries.field(1).dictionary_encode()
    distinct = [None if value is None else text_of(value) for value in values.dictionary.to_pylist()]
    unwrapped = pa.array(distinct, pa.binary()).take(values.indices)
    pairs = pa.StructArray.from_arrays([entries.field(0), unwrapped], fields=list(entries.type))
    return pa.Array.from_buffers(HEADERS_TYPE, len(headers), [None, headers.buffers()[1]], 0, children=[pairs])
