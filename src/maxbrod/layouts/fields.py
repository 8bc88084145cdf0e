"""Kafka's own encoding of fields, of which the records of its internal topics are made. Bytes only."""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

from maxbrod.errors import CorruptDataError, TruncatedDataError

_VARINT_BYTES_MAX: Final = 5
_UUID_BYTES: Final = 16


class Fields:
    """Reads fields from the front. `flexible`: lengths are varints, each one more than the length."""

    def __init__(self, data: bytes, *, flexible: bool = False) -> None:
        self._data, self._at = data, 0
        self.flexible = flexible
        self.version = -1
        """The version of the struct that is being read, as far as its decoder has set it."""

    def number(self, kind: str) -> int:
        return int(struct.unpack(f">{kind}", self._read(struct.calcsize(f">{kind}")))[0])

    def numbers(self, kind: str) -> tuple[int, ...]:
        """An array of numbers."""
        return tuple(self.number(kind) for _ in range(self.count()))

    def decimal(self) -> float:
        return float(struct.unpack(">d", self._read(8))[0])

    def flag(self) -> bool:
        return self.number("b") != 0

    def uuid(self) -> UUID:
        return UUID(bytes=self._read(_UUID_BYTES))

    def text(self) -> str:
        found = self.text_or_none()
        if found is None:
            raise CorruptDataError("a required text is null", position=self._at)
        return found

    def text_or_none(self) -> str | None:
        size = self.varint() - 1 if self.flexible else self.number("h")
        if size < 0:
            return None
        try:
            return self._read(size).decode()
        except UnicodeDecodeError as error:
            raise CorruptDataError("a text is not UTF-8", position=self._at) from error

    def blob(self) -> bytes:
        return self._read(self.count())

    def count(self) -> int:
        """The number of bytes or of members. One that exceeds the bytes left is refused here."""
        found = self.count_or_none()
        if found is None:
            raise CorruptDataError("a required list is null", position=self._at)
        return found

    def count_or_none(self) -> int | None:
        found = self.varint() - 1 if self.flexible else self.number("i")
        if found < 0:
            return None
        if found > len(self._data) - self._at:
            raise TruncatedDataError(f"{found} should follow, and {len(self._data) - self._at} bytes are left")
        return found

    def tags(self) -> dict[int, bytes]:
        """The tagged fields that may end a struct, those of later releases included."""
        if not self.flexible:
            return {}
        found = {}
        for _ in range(self.varint()):
            tag, size = self.varint(), self.varint()
            found[tag] = self._read(size)
        return found

    def varint(self) -> int:
        """An unsigned number."""
        value = 0
        for index in range(_VARINT_BYTES_MAX):
            byte = self._read(1)[0]
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return value
        raise CorruptDataError("a number has more than 32 bits", position=self._at)

    def _read(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise TruncatedDataError(f"{size} bytes should follow, and {len(self._data) - self._at} are left")
        self._at += size
        return self._data[self._at - size : self._at]
