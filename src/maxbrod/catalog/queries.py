"""Queries on the catalog: conditions that are pushed down to its files, and answers made from few columns.

A catalog may have millions of rows, and a command that looks at all of them must not hold all of them: there are
portions of rows, sums of pieces, and sets of paths. A portion is a range of partitions in the order of rows, with all
rows of each. Files are sorted in that order too, so reading a portion reads only the row groups that may contain it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

from maxbrod.batch.columns import number_array
from maxbrod.catalog.generations import TopicGenerations, as_active, decode_generations
from maxbrod.catalog.replaced import REVISION_COLUMNS, Revisions, as_it_was, count_revisions, revive
from maxbrod.catalog.rows import RUN_COMMIT, Gap, Run, decode_rows, may_have_since, may_have_until
from maxbrod.catalog.schema import SCHEMA, SORT_ORDER, Kind
from maxbrod.model import GapReason, PartitionId

PORTION_ROWS: Final = 1 << 19
"""About 200 MB with all columns. Smaller portions read more row groups twice, at the edges of portions."""
SLICE_COLUMNS: Final = ("path", "position", "bytes", "digest", "min_timestamp", "max_timestamp", "written_at")
_PARTIAL_ROWS: Final = 1 << 20
_AS_OF_END: Final = "as_of_end"
_NOT_PRESENT: Final = (Kind.RUN, Kind.REPLACED, Kind.BUILDING, Kind.GENERATIONS)


class Readable(Protocol):
    """The rows of a catalog, in files or in memory."""

    @property
    def row_count(self) -> int | None: ...

    def read(self, columns: Sequence[str], condition: ds.Expression | None = None) -> pa.Table: ...

    def stream(self, columns: Sequence[str], condition: ds.Expression | None = None) -> Iterator[pa.Table]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedRange:
    """The archived range of a partition: offsets [first, end), data and gaps together."""

    topic: str
    first_offset: int
    end_offset: int
    last_leader_epoch: int | None
    """That of the last archived batch; None while there are only gaps."""


class Queries(ABC):
    """The queries that every catalog answers, wherever its rows are."""

    @abstractmethod
    def _files(self) -> Readable: ...

    def positions(self) -> dict[PartitionId, ArchivedRange]:
        """The archived range of every partition that has a row."""
        return _positions(self.spans())

    def spans(self) -> pa.Table:
        """One row for each partition that has rows, in their order: what they span.

        `topic`, the lowest `base_offset` and `written_at`, the highest `end_offset` and `last_leader_epoch`, which is
        null if there are only gaps. Leader epochs only rise along a log, so the highest is the last.
        """
        return self._spans(is_present())

    def _spans(self, condition: ds.Expression) -> pa.Table:
        keys = ["topic_id", "partition"]
        measures = [("base_offset", "min"), ("end_offset", "max"), ("last_leader_epoch", "max"), ("written_at", "min")]
        names = [*keys, "topic", *(name for name, _ in measures)]
        found = add_up(self._files().stream(names, condition), [*keys, "topic"], measures)
        if found is None:
            return pa.schema([SCHEMA.field(name) for name in names]).empty_table()
        # As `topics_in`.
        spans = found.rename_columns(names).group_by(keys, use_threads=False).aggregate([("topic", "max"), *measures])
        spans = spans.select([*keys, "topic_max", *(f"{name}_{function}" for name, function in measures)])
        return spans.rename_columns(names).sort_by([(name, "ascending") for name in keys])

    def runs(self) -> list[Run]:
        """Every run, in the order of commits. Runs without a recorded commit come first, ordered by their clocks."""
        rows = decode_rows(self._files().read(SCHEMA.names, pc.field("kind") == Kind.RUN))
        runs = (row for row in rows if isinstance(row, Run))
        return sorted(runs, key=lambda run: (-1 if run.commit is None else run.commit, run.finished_at, run.run_id))

    def last_snapshot_run(self) -> Run | None:
        """The last run that recorded a snapshot. There may be many runs, so no other is decoded."""
        condition = (pc.field("kind") == Kind.RUN) & pc.field("path").is_valid()
        return last_run(self._files().read(SCHEMA.names, condition))

    def gaps(self, reasons: Collection[GapReason]) -> list[Gap]:
        """Every gap that has one of these reasons, by topic id, partition and offset."""
        rows = decode_rows(self.gap_rows(reasons, SCHEMA.names).sort_by(SORT_ORDER))
        return [row for row in rows if isinstance(row, Gap)]

    def gap_rows(self, reasons: Collection[GapReason], columns: Sequence[str], *, kind: Kind = Kind.GAP) -> pa.Table:
        """The same as rows with these columns, in no particular order; or gaps that were replaced, by their kind."""
        names = pa.array(sorted(map(str, reasons)), pa.string())
        gap = (pc.field("kind") == kind) & pc.field("path").is_null()
        return self._files().read(columns, gap & pc.field("reason").isin(names))

    def rows(
        self,
        *,
        topic: str | None = None,
        topic_id: str | None = None,
        topic_ids: Collection[str] | None = None,
        partition: int | None = None,
        run_id: str | None = None,
        offsets: tuple[int, int] | None = None,
        timestamps: tuple[int, int] | None = None,
        as_of: Mapping[PartitionId, int] | None = None,
        revisions: Revisions | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Rows of data and gaps, by topic id, partition and offset; `rows.decode_rows` makes values of them.

        `offsets` is [first, end): rows that overlap it are returned whole. `timestamps` is first and last in
        milliseconds: rows that cannot hold a record of that time are left out. That is certain for rows that end before
        it, and for rows that begin after it if their lowest timestamp is exact.
        `as_of` gives the end offset of each partition as a run's snapshot recorded it: partitions that it does
        not name did not exist then, and the last row of each may reach beyond its end. `revisions` is how often rows
        of each partition had been replaced by then, also from a snapshot, and selects the rows of that time; without
        it the current rows are returned. `portions` returns the same rows of a large archive in bounded memory.
        """
        ids = topic_ids if topic_id is None else [topic_id]
        places = _places(topic=topic, topic_ids=ids, partition=partition, run_id=run_id, as_of=as_of)
        bounds = []
        if offsets is not None:
            bounds.append((pc.field("end_offset") > offsets[0]) & (pc.field("base_offset") < offsets[1]))
        if timestamps is not None:
            first, last = timestamps
            # A row without times (a gap, or batches without records) cannot be excluded. Neither can a row that begins
            # after `last`, unless its lowest timestamp is exact: it may be that of a batch's first record, and others
            # may be older.
            bounds.append(may_have_since(first) & may_have_until(last) if first <= last else pc.scalar(False))
        return self._select(places, bounds, columns, as_of, revisions)

    def portions(
        self,
        columns: Sequence[str] | None = None,
        *,
        topic_ids: Collection[str] | None = None,
        as_of: Mapping[PartitionId, int] | None = None,
        revisions: Revisions | None = None,
        rows_max: int = PORTION_ROWS,
    ) -> Iterator[pa.Table]:
        """As `rows`, in the same order, but in portions that have all rows of one or more partitions.

        Only one portion is in memory at a time. A portion has at most `rows_max` rows, unless one partition has more.
        """
        places = _places(topic_ids=topic_ids, as_of=as_of)
        for condition in self._divided(places, rows_max):
            yield self._select([*places, *condition], [], columns, as_of, revisions)

    def portions_with_replaced(
        self, columns: Sequence[str], *, topic_ids: Collection[str] | None = None, rows_max: int = PORTION_ROWS
    ) -> Iterator[tuple[pa.Table, pa.Table]]:
        """As `portions`, each with the rows of kind replaced of its partitions as the catalog stores them.

        Both are in the order of rows.
        """
        places = _places(topic_ids=topic_ids)
        needed = list(dict.fromkeys([*columns, "kind", *(name for name, _ in SORT_ORDER)]))
        for condition in self._divided(places, rows_max):
            stored = is_present() | (pc.field("kind") == Kind.REPLACED)
            rows = self._files().read(needed, _all([stored, *places, *condition])).sort_by(SORT_ORDER)
            replaced = pc.equal(rows["kind"], str(Kind.REPLACED))
            dead = rows.filter(replaced).select(columns)
            # Usually there are none: then no row is copied.
            live = rows.filter(pc.invert(replaced)) if dead.num_rows else rows
            yield live.select(columns), dead

    def topics(self, *, as_of: Mapping[PartitionId, int] | None = None, revisions: Revisions | None = None) -> pa.Table:
        """One row for each topic id that has rows: `topic_id`, `topic`, and the lowest `written_at`."""
        names = ("topic_id", "topic", "written_at")
        if revisions is not None and _find_replaced(self._files(), REVISION_COLUMNS).num_rows:
            pieces = self.portions(names, as_of=as_of, revisions=revisions)
        else:
            needed = names if as_of is None else (*names, "partition", "base_offset")
            pieces = self._files().stream(needed, _all([is_present(), *_places(as_of=as_of)]))
            pieces = pieces if as_of is None else (_until(piece, as_of) for piece in pieces)
        found = add_up(pieces, ["topic_id", "topic"], [("written_at", "min")])
        schema = pa.schema([SCHEMA.field(name) for name in names])
        return schema.empty_table() if found is None else topics_in(found.rename_columns(list(names)))

    def _divided(self, places: Sequence[ds.Expression], rows_max: int) -> list[list[ds.Expression]]:
        """The conditions of the portions that these rows are read in."""
        files = self._files()
        if files.row_count is not None and files.row_count <= rows_max:
            return [[]]
        # Replaced rows count too: as of an older run they are returned.
        ranged = pc.field("kind") != Kind.RUN
        counts = add_up(
            files.stream(["topic_id", "partition", "kind"], _all([ranged, *places])),
            ["topic_id", "partition"],
            [("kind", "count")],
        )
        if counts is None:
            return []
        ordered = counts.sort_by([("topic_id", "ascending"), ("partition", "ascending")])
        names = (ordered[name].to_pylist() for name in ("topic_id", "partition", "kind_count"))
        conditions, first, last, size = [], None, None, 0
        for topic_id, partition, count in zip(*names, strict=True):
            if first is not None and last is not None and size + count > rows_max:
                conditions.append([_between(first, last)])
                first, size = None, 0
            last = topic_id, partition
            first, size = first or last, size + count
        return conditions if first is None or last is None else [*conditions, [_between(first, last)]]

    def _select(
        self,
        places: Sequence[ds.Expression],
        bounds: Sequence[ds.Expression],
        columns: Sequence[str] | None,
        as_of: Mapping[PartitionId, int] | None,
        revisions: Revisions | None,
    ) -> pa.Table:
        files = self._files()
        names = list(SCHEMA.names if columns is None else columns)
        needed = list(dict.fromkeys([*names, *(name for name, _ in SORT_ORDER), "end_offset"]))
        rows = files.read(needed, _all([is_present(), *places, *bounds]))
        if revisions is not None:
            # Without `bounds`: a row within them may have replaced one outside them.
            replaced = _find_replaced(files, SCHEMA.names, *places)
            if replaced.num_rows:
                rows = as_it_was(rows, replaced, revisions, chosen=_all(bounds) if bounds else None)
        if as_of is not None:
            rows = _until(rows, as_of)
        return rows.sort_by(SORT_ORDER).select(names)

    def stored(self, *, topic_ids: Collection[str] | None = None, paths: Collection[str] | None = None) -> pa.Table:
        """Rows that name a slice as the catalog stores them, of all kinds: of these topics, or of these objects."""
        kinds = pa.array([str(kind) for kind in (Kind.DATA, Kind.REPLACED, Kind.BUILDING)], pa.string())
        conditions = [pc.field("kind").isin(kinds), pc.field("path").is_valid()]
        for name, chosen in (("topic_id", topic_ids), ("path", paths)):
            if chosen is not None:
                conditions.append(pc.field(name).isin(pa.array(sorted(chosen), pa.string())))
        return self._files().read(SCHEMA.names, _all(conditions)).sort_by(SORT_ORDER)

    def replaced(self) -> pa.Table:
        """Rows of data and gaps that later rows replaced, as they were, in no order."""
        return revive(self.replaced_rows())

    def replaced_rows(self) -> pa.Table:
        """Rows of kind replaced as the catalog stores them, in no order."""
        return _find_replaced(self._files(), SCHEMA.names)

    def run_rows(self) -> pa.Table:
        """Rows of kind run as the catalog stores them, in no order."""
        return self._files().read(SCHEMA.names, pc.field("kind") == Kind.RUN)

    def revisions(self) -> dict[PartitionId, int]:
        """The number of replacements in each partition; only partitions with replaced rows are named."""
        return count_revisions(_find_replaced(self._files(), REVISION_COLUMNS))

    def generations(self) -> dict[str, TopicGenerations]:
        """The generations of compacted topics, by topic id; only of topics that are read in generations."""
        return decode_generations(self._files().read(SCHEMA.names, pc.field("kind") == Kind.GENERATIONS))

    def generation_rows(self, topic_ids: Collection[str] | None = None, *, kind: Kind = Kind.BUILDING) -> pa.Table:
        """Rows of kind building, or generations, as they are, of these topics or of all."""
        conditions = [pc.field("kind") == kind]
        if topic_ids is not None:
            conditions.append(pc.field("topic_id").isin(pa.array(sorted(topic_ids), pa.string())))
        return self._files().read(SCHEMA.names, _all(conditions)).sort_by(SORT_ORDER)

    def building(self) -> pa.Table:
        """Rows of data and gaps of generations under construction, as they will be, by partition and offset."""
        return as_active(self.generation_rows())

    def building_positions(self) -> dict[PartitionId, ArchivedRange]:
        """The range that has been read of each partition of a generation under construction."""
        return _positions(self._spans(pc.field("kind") == Kind.BUILDING))

    def paths(self) -> set[str]:
        """Every object that some row names: data, also if it was replaced or is not active yet, and snapshots."""
        return {path for paths in self._path_lists() for path in paths if path is not None}

    def slices(self) -> Iterator[pa.Table]:
        """Where slices are and what proves them, of all rows that name one: also replaced, or not active yet."""
        return self._files().stream(SLICE_COLUMNS, pc.field("digest").is_valid())

    def path_set(self) -> PathSet:
        """The same in little memory."""
        found = PathSet()
        for paths in self._path_lists():
            found.add(path for path in paths if path is not None)
        return found

    def _path_lists(self) -> Iterator[list[str | None]]:
        return (piece["path"].unique().to_pylist() for piece in self._files().stream(["path"]))


def topics_in(rows: pa.Table) -> pa.Table:
    """As `Queries.topics`, of these rows or of their `spans`."""
    # An id has one name, unless somebody else wrote the catalog.
    found = rows.group_by("topic_id", use_threads=False).aggregate([("topic", "max"), ("written_at", "min")])
    names = {"topic_id": "topic_id", "topic": "topic_max", "written_at": "written_at_min"}
    return found.select(list(names.values())).rename_columns(list(names)).sort_by("topic_id")


def _positions(spans: pa.Table) -> dict[PartitionId, ArchivedRange]:
    names = ("topic_id", "partition", "topic", "base_offset", "end_offset", "last_leader_epoch")
    return {
        PartitionId(topic_id=topic_id, partition=partition): ArchivedRange(
            topic=topic, first_offset=first, end_offset=end, last_leader_epoch=epoch
        )
        for topic_id, partition, topic, first, end, epoch in zip(
            *(spans[name].to_pylist() for name in names), strict=True
        )
    }


def run_commits(runs: pa.Table) -> pa.ChunkedArray:
    """The version that has committed each of these runs; -1: unknown."""
    commits = pc.struct_field(pc.extract_regex(runs["details"], RUN_COMMIT), "commit")
    return pc.fill_null(commits.cast(pa.int64()), -1)


def last_run(runs: pa.Table) -> Run | None:
    """The run that was committed last, of rows of kind run. No other is decoded."""
    numbered = runs.append_column("commit", run_commits(runs))
    order = [(name, "descending") for name in ("commit", "written_at", "run_id")]
    last = decode_rows(numbered.sort_by(order).slice(0, 1))
    return next((row for row in last if isinstance(row, Run)), None)


def _between(first: tuple[str, int], last: tuple[str, int]) -> ds.Expression:
    """The condition that a row is of these partitions or of one between them."""
    topic_id, partition = pc.field("topic_id"), pc.field("partition")
    # Python orders texts as Arrow does: both as their UTF-8 bytes. The first two compare with statistics; the others
    # cut the topics at both ends.
    return (
        (topic_id >= first[0])
        & (topic_id <= last[0])
        & ((topic_id > first[0]) | (partition >= first[1]))
        & ((topic_id < last[0]) | (partition <= last[1]))
    )


def _places(
    *,
    topic: str | None = None,
    topic_ids: Collection[str] | None = None,
    partition: int | None = None,
    run_id: str | None = None,
    as_of: Mapping[PartitionId, int] | None = None,
) -> list[ds.Expression]:
    values = (("topic", topic), ("partition", partition), ("run_id", run_id))
    places = [pc.field(name) == value for name, value in values if value is not None]
    known = None if as_of is None else {partition.topic_id for partition in as_of}
    # Arrow compares a list of values with the statistics of row groups, as it does a single one.
    chosen = [pa.array(sorted(ids), pa.string()) for ids in (topic_ids, known) if ids is not None]
    return [*places, *(pc.field("topic_id").isin(ids) for ids in chosen)]


def _find_replaced(files: Readable, columns: Sequence[str], *conditions: ds.Expression) -> pa.Table:
    return files.read(columns, _all([pc.field("kind") == Kind.REPLACED, *conditions]))


def is_present() -> ds.Expression:
    """Data and gaps. A row of an unknown kind is included, so that its reader refuses it."""
    return ~pc.field("kind").isin(pa.array([str(kind) for kind in _NOT_PRESENT], pa.string()))


def _all(conditions: Sequence[ds.Expression]) -> ds.Expression:
    return reduce(and_, conditions)


def _until(rows: pa.Table, ends: Mapping[PartitionId, int]) -> pa.Table:
    """Rows that begin before their partition's end; no rows of partitions without one.

    Joins row numbers instead of rows: Arrow's joins do not support columns of lists.
    """
    keys = pa.table(
        {
            "topic_id": pa.array([end.topic_id for end in ends], pa.string()),
            "partition": pa.array([end.partition for end in ends], pa.int32()),
            _AS_OF_END: pa.array(list(ends.values()), pa.int64()),
        }
    )
    numbered = rows.select(["topic_id", "partition", "base_offset"]).append_column(
        "row", pa.array(range(rows.num_rows), pa.int64())
    )
    joined = numbered.join(keys, ["topic_id", "partition"], join_type="inner", use_threads=False)
    return rows.take(joined.filter(pc.field("base_offset") < pc.field(_AS_OF_END))["row"])


_AGAIN: Final = {"min": "min", "max": "max", "sum": "sum", "count": "sum"}
"""The function that combines results of each function."""


def add_up(pieces: Iterable[pa.Table], keys: Sequence[str], measures: Sequence[tuple[str, str]]) -> pa.Table | None:
    """`group_by(keys).aggregate(measures)` over all pieces, holding only the groups; None without any piece."""
    names = [f"{name}_{function}" for name, function in measures]
    again = [(name, _AGAIN[function]) for name, (_, function) in zip(names, measures, strict=True)]
    found: pa.Table | None = None
    waiting: list[pa.Table] = []
    texts: dict[str, _Texts] = {}

    def fold() -> pa.Table:
        # In one thread: others would each have a table of groups of their own, to be merged with the rest.
        groups = pa.concat_tables(waiting).group_by(list(keys), use_threads=False).aggregate(list(measures))
        groups = groups.select([*keys, *names])
        if found is None:
            return groups
        both = pa.concat_tables([found, groups]).group_by(list(keys), use_threads=False).aggregate(again)
        return both.select([*keys, *(f"{name}_{function}" for name, function in again)]).rename_columns([*keys, *names])

    for piece in pieces:
        numbered = piece
        for key in keys:
            if pa.types.is_string(piece.schema.field(key).type):
                numbers = texts.setdefault(key, _Texts()).numbers(piece[key])
                numbered = numbered.set_column(numbered.schema.get_field_index(key), key, numbers)
        waiting.append(numbered)
        if sum(table.num_rows for table in waiting) > _PARTIAL_ROWS + (0 if found is None else found.num_rows):
            found, waiting = fold(), []
    found = fold() if waiting else found
    for key, known in texts.items():
        if found is not None:
            found = found.set_column(found.schema.get_field_index(key), key, known.texts(found[key]))
    return found


class _Texts:
    """A number for each text of a column: a few texts are in millions of rows, and numbers are grouped far faster."""

    def __init__(self) -> None:
        self._known: dict[str | None, int] = {}

    def numbers(self, column: pa.ChunkedArray) -> pa.Array:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        known = self._known
        numbers = [known.setdefault(text, len(known)) for text in encoded.dictionary.to_pylist()]
        return number_array(np.array(numbers, np.int32)[encoded.indices.to_numpy()])

    def texts(self, numbers: pa.ChunkedArray) -> pa.Array:
        return pa.array(list(self._known), pa.string()).take(numbers.combine_chunks())


def hash_paths(paths: Iterable[str]) -> NDArray[np.int64]:
    """64 bits for each name: Python's own keyed hash (SipHash), which differs from process to process.

    Two of five million names have the same hash with a probability of less than one in a million.
    """
    return np.fromiter(map(hash, paths), np.int64)


class PathSet:
    """A set of names, in 8 bytes for each. It may contain a name that was not added, but never lacks one that was.

    So whoever deletes what is not in it deletes nothing that is named.
    """

    def __init__(self) -> None:
        self._new: list[NDArray[np.int64]] = []
        self._sorted: NDArray[np.int64] = np.empty(0, np.int64)

    def add(self, paths: Iterable[str]) -> None:
        self._new.append(np.unique(hash_paths(paths)))

    def __contains__(self, path: object) -> bool:
        if self._new:
            self._sorted = np.unique(np.concatenate([self._sorted, *self._new]))
            self._new = []
        place = int(np.searchsorted(self._sorted, hash(path)))
        return place < len(self._sorted) and int(self._sorted[place]) == hash(path)
