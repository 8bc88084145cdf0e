"""What tasks of a comparison do: digest parts, and find the first differences between parts that are not equal."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.batch.columns import number_array
from maxbrod.batch.digest import Digest, Field
from maxbrod.batch.hashing import digest_records, hash_fields
from maxbrod.compare.items import Digested
from maxbrod.compare.plan.differences import ABSENT, RECORD, Difference, show_field, show_record
from maxbrod.compare.plan.pairs import UNMAPPED
from maxbrod.compare.reading import Reader
from maxbrod.errors import MaxbrodError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.batch.hashing import Words
    from maxbrod.compare.items import CompareItem, CompareSettings, SuspectItem
    from maxbrod.compare.reading import Read

    _Event = tuple[int, int, Field | None, int | None]
    """A row of the source, or before it; -1 if only the target has a record; the field; a row of the target."""

_ALL: Final = np.iinfo(np.int64).max


def digest_parts(settings: CompareSettings, items: Sequence[CompareItem]) -> list[Digested]:
    """What goes wrong with one part is told of it, and the others are read all the same."""
    found = []
    with Reader(settings) as reader:
        for item in items:
            digest, failure = Digest(), None
            try:
                for records, places in reader.read(item):
                    hashes = hash_fields(records)
                    digest = digest.then(digest_records(hashes, places if item.by_offset else None, settings.ignored))
            except MaxbrodError as error:
                failure = error.as_dict()
            found.append(
                Digested(pair=item.pair, side=str(item.side), number=item.number, digest=digest, failure=failure)
            )
    return found


def find_differences(settings: CompareSettings, item: SuspectItem) -> list[Difference]:
    """The first ones, in order. What can no longer be read changes no verdict: there are fewer to show then."""
    search = _Search(item, settings.ignored)
    with Reader(settings) as reader, suppress(MaxbrodError):
        source, target = (_Stream(reader.read(each), by_offset=each.by_offset) for each in (item.source, item.target))
        while len(search.found) < item.limit and (source.more() or target.more()):
            until = min(source.last, target.last)
            search.compare(source.take(until), target.take(until))
    return search.found[: item.limit]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Records with their places, which rise; and those without a place."""

    records: pa.RecordBatch
    places: NDArray[np.int64]

    def cut(self, rows: slice) -> _Rows:
        return _Rows(self.records.slice(rows.start, rows.stop - rows.start), self.places[rows])

    def record(self, row: int) -> dict[str, Any]:
        values: dict[str, Any] = self.records.slice(row, 1).to_pylist()[0]
        return values


class _Stream:
    """One side, as far as it is read."""

    def __init__(self, reads: Iterator[Read], *, by_offset: bool) -> None:
        self._reads = reads
        self._by_offset = by_offset
        self._rows: _Rows | None = None
        self._count = 0

    def more(self) -> bool:
        if self._rows is None:
            records, places = next(self._reads, (None, None))
            if records is not None and places is not None:
                if not self._by_offset:
                    places = np.arange(self._count, self._count + len(places))
                self._count += len(places)
                self._rows = _Rows(records, places)
        return self._rows is not None

    @property
    def last(self) -> int:
        """The place up to which this side is known now; without end, where it has come to its end."""
        if not self.more() or self._rows is None:
            return int(_ALL)
        known = self._rows.places[self._rows.places != UNMAPPED]
        return int(known[-1]) if len(known) else UNMAPPED

    def take(self, until: int) -> _Rows | None:
        """What stands up to that place."""
        rows = self._rows
        if rows is None:
            return None
        beyond = np.flatnonzero(rows.places > until)
        stop = int(beyond[0]) if len(beyond) else len(rows.places)
        self._rows = rows.cut(slice(stop, len(rows.places))) if stop < len(rows.places) else None
        return rows.cut(slice(0, stop)) if stop else None


class _Search:
    def __init__(self, item: SuspectItem, ignored: Sequence[Field]) -> None:
        self._item = item
        self._ignored = ignored
        self.found: list[Difference] = []

    def compare(self, source: _Rows | None, target: _Rows | None) -> None:
        """Of both sides all that stands up to some place."""
        nothing = np.zeros(0, np.int64)
        mine, its = (nothing if each is None else each.places for each in (source, target))
        _, left, right = np.intersect1d(mine, its, return_indices=True)
        lost = np.setdiff1d(np.arange(len(mine)), left)[: self._item.limit].tolist()
        new = np.setdiff1d(np.arange(len(its)), right)[: self._item.limit].tolist()
        events: list[_Event] = [(row, 0, None, None) for row in lost]
        # Sorted in before the first of the source's records that stands behind it.
        events += [(int(np.searchsorted(mine, its[row])), -1, None, row) for row in new]
        if source is not None and target is not None and len(left):
            events += self._changed(source, target, left, right)
        for event in sorted(events, key=lambda each: (each[0], each[1], _order(each[2]), each[3] or 0)):
            self.found.append(self._difference(source, target, event))

    def _changed(
        self, source: _Rows, target: _Rows, left: NDArray[np.int64], right: NDArray[np.int64]
    ) -> Iterator[_Event]:
        mine, its = (hash_fields(_whole(each.records)) for each in (source, target))
        for field in Field:
            if field not in self._ignored:
                for row in np.flatnonzero(_differ(mine[field], its[field], left, right))[: self._item.limit].tolist():
                    yield int(left[row]), 0, field, int(right[row])

    def _difference(self, source: _Rows | None, target: _Rows | None, event: _Event) -> Difference:
        row, only_target, field, other = event
        mine = None if only_target or source is None else source.record(row)
        its = None if other is None or target is None else target.record(other)
        if field is None or mine is None or its is None:
            shown = ABSENT if mine is None else show_record(mine), ABSENT if its is None else show_record(its)
        else:
            shown = show_field(field, mine, its)
        return Difference(
            source_topic=self._item.source_topic,
            target_topic=self._item.target_topic,
            partition=self._item.source.partition,
            source_offset=None if mine is None else mine["offset"],
            target_offset=None if its is None else its["offset"],
            field=RECORD if field is None else str(field),
            source=shown[0],
            target=shown[1],
        )


def _order(field: Field | None) -> int:
    return -1 if field is None else list(Field).index(field)


def _differ(mine: Words, its: Words, left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (mine[:, left] != its[:, right]).any(axis=0)
    return found


def _whole(records: pa.RecordBatch) -> pa.RecordBatch:
    """Not a slice of others, which hashing does not look for."""
    return records.filter(number_array(np.ones(records.num_rows, np.bool_)))
