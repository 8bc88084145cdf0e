"""Compiles the loops over encoded values into numba's cache, so that the first query does not wait for that.

Run once at setup, as `maxbrod.layouts.prepare` is: `python -m maxbrod.table.values.prepare`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from maxbrod.layouts.avro.program import compile_avro
from maxbrod.layouts.nodes import Node, Program, Shape
from maxbrod.table.values.confluent import Writers, decode_confluent
from maxbrod.table.values.nodes import decode, encoded


def prepare() -> None:
    """Call every kernel with exactly the types of real calls."""
    values = encoded(pa.array([b"\x00\x00\x00\x00\x01\x00\x02a", None], pa.binary()))
    text = compile_avro('"string"')
    writers = Writers(programs={1: {0: text}}, reader=text.root)
    decode_confluent(writers, values)
    decode_confluent(Writers(programs=writers.programs, reader=text.root, indexed=True), values)
    # A message without fields, which needs no schema: its node, no field, no member.
    root = Node(number=0, shape=Shape.STRUCT, type=pa.struct([]))
    empty = Program(format="protobuf", code=np.array([1, 0, 0, 0], np.int64), root=root, nodes=1)
    decode(empty, values)


if __name__ == "__main__":
    prepare()
