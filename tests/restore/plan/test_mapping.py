"""Offsets that change are translated exactly, through holes and at either end; and the map stays small."""

from __future__ import annotations

import json

import cramjam
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.errors import CorruptDataError
from maxbrod.restore.plan.mapping import OffsetMap, build_map, decode_map, encode_map

INT64_MAX = 2**63 - 1

sources = st.lists(st.integers(0, 40), unique=True, max_size=20).map(sorted)
bases = st.sampled_from([0, 7, 10**12])


def map_of(offsets: list[int], base: int) -> OffsetMap:
    """The map of single records, as if each were a batch."""
    return build_map(offsets, [1] * len(offsets), range(base, base + len(offsets)), base=base)


@settings(max_examples=200)
@given(sources, bases)
def test_a_group_never_skips_a_record_and_never_sees_one_twice(offsets: list[int], base: int) -> None:
    found = map_of(offsets, base)
    for committed in range(45):
        translated = found.translate(committed)
        rest = offsets[translated.offset - base :]
        assert rest == [offset for offset in offsets if offset >= committed]
        assert translated.exact == (committed in offsets or (bool(offsets) and committed == offsets[-1] + 1))


@given(sources, bases)
def test_every_record_stands_at_one_target_offset_in_order(offsets: list[int], base: int) -> None:
    found = map_of(offsets, base)
    assert [found.translate(offset).offset for offset in offsets] == list(range(base, base + len(offsets)))
    assert found.records == len(offsets)
    assert found.target_end == base + len(offsets)


@given(sources, bases)
def test_a_map_comes_back_as_it_was(offsets: list[int], base: int) -> None:
    found = map_of(offsets, base)
    assert decode_map(json.loads(json.dumps(encode_map(found)))) == found


def test_a_hundred_million_contiguous_records_are_one_range() -> None:
    count = 500
    batches = np.arange(0, 100_000_000, count)
    found = build_map(batches + 10**13, np.full(len(batches), count), batches + 3, base=3)
    assert list(found) == [(10**13, 100_000_000, 3)]
    assert len(json.dumps(encode_map(found))) < 100


def test_a_hole_after_every_transaction_stays_small() -> None:
    """100 M records in transactions of 1,000, each with its marker."""
    transactions = np.arange(100_000)
    found = build_map(transactions * 1001, np.full(100_000, 1000), transactions * 1000, base=0)
    assert len(found) == 100_000
    assert len(bytes(cramjam.zstd.compress(json.dumps(encode_map(found)).encode()))) < 1 << 20


def test_records_that_stand_apart_at_the_target_are_two_ranges() -> None:
    found = build_map([0, 5], [5, 5], [10, 17], base=10)
    assert list(found) == [(0, 5, 10), (5, 5, 17)]
    assert found.translate(5).offset == 17
    assert decode_map(encode_map(found)) == found


def test_the_largest_offsets_are_kept() -> None:
    found = build_map([INT64_MAX - 5], [5], [INT64_MAX - 5], base=0)
    assert found.translate(INT64_MAX - 1).offset == INT64_MAX - 1
    assert found.translate(INT64_MAX).offset == INT64_MAX
    assert decode_map(encode_map(found)) == found


@pytest.mark.parametrize(
    ("source", "count", "target"),
    [
        ([5, 5], [1, 1], [0, 1]),
        ([5, 6], [2, 1], [0, 2]),
        ([5, 8], [2, 1], [0, 1]),
        ([5], [-1], [0]),
        ([-1], [1], [0]),
        ([INT64_MAX], [1], [0]),
    ],
)
def test_ranges_that_overlap_or_go_backwards_are_refused(
    source: list[int], count: list[int], target: list[int]
) -> None:
    with pytest.raises(CorruptDataError):
        build_map(source, count, target, base=0)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"base": 0},
        {"base": 0, "ranges": [1, 2]},
        {"base": 0, "ranges": ["1", 2, 3]},
        {"base": 0, "ranges": [2**70, 1, 0]},
        {"base": None, "ranges": []},
        {"base": 0, "ranges": [0, -4, 0]},
        {"base": 0, "ranges": None},
    ],
)
def test_what_is_no_map_is_corrupt(document: dict[str, object]) -> None:
    with pytest.raises(CorruptDataError):
        decode_map(document)
