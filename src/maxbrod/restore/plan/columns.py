"""The catalog's rows as numbers in memory: the columns that planning reads, about 90 bytes for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.catalog.rows import newest_times
from maxbrod.catalog.schema import Kind
from maxbrod.errors import UnsupportedFormatError
from maxbrod.model import GapReason, PartitionId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

SOURCE_COLUMNS: Final = (
    *("topic_id", "partition", "base_offset", "end_offset", "kind", "reason", "bytes", "raw_bytes", "records"),
    *("min_timestamp", "max_timestamp", "aborted"),
)
"""The columns that planning a restore reads."""
_NO_REASON: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RowColumns:
    """One value for each row, in the order of partition and offset. Counts are 0 where a row has none."""

    spans: Mapping[PartitionId, slice]
    """The places of each partition's rows."""
    base: NDArray[np.int64]
    end: NDArray[np.int64]
    data: NDArray[np.bool_]
    reason: NDArray[np.int8]
    """The index of the reason in `GapReason`; -1 without a reason."""
    bytes: NDArray[np.int64]
    raw_bytes: NDArray[np.int64]
    records: NDArray[np.int64]
    dated: NDArray[np.bool_]
    """True if the row has both timestamps, and they do not contradict each other."""
    lowest: NDArray[np.int64]
    highest: NDArray[np.int64]
    aborted: NDArray[np.int64]
    """The sum of the lengths of aborted transactions within the row."""

    def extent(self, partition: PartitionId) -> tuple[int, int] | None:
        """From the start of the first row to the end of the last; None without rows."""
        span = self.spans.get(partition)
        return None if span is None else (int(self.base[span.start]), int(self.end[span].max()))


def read_columns(rows: pa.Table) -> RowColumns:
    """`rows` of kind data and gap, sorted by topic id, partition and base offset."""
    base, end = _numbers(rows["base_offset"]), _numbers(rows["end_offset"])
    return RowColumns(
        spans=_spans(rows),
        base=base,
        end=end,
        data=_flags(pc.equal(rows["kind"], Kind.DATA)),
        reason=_reasons(rows),
        bytes=_numbers(rows["bytes"]),
        raw_bytes=_numbers(rows["raw_bytes"]),
        records=_numbers(rows["records"]),
        dated=_flags(pc.and_(pc.is_valid(rows["min_timestamp"]), pc.is_valid(newest_times(rows)))),
        lowest=_numbers(rows["min_timestamp"]),
        highest=_numbers(rows["max_timestamp"]),
        aborted=_aborted(rows["aborted"], base, end),
    )


def _numbers(column: Any) -> NDArray[np.int64]:  # noqa: ANN401 - an Arrow array
    # Arrow converts a column with nulls to floats, which cannot hold all 64-bit integers.
    found: NDArray[np.int64] = pc.fill_null(column, 0).to_numpy().astype(np.int64, copy=False)
    return found


def _flags(column: Any) -> NDArray[np.bool_]:  # noqa: ANN401 - an Arrow array
    found: NDArray[np.bool_] = pc.fill_null(column, False).to_numpy().astype(np.bool_, copy=False)
    return found


def _reasons(rows: pa.Table) -> NDArray[np.int8]:
    known = pa.array([str(each) for each in GapReason], pa.string())
    places = pc.index_in(rows["reason"], value_set=known)
    unknown = pc.and_(pc.is_valid(rows["reason"]), pc.is_null(places))
    if (row := pc.index(unknown, True).as_py()) >= 0:
        values = rows.slice(row, 1).select(["topic_id", "partition", "base_offset", "reason"]).to_pylist()[0]
        raise UnsupportedFormatError(
            f"a row of the catalog has reason {values['reason']!r}",
            operation="plan a restore",
            object_name=f"{values['topic_id']}-{values['partition']}",
            offset=values["base_offset"],
            hint="the catalog was written by a newer release of maxbrod, or by another program",
        )
    found: NDArray[np.int8] = pc.fill_null(places, _NO_REASON).to_numpy().astype(np.int8)
    return found


def _spans(rows: pa.Table) -> dict[PartitionId, slice]:
    if not rows.num_rows:
        return {}
    topics = rows["topic_id"].combine_chunks().dictionary_encode()
    if isinstance(topics, pa.ChunkedArray):
        topics = topics.combine_chunks()
    topic, partition = topics.indices.to_numpy(), rows["partition"].to_numpy()
    fresh = np.ones(rows.num_rows, np.bool_)
    fresh[1:] = (topic[1:] != topic[:-1]) | (partition[1:] != partition[:-1])
    starts = np.flatnonzero(fresh)
    names = topics.dictionary.to_pylist()
    return {
        PartitionId(topic_id=names[topic[start]], partition=int(partition[start])): slice(start, stop)
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), rows.num_rows], strict=True)
    }


def _aborted(column: pa.ChunkedArray, base: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    found = np.zeros(len(base), np.int64)
    offset = 0
    for chunk in column.chunks:
        rows = pc.list_parent_indices(chunk).to_numpy() + offset
        inside = pc.list_flatten(chunk)
        if len(inside):
            first, last = (_numbers(pc.struct_field(inside, name)) for name in ("first_offset", "last_offset"))
            lengths = np.minimum(last + 1, end[rows]) - np.maximum(first, base[rows])
            np.add.at(found, rows, np.clip(lengths, 0, None))
        offset += len(chunk)
    return found
