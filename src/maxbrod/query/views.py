"""The views of an archive for queries: topics with decoded keys and values, and segments, gaps, runs and groups.

The small tables come from the catalog and the snapshot. Times in them are timestamps, null for those out of the range
of Spark's microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.archive import Archive
from maxbrod.archive.runs import summarise_run
from maxbrod.archive.snapshots import Moment
from maxbrod.catalog.schema import SCHEMA, Kind
from maxbrod.layouts.internal_topics import SchemasTopic
from maxbrod.query.options import ScopeOptions
from maxbrod.table.decoders import archived_schemas, decoded_column
from maxbrod.table.formats import format_of, parse_formats
from maxbrod.table.read.columns import USUAL
from maxbrod.table.scans import named_in
from maxbrod.table.views import RECORDS, Decoded, HeldTables, RecordView, SmallView, View

if TYPE_CHECKING:
    from maxbrod.query.scope import Selected
    from maxbrod.work.session import Session

_TIME: Final = pa.timestamp("us", tz="UTC")
_MS_MAX: Final = (2**63 - 1) // 1000
_TIMES: Final = ("min_timestamp", "max_timestamp", "written_at")


def _columns(*names: str) -> list[tuple[str, pa.DataType]]:
    """Columns of the catalog, with times as timestamps."""
    return [(name, _TIME if name in _TIMES else SCHEMA.field(name).type) for name in names]


def _typed(kind: pa.DataType, *names: str) -> list[tuple[str, pa.DataType]]:
    return [(name, kind) for name in names]


_RANGE: Final = [
    *_columns("topic", "topic_id"),
    ("newest", pa.bool_()),
    *_columns("partition", "base_offset", "end_offset"),
]
_WRITTEN: Final = _columns("run_id", "written_at")
SEGMENTS: Final = pa.schema(
    [
        *_RANGE,
        *_columns("records", "bytes", "raw_bytes", "codec", "path", "position", *_TIMES[:2], "min_timestamp_exact"),
        *_columns("control_records", "first_leader_epoch", "last_leader_epoch", "aborted", "digest", "level"),
        *_WRITTEN,
    ]
)
GAPS: Final = pa.schema([*_RANGE, ("offsets", pa.int64()), *_columns("reason"), *_WRITTEN])
RUNS: Final = pa.schema(
    [
        *_typed(pa.string(), "run_id", "command"),
        *_typed(_TIME, "started_at", "finished_at"),
        *_typed(pa.int64(), "topics", "records", "bytes", "exit_code"),
        *_typed(pa.string(), "snapshot", "statistics"),
    ]
)
GROUPS: Final = pa.schema(
    [
        *_typed(pa.string(), "group_id", "type", "state", "protocol_type", "topic", "topic_id"),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("leader_epoch", pa.int32()),
        ("metadata", pa.string()),
        ("lag", pa.int64()),
        ("run_id", pa.string()),
    ]
)


class Views:
    """Creates views. Reads only what a query needs: a sample of a topic, or the archived schemas."""

    def __init__(
        self,
        spark: Session,
        archive: Archive,
        selected: Selected,
        scope: ScopeOptions,
        *,
        planned: bool = False,
        held: HeldTables | None = None,
    ) -> None:
        """`planned`: see `RecordView`. `held`: where samples of small tables are."""
        self._spark = spark
        self._planned = planned
        self._held = held
        self._made: dict[str, RecordView] = {}
        self._archive = archive
        self._selected = selected
        self._scope = scope
        self._formats = {"key": parse_formats(scope.key), "value": parse_formats(scope.value)}
        self._archived: SchemasTopic | None = None

    def every(self) -> list[View]:
        return [self._view(RECORDS), *map(self._view, self._selected.views()), *self._small()]

    def columns(self) -> dict[str, Sequence[str]]:
        """The columns of each view. No sample is read, so what decoded values contain is unknown."""
        records = dict.fromkeys((RECORDS, *self._selected.views()), USUAL)
        return {**records, **{view.name: view.arrow_schema.names for view in self._small()}}

    def named_in(self, sql: str) -> list[View]:
        """The views that a query reads. Creating a view takes time, so others are left out."""
        small = {view.name: view for view in self._small()}
        names = named_in(self._spark, sql, (RECORDS, *self._selected.views(), *small))
        return [small.get(name) or self._view(name) for name in names]

    def _small(self) -> list[SmallView]:
        found = self._selected
        tables = make_tables(self._archive, found.moment, found.topics, found.newest)
        return [SmallView(name=name, arrow_schema=schema, make=make) for name, (schema, make) in tables.items()]

    def _view(self, name: str) -> RecordView:
        """The view of a topic, or RECORDS. Made once, because a sample may have to be read for it."""
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> RecordView:
        plain = RecordView(
            name=name,
            options=self._selected.options,
            topic=None if name == RECORDS else name,
            planned=self._planned,
        )
        # If there is only one topic, all records are decoded as its own; else only by formats that need no topic.
        topics = sorted(self._selected.topics)
        topic = plain.topic or (topics[0] if len(topics) == 1 else None)
        decoded: dict[str, Decoded] = {}
        for column, formats in self._formats.items():
            wanted = format_of(formats, topic)
            if topic is None and wanted.of_topic:
                continue
            found = decoded_column(
                column,
                wanted,
                topic=topic,
                sample=lambda column: self._sampled(plain, column),
                schemas=self._schemas,
                permissive=self._scope.permissive,
            )
            decoded |= {} if found is None else {column: found}
        return replace(plain, decoded=decoded)

    def _sampled(self, view: RecordView, column: str) -> Any:  # noqa: ANN401 - a DataFrame
        held = None if self._held is None else self._held.frame(self._spark, view)
        return (view.load(self._spark, {column}) if held is None else held).select(column)

    def _schemas(self) -> SchemasTopic:
        self._archived = self._archived or archived_schemas(self._selected.options)
        return self._archived


def make_tables(
    archive: Archive, moment: Moment, topics: Collection[str], newest: Collection[str]
) -> dict[str, tuple[pa.Schema, Callable[[], pa.Table]]]:
    """By name the columns, and a function that makes the rows. `newest` has topic ids."""
    return {
        "segments": (SEGMENTS, lambda: _rows(archive, moment, topics, newest, Kind.DATA, SEGMENTS)),
        "gaps": (GAPS, lambda: _rows(archive, moment, topics, newest, Kind.GAP, GAPS)),
        "runs": (RUNS, lambda: _runs(archive)),
        "groups": (GROUPS, lambda: _groups(archive, moment, topics)),
    }


def _rows(
    archive: Archive, moment: Moment, topics: Collection[str], newest: Collection[str], kind: Kind, schema: pa.Schema
) -> pa.Table:
    rows = archive.catalog.rows(as_of=moment.ends, revisions=moment.revisions)
    wanted = pc.field("topic").isin(pa.array(sorted(topics), pa.string()))
    rows = rows.filter((pc.field("kind") == str(kind)) & wanted)
    made = {
        "newest": lambda: pc.is_in(rows["topic_id"], pa.array(sorted(newest), pa.string())),
        "offsets": lambda: pc.subtract(rows["end_offset"], rows["base_offset"]),
    }
    columns = [
        made[field.name]()
        if field.name in made
        else _times(rows[field.name])
        if field.type == _TIME
        else rows[field.name]
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _times(milliseconds: pa.ChunkedArray) -> pa.ChunkedArray:
    fits = pc.and_(pc.greater_equal(milliseconds, -_MS_MAX), pc.less_equal(milliseconds, _MS_MAX))
    return pc.if_else(fits, milliseconds, None).cast(pa.timestamp("ms", tz="UTC")).cast(_TIME)


def _time(milliseconds: int) -> int | None:
    return milliseconds * 1000 if -_MS_MAX <= milliseconds <= _MS_MAX else None


def _runs(archive: Archive) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for run in map(summarise_run, archive.catalog.runs()):
        found = {name: getattr(run, name) for name in RUNS.names}
        times = {"started_at": _time(run.started_at), "finished_at": _time(run.finished_at)}
        rows.append({**found, **times, "statistics": json.dumps(run.statistics, sort_keys=True)})
    return pa.Table.from_pylist(rows, schema=RUNS)


def _groups(archive: Archive, moment: Moment, topics: Collection[str]) -> pa.Table:
    """A row for each committed offset, and one without a topic for a group that has none.

    `run_id` is the run that last saw it: an older one if the cluster has lost it.
    """
    positions = archive.catalog.positions()
    ends = {
        (partition_id.topic_id, partition_id.partition): found.end_offset for partition_id, found in positions.items()
    }
    if moment.ends is not None:
        ends |= {(partition_id.topic_id, partition_id.partition): end for partition_id, end in moment.ends.items()}
    rows: list[dict[str, Any]] = []
    runs = {} if moment.known is None else moment.known.offset_runs
    own = None if moment.run is None else moment.run.run_id
    for group in () if moment.cluster is None else moment.cluster.groups:
        about = {name: getattr(group, name) for name in ("group_id", "type", "state", "protocol_type")}
        offsets = group.offsets or ()
        rows += [{**about, "run_id": own}] if not offsets else []
        for offset in offsets:
            if offset.topic not in topics:
                continue
            end = ends.get((offset.topic_id or "", offset.partition))
            place = {name: getattr(offset, name) for name in ("topic", "topic_id", "partition", "offset", "metadata")}
            epoch = None if offset.leader_epoch < 0 else offset.leader_epoch
            known = {"leader_epoch": epoch, "lag": None if end is None else end - offset.offset}
            run_id = runs.get((group.group_id, offset.topic_id or "", offset.partition), own)
            rows.append({**about, **place, **known, "run_id": run_id})
    return pa.Table.from_pylist(rows, schema=GROUPS)
