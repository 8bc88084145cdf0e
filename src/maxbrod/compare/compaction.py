"""Equality of compacted topics: what the log cleaner removed on one side is no difference, if a reader misses nothing.

Records that both sides have are equal, field by field. Of each key, both have the same last record, or the side that
lacks it has a later one beyond what is compared; so whatever else one side lacks was replaced. A side that has nothing
of a key at all may lack its tombstone, once `delete.retention.ms` has passed. Records without a key are never excused.
In a topic that others write to as well, what they have written between two records of a link may have replaced those
that stood between the two: no reader may rely on the order of independent writers.

Works on hashes of keys, in Arrow. A worker looks at a share of the keys, so that its memory has a bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from maxbrod.batch.columns import number_array, number_column
from maxbrod.batch.hashes import hash_keys
from maxbrod.batch.provenance import source_offsets
from maxbrod.compare.items import Cleaner, CompactedItem, CompareItem, CompareSettings, Settled
from maxbrod.compare.plan import Side
from maxbrod.compare.task import Event, Rows, Search, SideReader
from maxbrod.errors import MaxbrodError

_KEY: Final = ("word", "other_word")
_LASTS: Final = tuple(f"{side}_{what}" for side in Side for what in ("mark", "last"))
"""For each key and side: twice the last place that is compared, plus 1 for a tombstone that the other side may lack;
and twice the last place of all, plus 1 for a record that others have written right behind that place."""
_HELD_ROWS: Final = 1 << 20


def settle(settings: CompareSettings, item: CompactedItem) -> Settled:
    """Return what compaction explains of the differences of a pair, for a share of its keys."""
    try:
        with SideReader(settings) as reader:
            keys = _LastRecords(item)
            keys.read(reader)
            search = _Cleaned(item, settings, keys)
            for _ in search.run(reader):
                pass
    except MaxbrodError as error:
        return Settled(pair=item.pair, failure=error)
    return Settled(
        pair=item.pair,
        source_removed=search.removed[Side.SOURCE],
        target_removed=search.removed[Side.TARGET],
        differences=tuple(search.differences[: item.whole.limit]),
        unexplained=search.found,
    )


def _cleaner(item: CompactedItem, side: Side) -> Cleaner:
    return item.source if side is Side.SOURCE else item.target


def _other(side: Side) -> Side:
    return Side.TARGET if side is Side.SOURCE else Side.SOURCE


class _LastRecords:
    """The last record of each key on both sides."""

    def __init__(self, item: CompactedItem) -> None:
        self._item = item
        self._held: list[pa.Table] = []
        self._rows = 0
        self._kept: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
        """The places of the records of a link that are still there."""
        self.ordered = True
        """True if the places of both sides ascend: what a link has appended may be there twice, or out of order."""

    def read(self, reader: SideReader) -> None:
        for side, item in zip(Side, (self._item.whole.source, self._item.whole.target), strict=True):
            end = -1
            for records, places in reader.read(item):
                known = places[places >= 0]
                self.ordered &= bool((np.diff(known, prepend=end) > 0).all())
                end = int(known[-1]) if len(known) else end
                if item.brought is not None and side is Side.TARGET:
                    self._kept.append(known)
                self._add(side, records, 2 * places)
        keys = np.unique(np.concatenate([np.zeros(0, np.uint64), *(table["word"].to_numpy() for table in self._held)]))
        for side in Side:
            for other, place in _cleaner(self._item, side).elsewhere:
                for records, lasts in _read_elsewhere(reader, other, place):
                    self._add(side, records, lasts, known=keys)

    def _add(
        self,
        side: Side,
        records: pa.RecordBatch,
        lasts: NDArray[np.int64],
        *,
        known: NDArray[np.uint64] | None = None,
    ) -> None:
        """`known`: the records are not compared. Only such keys are held: elsewhere there may be any number of them."""
        words = hash_keys(records.column("key"))
        mine = number_column(records.column("key").is_valid()).astype(np.bool_) & (lasts >= 0)
        mine &= words[0] % self._item.shares == self._item.share
        if known is not None:
            mine &= np.searchsorted(known, words[0]) < np.searchsorted(known, words[0], side="right")
        found = {f"{side}_last": lasts[mine]}
        if known is None:
            found[f"{side}_mark"] = (lasts + self._is_forgotten(_other(side), records))[mine]
        columns = [number_array(word[mine]) for word in words]
        columns += [
            number_array(found[name]) if name in found else pa.nulls(len(columns[0]), pa.int64()) for name in _LASTS
        ]
        self._held.append(pa.table(columns, names=[*_KEY, *_LASTS]))
        self._rows += len(columns[0])
        if self._rows >= _HELD_ROWS:
            self._fold()

    def _is_forgotten(self, by: Side, records: pa.RecordBatch) -> NDArray[np.bool_]:
        """Tombstones that a side may have removed."""
        horizon_ms, times = _cleaner(self._item, by).horizon_ms, number_column(records.column("timestamp_ms"))
        if horizon_ms is None:
            return np.zeros(len(times), np.bool_)
        dead: NDArray[np.bool_] = number_column(records.column("value").is_null()).astype(np.bool_)
        # One without a time may be of any age.
        return dead & (times >= 0) & (times < horizon_ms)

    def _fold(self) -> None:
        table = pa.concat_tables(self._held).group_by(_KEY).aggregate([(name, "max") for name in _LASTS])
        table = table.select([*_KEY, *(f"{name}_max" for name in _LASTS)]).rename_columns([*_KEY, *_LASTS])
        self._held = [table]
        # What is left is held until it has doubled: otherwise many keys would be folded again and again.
        self._rows = -table.num_rows

    def unexplained(self) -> dict[Side, NDArray[np.int64]]:
        """The places of last records that a side lacks and must have."""
        if self._held:
            self._fold()
        table = self._held[0] if self._held else pa.table({name: pa.array([], pa.int64()) for name in _LASTS})
        lasts = {name: table[name].fill_null(-1).to_numpy() for name in _LASTS}
        marks = {side: lasts[f"{side}_mark"] for side in Side}
        newest = np.maximum(*marks.values()) >> 1
        kept = np.sort(np.concatenate(self._kept))
        before = kept[np.maximum(np.searchsorted(kept, newest) - 1, 0)]
        found = {}
        for side in Side:
            last, other = lasts[f"{side}_last"], marks[_other(side)]
            forgotten = (last < 0) & (other >= 0) & (other & 1 == 1)
            replaced = (last > 2 * newest) | ((last >= 0) & (last & 1 == 1) & (last >> 1 >= before))
            found[side] = np.sort(newest[(marks[side] >> 1 < newest) & ~replaced & ~forgotten])
        return found


def _read_elsewhere(
    reader: SideReader, item: CompareItem, place: int | None
) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]]:
    """Records that are not compared, each with a number of `_LASTS`."""
    newest = 0
    for records, places in reader.read(replace(item, brought=None)):
        if place is not None:
            yield records, np.full(len(places), 2 * place)
        elif item.brought is None:
            yield records, 2 * np.maximum(places, 0)
        else:
            own = source_offsets(records.column("headers"), item.brought.restore_id)
            reached = np.maximum.accumulate(np.maximum(own, newest))
            newest = int(reached[-1]) if len(reached) else newest
            yield records, np.where(own >= 0, 2 * own, 2 * reached + 1)


class _Cleaned(Search):
    """Finds the differences that compaction does not explain, and counts what it does."""

    def __init__(self, item: CompactedItem, settings: CompareSettings, keys: _LastRecords) -> None:
        # Whatever is to be shown, one is looked for: the verdict depends on it.
        super().__init__(replace(item.whole, limit=max(1, item.whole.limit)), settings.ignored)
        self._compacted = item
        self._keys_ordered, self._unexplained = keys.ordered, keys.unexplained()
        self.removed = dict.fromkeys(Side, 0)
        self.found = 0

    def lacking(self, side: Side, rows: Rows, lacks: NDArray[np.int64]) -> NDArray[np.int64]:
        item = self._compacted
        keys, places = rows.records.column("key").take(number_array(lacks)), rows.places[lacks]
        mine = hash_keys(keys)[0] % item.shares == item.share
        explained = (places >= 0) & number_column(keys.is_valid()).astype(np.bool_)
        explained &= self._keys_ordered and _cleaner(item, side).horizon_ms is not None
        explained &= ~np.isin(places, self._unexplained[side])
        self.removed[side] += int((mine & explained).sum())
        self.found += int((mine & ~explained).sum())
        wrong: NDArray[np.int64] = lacks[mine & ~explained]
        return wrong

    def changed(self, source: Rows, target: Rows, left: NDArray[np.int64], right: NDArray[np.int64]) -> Iterator[Event]:
        for event in super().changed(source, target, left, right) if self._compacted.share == 0 else ():
            self.found += 1
            yield event

    def compare(self, source: Rows | None, target: Rows | None) -> None:
        super().compare(source, target)
        del self.differences[self._item.limit :]
