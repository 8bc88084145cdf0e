"""The records of a slice that no reader may return, because a person asked to be erased. Values only; loads no numba.

An erasure knows the offsets of the records that it found. Those of records that it could not see (a gap that a later
run fills, a copy that was away) nobody knows: there the keys are looked up, by keyed hashes. `erasure` does both.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

HASH_BYTES: Final = 32
Ranges = tuple[tuple[int, int], ...]
"""Offsets [first, end), ordered and apart from each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedPart:
    """What one erasure takes from a slice."""

    offsets: Ranges = ()
    """The offsets of records that it found."""
    offsets_epoch: int | None = None
    """The leader epoch of these records: a log that was truncated has given their offsets to others. None: any."""
    unseen: Ranges = ()
    """The offsets in which a record may have one of the keys."""
    salt: bytes = b""
    hashes: bytes = b""
    """HMAC-SHA256 of the keys with the salt, one after the other, sorted."""
    epoch: int = -1
    """Records of a later leader epoch may have these keys: they came after the erasure. -1: there were no epochs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedRecords:
    """The records of one slice that are left out, by all erasures that concern it."""

    parts: tuple[ErasedPart, ...]


def hash_key(salt: bytes, key: bytes) -> bytes:
    """Return the keyed hash of one key, as the ledger has it."""
    return hmac.new(salt, key, hashlib.sha256).digest()


def hash_keys_sorted(salt: bytes, keys: Iterable[bytes]) -> bytes:
    """Return the hashes of keys as `ErasedPart` has them."""
    return b"".join(sorted({hash_key(salt, key) for key in keys}))
