"""The last record of each key counts; records of transactions count only if they were committed."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from maxbrod.layouts import internal_topics as module
from maxbrod.layouts.internal_topics import last_records
from support.offsets_records import ABORT, COMMIT, Row, as_batch, marker

keys = st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c"]))
records = st.builds(
    Row, keys, st.one_of(st.none(), st.binary(max_size=3)), st.sampled_from([-1, -1, 5, 6]), st.just(False)
)
markers = st.builds(marker, st.sampled_from([5, 6]), st.sampled_from([COMMIT, ABORT]))
logs = st.lists(st.one_of(records, records, markers), max_size=30)


def plainly(rows: list[Row]) -> list[tuple[int, bytes, bytes | None]]:
    """The same record by record, as a coordinator loads the topic."""
    last: dict[bytes, tuple[int, bytes | None]] = {}
    pending: dict[int, list[tuple[int, Row]]] = {}
    for offset, row in enumerate(rows):
        if row.control:
            assert row.key is not None
            ended = pending.pop(row.producer, [])
            for place, each in ended if row.key[3] == COMMIT else []:
                if each.key is not None and place >= last.get(each.key, (-1, None))[0]:
                    last[each.key] = (place, each.value)
        elif row.producer != -1:
            pending.setdefault(row.producer, []).append((offset, row))
        elif row.key is not None:
            last[row.key] = (offset, row.value)
    return sorted((offset, key, value) for key, (offset, value) in last.items())


def found(rows: list[Row], cuts: list[int], **options: bool) -> list[tuple[int, bytes, bytes | None]]:
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    batches = [as_batch(rows[low:high], first=low) for low, high in pairwise(edges)]
    table = last_records(batches, **options)
    return list(zip(*(table.column(name).to_pylist() for name in ("offset", "key", "value")), strict=True))


@given(rows=logs, cuts=st.lists(st.integers(0, 30), max_size=4), enough=st.sampled_from([1, 3, 1 << 18]))
def test_the_last_committed_record_of_each_key_is_kept(rows: list[Row], cuts: list[int], enough: int) -> None:
    with patch.object(module, "_ENOUGH_ROWS", enough):
        assert found(rows, cuts) == plainly(rows)


@given(rows=logs, cuts=st.lists(st.integers(0, 30), max_size=4))
def test_what_was_left_out_before_is_not_asked_for_again(rows: list[Row], cuts: list[int]) -> None:
    """Without markers the outcome of a transaction is unknown: the caller says that all of them were committed."""
    data = [row for row in rows if not row.control]
    assert found(data, cuts, committed=True) == plainly([row._replace(producer=-1) for row in data])


def test_markers_of_other_kinds_end_no_transaction() -> None:
    rows = [Row(b"a", b"1", 5), marker(5, 2), Row(b"b", b"2", 5), marker(5, COMMIT)]
    assert found(rows, [1, 2]) == [(0, b"a", b"1"), (2, b"b", b"2")]
    assert found([Row(b"a", b"1", 5), Row(b"", b"", 5, control=True)], []) == []


def test_a_commit_that_ends_late_never_covers_what_was_written_after_it() -> None:
    rows = [Row(b"a", b"in a transaction", 5), Row(b"a", b"later, plainly"), marker(5, COMMIT)]
    for cuts in ([], [1], [2], [1, 2]):
        with patch.object(module, "_ENOUGH_ROWS", 0):
            assert found(rows, cuts) == [(1, b"a", b"later, plainly")]
