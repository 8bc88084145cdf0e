"""Kafka's own encoding of fields, read from the front: what records of its internal topics are made of. Bytes only."""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

from maxbrod.errors import CorruptDataError, TruncatedDataError

_VARINT_BYTES_MAX: Final = 5
_UUID_BYTES: Final = 16


class Fields:
    """Kafka's own encoding, read from the front. `flexible`: lengths are varints, one more than they say."""

    def __init__(self, data: bytes, *, flexible: bool = False) -> None:
        self._data, self._at = data, 0
        self.flexible = flexible

    def number(self, kind: str) -> int:
        return int(struct.unpack(f">{kind}", self._take(struct.calcsize(f">{kind}")))[0])

    def numbers(self, kind: str) -> tuple[int, ...]:
        """An array of them."""
        return tuple(self.number(kind) for _ in range(self.count()))

    def decimal(self) -> float:
        return float(struct.unpack(">d", self._take(8))[0])

    def flag(self) -> bool:
        return self.number("b") != 0

    def uuid(self) -> UUID:
        return UUID(bytes=self._take(_UUID_BYTES))

    def text(self) -> str:
        found = self.text_or_none()
        if found is None:
            raise CorruptDataError("a text that must be there is null", position=self._at)
        return found

    def text_or_none(self) -> str | None:
        size = self.varint() - 1 if self.flexible else self.number("h")
        if size < 0:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise CorruptDataError("a text is no UTF-8", position=self._at) from error

    def blob(self) -> bytes:
        return self._take(self.count())

    def count(self) -> int:
        """Of bytes or of members. One that cannot be met by what is left ends the reading soon enough."""
        found = self.count_or_none()
        if found is None:
            raise CorruptDataError("a list that must be there is null", position=self._at)
        return found

    def count_or_none(self) -> int | None:
        found = self.varint() - 1 if self.flexible else self.number("i")
        if found < 0:
            return None
        if found > len(self._data) - self._at:
            raise TruncatedDataError(f"{found} should follow where {len(self._data) - self._at} bytes are left")
        return found

    def tags(self) -> dict[int, bytes]:
        """The tagged fields that may end a struct. Those of a later release are among them."""
        if not self.flexible:
            return {}
        found = {}
        for _ in range(self.varint()):
            tag, size = self.varint(), self.varint()
            found[tag] = self._take(size)
        return found

    def varint(self) -> int:
        """Without a sign."""
        value = 0
        for index in range(_VARINT_BYTES_MAX):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return value
        raise CorruptDataError("a number has more than 32 bits", position=self._at)

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise TruncatedDataError(f"{size} bytes should follow where {len(self._data) - self._at} are left")
        self._at += size
        return self._data[self._at - size : self._at]
