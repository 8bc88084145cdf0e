"""The last record of each key: the contents of a compacted topic, whether or not its cleaner has run.

Records of transactions count only if markers in the log show that they were committed. Works on columns, never on
single records: a topic of millions of commits leaves as many records as it has keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.batch.columns import binary_column, number_array, number_column, project

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

COLUMNS: Final = ["offset", "key", "value", "producer_id", "transactional", "control"]
"""The columns that are needed."""
_SCHEMA: Final = project(COLUMNS)
_ENOUGH_ROWS: Final = 1 << 18
_ENOUGH_BYTES: Final = 128 << 20
_ABORT, _COMMIT, _NO_MARKER = 0, 1, -1
_FLAGS: Final = ("control", "transactional")


def last_records(batches: Iterable[pa.RecordBatch], *, committed: bool = False) -> pa.Table:
    """The last record of each key of one partition, tombstones included, in order of offsets.

    `batches` are in order and hold control records, which decide transactions: those without a marker are left out like
    aborted ones. Records without a key are left out. `committed`: aborted and control records were left out before.
    """
    kept = open_ = _SCHEMA.empty_table()
    waiting: list[pa.Table] = []
    for batch in batches:
        records = pa.concat_tables([open_, pa.Table.from_batches([batch.select(_SCHEMA.names)])])
        decided, open_ = (records, open_) if committed else _decide(records)
        waiting.append(decided)
        rows, size = sum(table.num_rows for table in waiting), sum(table.nbytes for table in waiting)
        if rows > max(_ENOUGH_ROWS, kept.num_rows) or size > max(_ENOUGH_BYTES, kept.nbytes):
            kept, waiting = _last(pa.concat_tables([kept, *waiting])), []
    return _last(pa.concat_tables([kept, *waiting]))


def _decide(records: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Records that count, and those whose transaction is still open. `records` has both, and the markers."""
    offsets, producers = _numbers(records, "offset"), _numbers(records, "producer_id")
    control, transactional = _numbers(records, "control"), _numbers(records, "transactional")
    if not (control.any() or transactional.any()):
        return records, records.slice(0, 0)
    ends = _ends(offsets, producers, np.where(control, _markers(records), _NO_MARKER))
    counting = ~control & (~transactional | (ends == _COMMIT))
    return _filtered(records, counting), _filtered(records, ~control & transactional & (ends == _NO_MARKER))


def _ends(offsets: NDArray[np.int64], producers: NDArray[np.int64], markers: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each record the next marker of its producer, or none."""
    order = np.lexsort((offsets, producers))
    places = np.arange(order.size)
    # For each place the place of the next marker: the lowest one from there on.
    following = np.where(markers[order] == _NO_MARKER, order.size, places)[::-1]
    following = np.minimum.accumulate(following)[::-1]
    found = following < order.size
    followers = order[following[found]]
    own = producers[followers] == producers[order][found]
    ends = np.full(order.size, _NO_MARKER, np.int64)
    ends[order[found]] = np.where(own, markers[followers], _NO_MARKER)
    return ends


def _markers(records: pa.Table) -> NDArray[np.int64]:
    """The type in each control record: its key is `version int16 · type int16`. Other types end no transaction."""
    ends, data, valid = binary_column(_array(records, "key"))
    starts = ends[:-1].astype(np.int64)
    whole = valid & (np.diff(ends) >= 4)
    types = np.full(records.num_rows, _NO_MARKER, np.int64)
    types[whole] = data[starts[whole] + 2].astype(np.int64) << 8 | data[starts[whole] + 3]
    types[(types != _ABORT) & (types != _COMMIT)] = _NO_MARKER
    return types


def _last(records: pa.Table) -> pa.Table:
    keyed = records.filter(pc.is_valid(records.column("key")))
    if not keyed.num_rows:
        return keyed
    order = np.argsort(_numbers(keyed, "offset"), kind="stable")
    encoded = _array(keyed, "key").dictionary_encode()
    codes = number_column(encoded.indices)[order]
    last = np.empty(len(encoded.dictionary), np.int64)
    last[codes] = order  # if several rows have one code, the last one is kept
    rows = last[np.argsort(_numbers(keyed, "offset")[last], kind="stable")]
    return keyed.take(number_array(rows))


def _filtered(records: pa.Table, rows: NDArray[np.bool_]) -> pa.Table:
    return records.filter(number_array(rows))


def _array(records: pa.Table, name: str) -> pa.Array:
    column = records.column(name).combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


def _numbers(records: pa.Table, name: str) -> NDArray[np.int64]:
    column = _array(records, name)
    return number_column(column) if len(column) else np.empty(0, np.bool_ if name in _FLAGS else np.int64)
