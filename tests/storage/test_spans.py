from __future__ import annotations

import itertools
import os

from hypothesis import given
from hypothesis import strategies as st

from maxbrod.storage.interface import ByteRange
from maxbrod.storage.remote import GAP_BYTES_MAX, cut_ranges, join_ranges

DATA = os.urandom(5 * GAP_BYTES_MAX)
EDGES = st.sampled_from([0, 1, GAP_BYTES_MAX - 1, GAP_BYTES_MAX, GAP_BYTES_MAX + 1])
RANGES = st.builds(
    lambda start, edge, size: ByteRange(start=start + edge, size=size),
    st.integers(0, 3 * GAP_BYTES_MAX) | EDGES,
    EDGES,
    st.integers(0, 100) | EDGES.map(lambda edge: edge // 2),
)


@given(st.lists(RANGES, max_size=8))
def test_joined_and_cut_again_every_range_has_its_own_bytes(ranges: list[ByteRange]) -> None:
    joined = join_ranges(ranges)
    answers = [memoryview(DATA)[span.start : span.start + span.size] for span in joined]

    assert cut_ranges(ranges, joined, answers) == [DATA[each.start : each.start + each.size] for each in ranges]


@given(st.lists(RANGES, max_size=8))
def test_spans_are_so_far_apart_that_obstore_joins_none_of_them(ranges: list[ByteRange]) -> None:
    joined = join_ranges(ranges)

    for before, after in itertools.pairwise(joined):
        assert after.start - (before.start + before.size) > GAP_BYTES_MAX
