"""Digests of decoded records: equal for equal records, and composable from parts.

Each record is hashed into 128 bits, field by field (MurmurHash3). Null differs from empty; headers count in order, with
duplicates. Two sums are kept of these hashes. The *sequence* also covers the place of each record, which is its offset
or nothing. It is a polynomial over the field of 2**61 - 1, twice, with different bases. So it depends on the order, and
the digests of two adjacent ranges give the digest of both: tasks can read a partition in parts. The *set* adds the
hashes without their places modulo 2**64, twice. It is the same for the same records in any order and any partitions.

Not cryptographic: records with an equal digest can be forged. Damage, loss, repetition and disorder go unseen with a
probability of about one in 2**120.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

PRIME: Final = (1 << 61) - 1
BASES: Final = (0x1B36_0EA1_57C6_9D4F % PRIME, 0x0D4A_93C5_2F8B_E617 % PRIME)
_MASK: Final = (1 << 64) - 1


class Field(StrEnum):
    """The fields of a record that are compared, besides its offset."""

    TIMESTAMP = "timestamp"
    TIMESTAMP_TYPE = "timestamp_type"
    KEY = "key"
    VALUE = "value"
    HEADERS = "headers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """The digest of consecutive records. The empty digest is neutral."""

    records: int = 0
    sequence: tuple[int, int] = (0, 0)
    total: tuple[int, int] = (0, 0)
    """The set."""
    log_append: int = field(default=0, compare=False)
    """The number of records that have the time of their append."""

    def then(self, other: Digest) -> Digest:
        """The digest of these records followed by the other ones."""
        pairs = zip(self.sequence, other.sequence, BASES, strict=True)
        first, second = ((mine * pow(base, other.records, PRIME) + its) % PRIME for mine, its, base in pairs)
        low, high = ((mine + its) & _MASK for mine, its in zip(self.total, other.total, strict=True))
        return Digest(
            records=self.records + other.records,
            sequence=(first, second),
            total=(low, high),
            log_append=self.log_append + other.log_append,
        )

    @property
    def sequence_text(self) -> str:
        return "".join(f"{word:016x}" for word in self.sequence)

    @property
    def set_text(self) -> str:
        return "".join(f"{word:016x}" for word in self.total)


def join(digests: Iterable[Digest]) -> Digest:
    """The digest of adjacent parts, in order."""
    found = Digest()
    for digest in digests:
        found = found.then(digest)
    return found
