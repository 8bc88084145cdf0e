"""CRC32C of batches, and how it changes with a few bytes, without reading the rest.

A CRC is linear: crc(a xor d) = crc(a) xor L(d), where L is the CRC register run over d from zero. So when 14
bytes of a batch header change, the new CRC follows from the old one and those 14 bytes alone. That is faster
than a pass over the records, and it keeps the protection of the old checksum: a batch that was corrupt before
is still corrupt afterwards, whereas a freshly computed CRC would hide the damage.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import google_crc32c
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_POLYNOMIAL: Final = 0x82F63B78  # Castagnoli, bits reversed
_LENGTH_BITS: Final = 31  # a batch's length is a positive int32


def crc32c(data: NDArray[np.uint8]) -> int:
    """CRC32C of a contiguous array. The C extension accepts neither a memoryview nor a bytearray."""
    value: int = google_crc32c.value(data)
    return value


def crc32c_change(difference: NDArray[np.uint8], zeros_after: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The value to xor into each CRC if `difference` (a row a batch) is xored into bytes `zeros_after` from its end."""
    register = np.zeros(len(difference), np.uint32)
    if not difference.any():  # only bytes before the checksum changed, which it does not cover
        return register
    table = _byte_table()
    for column in range(difference.shape[1]):
        register = table[(register ^ difference[:, column]) & 0xFF] ^ (register >> 8)
    advance = _advance_tables()
    for bit in range(_LENGTH_BITS):
        chosen = (zeros_after >> bit) & 1 == 1
        if chosen.any():
            register[chosen] = _apply(advance[bit], register[chosen])
    return register


def _apply(tables: NDArray[np.uint32], register: NDArray[np.uint32]) -> NDArray[np.uint32]:
    result: NDArray[np.uint32] = (
        tables[0][register & 0xFF]
        ^ tables[1][(register >> 8) & 0xFF]
        ^ tables[2][(register >> 16) & 0xFF]
        ^ tables[3][register >> 24]
    )
    return result


@cache
def _byte_table() -> NDArray[np.uint32]:
    register = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        register = np.where(register & 1, (register >> 1) ^ np.uint32(_POLYNOMIAL), register >> 1)
    return register


@cache
def _advance_tables() -> NDArray[np.uint32]:
    """For each k, the linear map "run the register over 2**k zero bytes", as one table per byte of the register."""
    identity = np.arange(256, dtype=np.uint32)
    inputs = np.stack([identity << shift for shift in (0, 8, 16, 24)])
    step = _byte_table()[inputs & 0xFF] ^ (inputs >> 8)
    tables = [step]
    for _ in range(_LENGTH_BITS - 1):
        step = _apply(step, step)
        tables.append(step)
    return np.stack(tables)
