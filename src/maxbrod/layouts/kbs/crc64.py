"""CRC-64/XZ (ECMA-182, reflected): the checksum of segments. `crc64(b"123456789")` is 0x995DC9BBDF1939FA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.kernels import sealed
from maxbrod.layouts.kbs import kernels

if TYPE_CHECKING:
    from collections.abc import Buffer

    from numpy.typing import NDArray

_ALL: Final = (1 << 64) - 1


def crc64(data: Buffer, value: int = 0) -> int:
    """The checksum of `data`; with `value`, of bytes that have this checksum followed by `data`, like `zlib.crc32`."""
    view = sealed(np.frombuffer(data, np.uint8))
    return int(kernels.crc64_update(np.uint64(value ^ _ALL), view)) ^ _ALL


def combine(first: int, second: int, second_bytes: int) -> int:
    """The checksum of two parts that follow each other, from their own ones. The second is not read again."""
    # Complements cancel out: the one at the end of the first part equals the one at the beginning of the second.
    register = kernels.crc64_advance(np.uint64(first), second_bytes, _one_zero_byte(), np.empty(64, np.uint64))
    return int(register) ^ second


def _one_zero_byte() -> NDArray[np.uint64]:
    """The register that each bit of it becomes after a zero byte."""
    register = np.uint64(1) << np.arange(64, dtype=np.uint64)
    one = np.uint64(1)
    for _ in range(8):
        register = np.where(register & one, (register >> one) ^ np.uint64(kernels.POLYNOMIAL), register >> one)
    return register
