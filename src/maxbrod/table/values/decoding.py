"""Decodes values of one schema into an Arrow array: runs the kernel twice, and builds the array from its tape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.columns import binary_column
from maxbrod.table.values import avro_kernels, protobuf_kernels
from maxbrod.table.values.nodes import Program, Tape, build

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Values in one buffer, each from its start to its end; a start of -1 means null."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> Encoded:
        return Encoded(data=self.data, starts=self.starts[rows], ends=self.ends[rows])


def encoded(values: pa.Array) -> Encoded:
    """The values of a binary array, without copying them."""
    column = binary_column(values)
    ends = column.ends.astype(np.int64)
    return Encoded(data=column.data, starts=np.where(column.valid, ends[:-1], -1), ends=ends[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    column: pa.Array
    status: NDArray[np.int64]
    """0 if the value could be read, otherwise a status of the kernel: see `meaning`."""


def decode(program: Program, values: Encoded) -> Decoded:
    """Decode every value by one program. Those that cannot be read are null and have a status."""
    kernel = _KERNELS[program.format].walk
    status = np.zeros(len(values.starts), np.int64)
    nulls = np.array([each.number for each in program.root.beside()], np.int64)
    count = np.zeros(program.nodes, np.int64)
    nothing = np.zeros(0, np.int64)
    given = (program.code, values.data, values.starts, values.ends, status, nulls)
    kernel(*given, False, nothing, count, nothing, nothing)
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(count)])
    value, length = np.zeros(int(first[-1]), np.int64), np.zeros(int(first[-1]), np.int64)
    count[:] = 0
    kernel(*given, True, first, count, value, length)
    tape = Tape(data=values.data, first=first, value=value, length=length)
    return Decoded(column=build(program.root, tape), status=status)


def meaning(program: Program, status: int) -> str:
    return str(_KERNELS[program.format].MEANING[status])


_KERNELS: Final = {"avro": avro_kernels, "protobuf": protobuf_kernels}
