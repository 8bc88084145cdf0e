"""What the catalog is asked: conditions that are pushed down to its files, and answers made of few columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from maxbrod.catalog.replaced import as_it_was
from maxbrod.catalog.rows import RUN_COMMIT, Gap, Run, decode_rows
from maxbrod.catalog.schema import SCHEMA, SORT_ORDER, Kind
from maxbrod.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from maxbrod.catalog.replaced import Revisions
    from maxbrod.model import GapReason

_AS_OF_END: Final = "as_of_end"


class Readable(Protocol):
    """The rows of a catalog, wherever they are."""

    def read(self, columns: Sequence[str], condition: ds.Expression | None = None) -> pa.Table: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedRange:
    """How far a partition is archived: offsets [first, end), data and gaps together."""

    topic: str
    first_offset: int
    end_offset: int
    last_leader_epoch: int | None
    """Of the last archived batch; None while there are only gaps."""


def find_positions(files: Readable) -> dict[PartitionId, ArchivedRange]:
    """Of every partition that has a row."""
    columns = ["topic", "topic_id", "partition", "base_offset", "end_offset", "last_leader_epoch"]
    rows = files.read(columns, _present())
    # Leader epochs only rise along a log, so the highest is the last.
    extents = rows.group_by(["topic_id", "partition"]).aggregate(
        [("topic", "max"), ("base_offset", "min"), ("end_offset", "max"), ("last_leader_epoch", "max")]
    )
    return {
        PartitionId(topic_id=row["topic_id"], partition=row["partition"]): ArchivedRange(
            topic=row["topic_max"],
            first_offset=row["base_offset_min"],
            end_offset=row["end_offset_max"],
            last_leader_epoch=row["last_leader_epoch_max"],
        )
        for row in extents.to_pylist()
    }


def find_runs(files: Readable) -> list[Run]:
    """Every run, in the order of commits. Runs of before that was recorded come first, as their clocks have it."""
    rows = decode_rows(files.read(SCHEMA.names, pc.field("kind") == Kind.RUN))
    return sorted((row for row in rows if isinstance(row, Run)), key=_run_order)


def _run_order(run: Run) -> tuple[int, int, str]:
    return -1 if run.commit is None else run.commit, run.finished_at, run.run_id


def find_last_snapshot(files: Readable) -> str | None:
    """Of the run that was committed last; runs of a stream may be many, so that none is made a value of."""
    condition = (pc.field("kind") == Kind.RUN) & pc.field("path").is_valid()
    runs = files.read(["path", "written_at", "run_id", "details"], condition)
    found_commits = pc.struct_field(pc.extract_regex(runs["details"], RUN_COMMIT), "commit")
    commits = pc.fill_null(found_commits.cast(pa.int64()), -1)
    order = [(name, "descending") for name in ("commit", "written_at", "run_id")]
    newest = runs.append_column("commit", commits).sort_by(order).slice(0, 1)
    found: list[str] = newest["path"].to_pylist()
    return found[0] if found else None


def find_gaps(files: Readable, reasons: Collection[GapReason]) -> list[Gap]:
    """Gaps of these reasons, by topic id, partition and offset."""
    wanted = pa.array(sorted(map(str, reasons)), pa.string())
    condition = (pc.field("kind") == Kind.GAP) & pc.field("reason").isin(wanted)
    rows = decode_rows(files.read(SCHEMA.names, condition).sort_by(SORT_ORDER))
    return [row for row in rows if isinstance(row, Gap)]


def find_replaced(files: Readable, columns: Sequence[str], condition: ds.Expression | None = None) -> pa.Table:
    """Rows of kind replaced, as they stand."""
    wanted = pc.field("kind") == Kind.REPLACED
    return files.read(columns, wanted if condition is None else wanted & condition)


def find_paths(files: Readable) -> set[str]:
    """Of every object that some row names, whatever its kind."""
    paths: list[str | None] = files.read(["path"])["path"].unique().to_pylist()
    return {path for path in paths if path is not None}


def find_rows(
    files: Readable,
    *,
    topic: str | None,
    topic_id: str | None,
    partition: int | None,
    offsets: tuple[int, int] | None,
    timestamps: tuple[int, int] | None,
    as_of: Mapping[PartitionId, int] | None,
    revisions: Revisions | None,
    columns: Sequence[str] | None,
) -> pa.Table:
    """See `Catalog.rows`."""
    places = [
        pc.field(name) == value
        for name, value in (("topic", topic), ("topic_id", topic_id), ("partition", partition))
        if value is not None
    ]
    if as_of is not None:
        places.append(pc.field("topic_id").isin(pa.array(sorted({each.topic_id for each in as_of}), pa.string())))
    bounds = _bounds(offsets, timestamps)
    wanted = list(SCHEMA.names if columns is None else columns)
    needed = list(dict.fromkeys([*wanted, *(name for name, _ in SORT_ORDER), "end_offset"]))
    rows = files.read(needed, _all([_present(), *places, *bounds]))
    if revisions is not None:
        # Whatever they bound: a row that is asked for may have taken the place of one that is not.
        replaced = find_replaced(files, SCHEMA.names, _all(places) if places else None)
        if replaced.num_rows:
            rows = as_it_was(rows, replaced, revisions, chosen=_all(bounds) if bounds else None)
    if as_of is not None:
        rows = _until(rows, as_of)
    return rows.sort_by(SORT_ORDER).select(wanted)


def _present() -> ds.Expression:
    """Data and gaps. A row of no kind that is known is not passed over: whoever reads it refuses it."""
    return ~pc.field("kind").isin(pa.array([str(Kind.RUN), str(Kind.REPLACED)], pa.string()))


def _all(conditions: Sequence[ds.Expression]) -> ds.Expression:
    found = conditions[0]
    for each in conditions[1:]:
        found &= each
    return found


def _bounds(offsets: tuple[int, int] | None, timestamps: tuple[int, int] | None) -> list[ds.Expression]:
    found = []
    if offsets is not None:
        found.append((pc.field("end_offset") > offsets[0]) & (pc.field("base_offset") < offsets[1]))
    if timestamps is not None:
        found.append(_may_overlap_time(*timestamps))
    return found


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
