from __future__ import annotations

import itertools
import os

from hypothesis import given
from hypothesis import strategies as st

from maxbrod.storage import spans
from maxbrod.storage.interface import ByteRange

DATA = os.urandom(5 * spans.GAP_BYTES_MAX)
EDGES = st.sampled_from([0, 1, spans.GAP_BYTES_MAX - 1, spans.GAP_BYTES_MAX, spans.GAP_BYTES_MAX + 1])
RANGES = st.builds(
    lambda start, edge, size: ByteRange(start=start + edge, size=size),
    st.integers(0, 3 * spans.GAP_BYTES_MAX) | EDGES,
    EDGES,
    st.integers(0, 100) | EDGES.map(lambda edge: edge // 2),
)


@given(st.lists(RANGES, max_size=8))
def test_joined_and_cut_again_every_range_has_its_own_bytes(ranges: list[ByteRange]) -> None:
    joined = spans.join(ranges)
    answers = [memoryview(DATA)[span.start : span.start + span.size] for span in joined]

    assert spans.cut(ranges, joined, answers) == [DATA[each.start : each.start + each.size] for each in ranges]


@given(st.lists(RANGES, max_size=8))
def test_spans_are_so_far_apart_that_obstore_joins_none_of_them(ranges: list[ByteRange]) -> None:
    joined = spans.join(ranges)

    for before, after in itertools.pairwise(joined):
        assert after.start - (before.start + before.size) > spans.GAP_BYTES_MAX
