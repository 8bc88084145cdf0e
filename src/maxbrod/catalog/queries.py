"""What the catalog is asked: conditions that are pushed down to its files, and answers made of few columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from maxbrod.catalog.rows import Gap, PartitionId, Run, decode_rows
from maxbrod.catalog.schema import SCHEMA, SORT_ORDER, Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from maxbrod.catalog.schema import GapReason

_AS_OF_END: Final = "as_of_end"
_NO_RUN: Final = (pc.field("kind") != Kind.RUN) | pc.field("kind").is_null()
"""A row without a kind is not passed over: whoever reads it refuses it."""


class Readable(Protocol):
    """The rows of a catalog, wherever they are."""

    def read(self, columns: Sequence[str], condition: ds.Expression | None = None) -> pa.Table: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a partition is archived: offsets [first, end), data and gaps together."""

    topic: str
    first_offset: int
    end_offset: int
    last_leader_epoch: int | None
    """Of the last archived batch; None while there are only gaps."""


def find_positions(files: Readable) -> dict[PartitionId, Position]:
    """Of every partition that has a row."""
    columns = ["topic", "topic_id", "partition", "base_offset", "end_offset", "last_leader_epoch"]
    rows = files.read(columns, _NO_RUN)
    # Leader epochs only rise along a log, so the highest is the last.
    extents = rows.group_by(["topic_id", "partition"]).aggregate(
        [("topic", "max"), ("base_offset", "min"), ("end_offset", "max"), ("last_leader_epoch", "max")]
    )
    return {
        PartitionId(topic_id=row["topic_id"], partition=row["partition"]): Position(
            topic=row["topic_max"],
            first_offset=row["base_offset_min"],
            end_offset=row["end_offset_max"],
            last_leader_epoch=row["last_leader_epoch_max"],
        )
        for row in extents.to_pylist()
    }


def find_runs(files: Readable) -> list[Run]:
    """Every run, in the order in which they finished."""
    rows = decode_rows(files.read(SCHEMA.names, pc.field("kind") == Kind.RUN))
    return sorted((row for row in rows if isinstance(row, Run)), key=lambda run: (run.finished_at, run.run_id))


def find_last_snapshot(files: Readable) -> str | None:
    """Of the run that was written last; runs of a stream may be many, so that none is made a value of."""
    condition = (pc.field("kind") == Kind.RUN) & pc.field("path").is_valid()
    runs = files.read(["path", "written_at", "run_id"], condition)
    newest = runs.sort_by([("written_at", "descending"), ("run_id", "descending")]).slice(0, 1)
    found: list[str] = newest["path"].to_pylist()
    return found[0] if found else None


def find_gaps(files: Readable, reasons: Collection[GapReason]) -> list[Gap]:
    """Gaps of these reasons, by topic id, partition and offset."""
    wanted = pa.array(sorted(map(str, reasons)), pa.string())
    condition = (pc.field("kind") == Kind.GAP) & pc.field("reason").isin(wanted)
    rows = decode_rows(files.read(SCHEMA.names, condition).sort_by(SORT_ORDER))
    return [row for row in rows if isinstance(row, Gap)]


def find_rows(
    files: Readable,
    *,
    topic: str | None,
    topic_id: str | None,
    partition: int | None,
    offsets: tuple[int, int] | None,
    timestamps: tuple[int, int] | None,
    as_of: Mapping[PartitionId, int] | None,
    columns: Sequence[str] | None,
) -> pa.Table:
    """See `Catalog.rows`."""
    condition = _NO_RUN
    for name, value in (("topic", topic), ("topic_id", topic_id), ("partition", partition)):
        if value is not None:
            condition &= pc.field(name) == value
    if offsets is not None:
        condition &= (pc.field("end_offset") > offsets[0]) & (pc.field("base_offset") < offsets[1])
    if timestamps is not None:
        condition &= _may_overlap_time(*timestamps)
    wanted = list(SCHEMA.names if columns is None else columns)
    sorting = [name for name, _ in SORT_ORDER]
    if as_of is None:
        rows = files.read(list(dict.fromkeys([*wanted, *sorting])), condition)
    else:
        condition &= pc.field("topic_id").isin(pa.array(sorted({each.topic_id for each in as_of}), pa.string()))
        rows = _until(files.read(list(dict.fromkeys([*wanted, *sorting])), condition), as_of)
    return rows.sort_by(SORT_ORDER).select(wanted)


def _may_overlap_time(first: int, last: int) -> ds.Expression:
    # A row without times (a gap, or batches without records) cannot be ruled out, so it stays. Neither can one that
    # begins after `last`, unless its lowest timestamp is exact: a batch's first record may stand for older ones.
    if first > last:
        return pc.scalar(False)
    unknown = pc.field("max_timestamp").is_null()
    later = pc.field("min_timestamp_exact") & (pc.field("min_timestamp") > last)
    return (unknown | (pc.field("max_timestamp") >= first)) & ~pc.coalesce(later, pc.scalar(False))


def _until(rows: pa.Table, ends: Mapping[PartitionId, int]) -> pa.Table:
    """Rows that begin before their partition's end; none of partitions without one.

    A lookup by position instead of a join: Arrow's joins refuse columns of lists.
    """
    keys = pa.table(
        {
            "topic_id": pa.array([each.topic_id for each in ends], pa.string()),
            "partition": pa.array([each.partition for each in ends], pa.int32()),
            _AS_OF_END: pa.array(list(ends.values()), pa.int64()),
        }
    )
    numbered = rows.select(["topic_id", "partition", "base_offset"]).append_column(
        "row", pa.array(range(rows.num_rows), pa.int64())
    )
    joined = numbered.join(keys, ["topic_id", "partition"], join_type="inner", use_threads=False)
    return rows.take(joined.filter(pc.field("base_offset") < pc.field(_AS_OF_END))["row"])
