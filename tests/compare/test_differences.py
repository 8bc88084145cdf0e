"""The first differences between two sides are found, however their records are cut into chunks."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.batch.digest import Field
from maxbrod.compare import task as compare_task
from maxbrod.compare.items import CompareItem, CompareSettings, SuspectItem
from maxbrod.compare.plan import UNMAPPED, ComparedRange, Side
from maxbrod.config import KafkaConfig
from support.given_sides import SCHEMA, FakeReader

if TYPE_CHECKING:
    from maxbrod.compare.report import Difference

# Offset, place and value of each record: few values, so that many are equal.
SIDES = st.dictionaries(st.integers(0, 30), st.sampled_from([None, b"", b"a", b"b"]), max_size=20)
CUTS = st.lists(st.integers(0, 30), max_size=5)


def chunked(records: dict[int, bytes | None], cuts: list[int], *, unmapped: int | None = None) -> list[Any]:
    bounds = [0, *sorted(cuts), 31]
    found = []
    for start, end in pairwise(bounds):
        rows: list[dict[str, Any]] = [
            {"offset": at, "timestamp_ms": 0, "timestamp_type": 0, "key": None, "value": value, "headers": []}
            for at, value in sorted(records.items())
            if start <= at < end
        ]
        if rows:
            places = [UNMAPPED if row["offset"] == unmapped else row["offset"] for row in rows]
            found.append((pa.RecordBatch.from_pylist(rows, schema=SCHEMA), np.array(places, np.int64)))
    return found


def search(source: list[Any], target: list[Any], *, limit: int = 1000, by_offset: bool = True) -> list[Difference]:
    FakeReader.chunks = {Side.SOURCE: source, Side.TARGET: target}
    items = [
        CompareItem(
            pair=0,
            side=side,
            number=0,
            extent=ComparedRange(topic="t", topic_id="id", partition=0, first=0, end=31),
            split=False,
            by_offset=by_offset,
        )
        for side in Side
    ]
    suspect = SuspectItem(source=items[0], target=items[1], source_topic="t", target_topic="t", limit=limit)
    settings = CompareSettings(target=KafkaConfig(bootstrap="nowhere:1"), ignored=(Field.TIMESTAMP,))
    with patch.object(compare_task, "SideReader", FakeReader):
        return compare_task.find_differences(settings, suspect)


@given(source=SIDES, target=SIDES, source_cuts=CUTS, target_cuts=CUTS, limit=st.integers(1, 40))
def test_every_difference_is_found_once_and_in_order(
    source: dict[int, bytes | None],
    target: dict[int, bytes | None],
    source_cuts: list[int],
    target_cuts: list[int],
    limit: int,
) -> None:
    expected: list[tuple[int | None, int | None, str]] = []
    for at in sorted(source.keys() | target.keys()):
        if at not in target:
            expected.append((at, None, "record"))
        elif at not in source:
            expected.append((None, at, "record"))
        elif source[at] != target[at]:
            expected.append((at, at, "value"))
    found = search(chunked(source, source_cuts), chunked(target, target_cuts))
    assert [(each.source_offset, each.target_offset, each.field) for each in found] == expected
    first = search(chunked(source, source_cuts), chunked(target, target_cuts), limit=limit)
    assert first == found[:limit]


@given(source=SIDES, target=SIDES, cuts=CUTS)
def test_in_order_records_are_compared_by_their_place_in_the_row(
    source: dict[int, bytes | None], target: dict[int, bytes | None], cuts: list[int]
) -> None:
    mine, its = sorted(source), sorted(target)
    expected = [
        (mine[row] if row < len(mine) else None, its[row] if row < len(its) else None)
        for row in range(max(len(mine), len(its)))
        if row >= min(len(mine), len(its)) or source[mine[row]] != target[its[row]]
    ]
    found = search(chunked(source, cuts), chunked(target, []), by_offset=False)
    assert [(each.source_offset, each.target_offset) for each in found] == expected


@given(records=SIDES.filter(bool), cuts=CUTS, data=st.data())
def test_a_record_that_the_map_does_not_know_is_missing_at_the_target(
    records: dict[int, bytes | None], cuts: list[int], data: st.DataObject
) -> None:
    lost = data.draw(st.sampled_from(sorted(records)))
    rest = {at: value for at, value in records.items() if at != lost}
    (found,) = search(chunked(records, cuts, unmapped=lost), chunked(rest, []))
    assert (found.source_offset, found.target, found.field) == (lost, "no record", "record")


def test_a_side_that_can_no_longer_be_read_takes_nothing_back() -> None:
    with patch.object(FakeReader, "fails", True):
        found = search(chunked({1: b"a", 9: b"a"}, [5]), chunked({1: b"b"}, []))
    assert [each.source_offset for each in found] == [1]
