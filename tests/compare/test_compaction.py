"""Compacted topics: what a cleaner removed is no difference, and whatever else is missing or changed is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.batch.digest import Field
from maxbrod.compare import compaction
from maxbrod.compare.items import LATER, Cleaner, CompactedItem, CompareItem, CompareSettings, Settled, SuspectItem
from maxbrod.compare.plan import ComparedRange, Side
from maxbrod.config import KafkaConfig
from support.given_sides import SCHEMA, FakeReader

if TYPE_CHECKING:
    from collections.abc import Iterator

END, HORIZON_MS = 30, 1000
Log = dict[int, tuple[bytes | None, bytes | None]]
"""The key and the value at each offset."""
LOGS = st.dictionaries(
    st.integers(0, 45), st.tuples(st.sampled_from([b"a", b"b", b"c", b""]), st.sampled_from([b"1", b"2"])), max_size=25
)
SUBSETS = st.sets(st.integers(0, 45))


def replaced(log: Log) -> set[int]:
    """The offsets that a cleaner may remove: a later record has the same key."""
    return {at for at, (key, _) in log.items() if any(later > at and log[later][0] == key for later in log)}


class SidesReader(FakeReader):
    """A side is compared up to `END`; what follows is elsewhere."""

    logs: dict[Side, Log]

    def read(self, item: CompareItem) -> Iterator[tuple[pa.RecordBatch, Any]]:
        log = {at: type(self).logs[item.side][at] for at in sorted(type(self).logs[item.side])}
        middle = (item.extent.first + item.extent.end) // 2
        for first, end in ((item.extent.first, middle), (middle, item.extent.end)):
            rows: list[dict[str, Any]] = [
                {"offset": at, "timestamp_ms": at, "timestamp_type": 0, "key": key, "value": value, "headers": []}
                for at, (key, value) in log.items()
                if first <= at < end
            ]
            if rows:
                yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA), np.array([row["offset"] for row in rows])


def settled(
    source: Log, target: Log, *, cleaned: tuple[bool, bool] = (True, True), shares: int = 1, limit: int = 100
) -> Settled:
    SidesReader.logs = {Side.SOURCE: source, Side.TARGET: target}

    def item(side: Side, first: int, end: int) -> CompareItem:
        extent = ComparedRange(topic="t", topic_id="id", partition=0, first=first, end=end)
        return CompareItem(pair=0, side=side, number=0, extent=extent, split=False, by_offset=True)

    whole = SuspectItem(
        source=item(Side.SOURCE, 0, END),
        target=item(Side.TARGET, 0, END),
        source_topic="t",
        target_topic="t",
        limit=limit,
    )
    mine, its = (
        Cleaner(horizon_ms=HORIZON_MS if may else None, elsewhere=((item(side, END, 100), LATER),))
        for side, may in zip(Side, cleaned, strict=True)
    )
    settings = CompareSettings(target=KafkaConfig(bootstrap="nowhere:1"), ignored=(Field.TIMESTAMP_TYPE,))
    with patch.object(compaction, "SideReader", SidesReader):
        found = [
            compaction.settle(
                settings, CompactedItem(pair=0, whole=whole, source=mine, target=its, share=share, shares=shares)
            )
            for share in range(shares)
        ]
    return Settled(
        pair=0,
        source_removed=sum(each.source_removed for each in found),
        target_removed=sum(each.target_removed for each in found),
        differences=tuple(difference for each in found for difference in each.differences),
        unexplained=sum(each.unexplained for each in found),
    )


def offsets_of(found: Settled) -> list[int]:
    return sorted(
        (each.target_offset or 0) if each.source_offset is None else each.source_offset for each in found.differences
    )


@given(log=LOGS, mine=SUBSETS, its=SUBSETS, shares=st.integers(1, 3))
def test_what_cleaners_removed_is_no_difference(log: Log, mine: set[int], its: set[int], shares: int) -> None:
    """Each side may have cleaned what it likes, also by records behind those that are compared."""
    gone = replaced(log)
    source = {at: each for at, each in log.items() if at not in mine & gone}
    target = {at: each for at, each in log.items() if at not in its & gone}
    found = settled(source, target, shares=shares)
    assert (found.unexplained, found.differences) == (0, ())
    compared = {at for at in log if at < END}
    assert found.source_removed == len((target.keys() - source.keys()) & compared)
    assert found.target_removed == len((source.keys() - target.keys()) & compared)


@given(log=LOGS, its=SUBSETS, lost=st.integers(0, END - 1), shares=st.integers(1, 3), value=st.booleans())
def test_a_last_record_that_is_lost_or_changed_is_named(
    log: Log, its: set[int], lost: int, shares: int, value: bool
) -> None:
    log = {**log, lost: (b"only", b"1")}
    target = {at: each for at, each in log.items() if at not in its & replaced(log)}
    if value:
        target[lost] = (b"only", b"other")
    else:
        del target[lost]
    found = settled(log, target, shares=shares)
    assert (found.unexplained, offsets_of(found)) == (1, [lost])
    assert offsets_of(settled(target, log, shares=shares)) == [lost], "on whichever side"


@given(log=LOGS, its=SUBSETS)
def test_a_side_that_is_not_compacted_lacks_nothing(log: Log, its: set[int]) -> None:
    target = {at: each for at, each in log.items() if at not in its & replaced(log)}
    found = settled(log, target, cleaned=(True, False))
    assert offsets_of(found) == sorted(at for at in log.keys() - target.keys() if at < END)


def test_a_deleted_key_that_comes_back_is_a_difference() -> None:
    log: Log = {3: (b"a", b"1"), 7: (b"a", None), 9: (b"b", b"1")}
    assert settled(log, {9: log[9]}).unexplained == 0, "its tombstone had expired, and nothing of the key is left"
    assert offsets_of(settled(log, {3: log[3], 9: log[9]})) == [7]
    with patch(f"{__name__}.HORIZON_MS", 5):
        assert offsets_of(settled(log, {9: log[9]})) == [7], "readers may rely on a tombstone until it expires"


@pytest.mark.parametrize("key", [None, b"a"])
def test_records_without_a_key_replace_nothing(key: bytes | None) -> None:
    log: Log = {1: (key, b"1"), 2: (key, b"2")}
    assert offsets_of(settled(log, {2: log[2]})) == ([1] if key is None else [])


def test_another_key_at_an_offset_is_a_difference_whatever_follows() -> None:
    source: Log = {1: (b"a", b"1"), 5: (b"a", b"2"), 6: (b"b", b"2")}
    found = settled(source, {**source, 1: (b"b", b"1")}, shares=3)
    assert [(each.source_offset, each.field) for each in found.differences] == [(1, "key")]


def test_a_changed_record_counts_also_if_no_difference_is_to_be_shown() -> None:
    source: Log = {1: (b"a", b"1"), 2: (b"b", b"1")}
    found = settled(source, {**source, 2: (b"b", b"2")}, limit=0)
    assert (found.unexplained, found.differences) == (1, ())


def test_keys_that_are_not_compared_are_not_held() -> None:
    """A range of a topic may be compared that has any number of keys elsewhere."""
    log: Log = {1: (b"a", b"1"), 2: (b"b", b"1"), **{END + at: (f"other {at}".encode(), b"1") for at in range(50)}}
    held = set[int]()

    class Watched(compaction._LastRecords):
        def unexplained(self) -> dict[Side, Any]:
            held.add(sum(each.num_rows for each in self._held))
            return super().unexplained()

    with patch.object(compaction, "_LastRecords", Watched):
        assert settled(log, {**log, END + 60: (b"a", b"2")}).unexplained == 0
    assert held == {5}, "two keys of both sides, and the one that has a later record"
