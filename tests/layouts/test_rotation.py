from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.layouts.buffers import Rotation


def rotated(batches: list[list[int]], bytes_max: int, records_max: int | None, bytes_fresh: int) -> list[list[int]]:
    rotation = Rotation(bytes_max=bytes_max, records_max=records_max, bytes_fresh=bytes_fresh)
    segments: list[list[int]] = []
    for sizes in batches:
        for first, last, begins in rotation.pieces(np.array(sizes, np.int64)):
            if begins:
                segments.append([])
            segments[-1] += sizes[first:last]
    return segments


def plainly(sizes: list[int], bytes_max: int, records_max: int | None, bytes_fresh: int) -> list[list[int]]:
    """The rule, one record at a time: rotate before an append, when the file is already larger."""
    segments: list[list[int]] = []
    for size in sizes:
        full = not segments or bytes_fresh + sum(segments[-1]) > bytes_max
        if full or (records_max is not None and len(segments[-1]) >= records_max):
            segments.append([])
        segments[-1].append(size)
    return segments


def test_a_segment_that_is_exactly_full_takes_one_record_more() -> None:
    assert rotated([[10, 10, 10]], 21, None, 1) == [[10, 10, 10]]
    assert rotated([[10, 10, 10]], 20, None, 1) == [[10, 10], [10]]


@given(
    batches=st.lists(st.lists(st.integers(1, 12), max_size=8), max_size=4),
    bytes_max=st.integers(1, 40),
    records_max=st.one_of(st.none(), st.integers(1, 4)),
    bytes_fresh=st.integers(0, 1),
)
def test_segments_are_cut_as_one_record_at_a_time_would_cut_them(
    batches: list[list[int]], bytes_max: int, records_max: int | None, bytes_fresh: int
) -> None:
    sizes = [size for sizes in batches for size in sizes]
    expected = plainly(sizes, bytes_max, records_max, bytes_fresh)
    assert rotated(batches, bytes_max, records_max, bytes_fresh) == expected
