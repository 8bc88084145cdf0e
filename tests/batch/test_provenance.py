"""Every restored record says where it came from, in headers behind its own; nothing else of it changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.batch.cuts import Cut
from maxbrod.batch.decode import decode
from maxbrod.batch.headers import walk
from maxbrod.batch.provenance import (
    PROVENANCE_BYTES_MAX,
    Provenance,
    passed,
    source_offsets,
    with_provenance,
    without_provenance,
)
from maxbrod.batch.replay import replay
from maxbrod.batch.rewrite import _jobs
from maxbrod.model import Codec, TimestampType
from support.plain_batches import Record
from support.replay_cases import Log, appended, cuts, logs, packed, replay_all, wanted

PROVENANCE = Provenance(topic="orders", partition=3, cluster_id="Aq-z", restore_id="r-1")


def told(record: Record, provenance: Provenance = PROVENANCE) -> list[tuple[bytes, bytes]]:
    cluster = [] if provenance.cluster_id is None else [(b"maxbrod.source.cluster_id", b"Aq-z")]
    return [
        (b"maxbrod.source.topic", provenance.topic.encode()),
        (b"maxbrod.source.partition", b"%d" % provenance.partition),
        *cluster,
        (b"maxbrod.restore_id", b"r-1"),
        (b"maxbrod.source.offset", b"%d" % record.offset),
        (b"maxbrod.source.timestamp_ms", b"%d" % record.timestamp),
    ]


@settings(max_examples=60)
@given(data=st.data(), log=logs(), exact=st.booleans(), room=st.sampled_from([120, 600, 1 << 20]))
def test_every_record_says_where_it_came_from_and_is_else_what_it_was(
    data: st.DataObject, log: Log, exact: bool, room: int
) -> None:
    cut = data.draw(cuts(log))
    pieces = sorted(data.draw(st.sets(st.integers(1, len(log.entries)), max_size=2)))
    results = replay_all(log, pieces, cut=cut, exact=exact, codec=None, batch_bytes_max=room, provenance=PROVENANCE)
    expected = [replace(each, headers=[*each.headers, *told(each)]) for each in wanted(log, cut)]
    if not exact:
        expected = [replace(each, offset=row) for row, each in enumerate(expected)]
    assert appended(results) == expected


@given(
    st.lists(
        st.lists(st.tuples(st.binary(max_size=3), st.none() | st.binary(max_size=3)), max_size=3),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 4),
)
def test_headers_of_a_slice_of_columns_are_those_of_its_rows(
    headers: list[list[tuple[bytes, bytes | None]]], first: int
) -> None:
    records = [
        Record(offset=row, timestamp=-row, key=None, value=b"", headers=each) for row, each in enumerate(headers)
    ]
    columns = decode(packed(records), columns=["offset", "timestamp_ms", "headers"]).slice(min(first, len(records) - 1))
    found = with_provenance(columns, replace(PROVENANCE, cluster_id=None))
    assert found.schema == columns.schema
    expected = [[*each.headers, *told(each, replace(PROVENANCE, cluster_id=None))] for each in records]
    assert [[(one["key"], one["value"]) for one in each] for each in found["headers"].to_pylist()] == expected[
        min(first, len(records) - 1) :
    ]


@given(
    st.lists(
        st.lists(st.tuples(st.binary(max_size=3) | st.just(b"maxbrod.origin"), st.none() | st.binary()), max_size=3),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 3),
)
def test_a_record_is_what_it_was_without_what_tells_where_it_came_from(
    headers: list[list[tuple[bytes, bytes | None]]], links: int
) -> None:
    """Also if several links have brought it, and if the topic gave it another time."""
    records = [
        Record(offset=row, timestamp=-row, key=None, value=b"", headers=each) for row, each in enumerate(headers)
    ]
    there = decode(packed(records), columns=["offset", "timestamp_ms", "timestamp_type", "headers"])
    brought = [there]
    for number in range(links):
        brought.append(with_provenance(brought[-1], replace(PROVENANCE, origins=("A/t",) * number)))
    for before, after in pairwise(brought):
        assert without_provenance(after).to_pylist() == before.to_pylist()
    place = there.schema.get_field_index("timestamp_type")
    types = pa.array([TimestampType.LOG_APPEND] * len(headers), pa.int8())
    late = brought[-1].set_column(place, there.schema.field(place), types)
    place = there.schema.get_field_index("timestamp_ms")
    late = late.set_column(place, there.schema.field(place), pa.array([99] * len(headers), pa.int64()))
    assert without_provenance(late).to_pylist() == brought[-2].to_pylist()


@pytest.mark.parametrize("codec", list(Codec))
def test_the_same_archive_gives_the_same_bytes_so_that_a_tail_is_recognised(codec: Codec) -> None:
    records = [Record(offset=row, timestamp=row, key=b"k", value=b"v" * 50) for row in range(40)]
    data = packed(records[:20], codec) + packed(records[20:], codec)
    once, again = (
        replay(
            data, walk(data), [], cut=Cut(first_offset=first), exact=True, batch_bytes_max=1000, provenance=PROVENANCE
        )
        for first in (0, 20)
    )
    last = walk(again.data)
    assert bytes(once.data[-int(last.size.sum()) :]) == bytes(again.data)


def test_what_is_added_to_a_record_is_bounded() -> None:
    longest = Provenance(topic="t" * 249, partition=99_999, cluster_id="c" * 22, restore_id="d" * 16 + "-999999")
    record = Record(offset=(1 << 63) - 1, timestamp=-(1 << 63), key=None, value=None)
    columns = decode(packed([record], base_offset=record.offset), columns=["offset", "timestamp_ms", "headers"])
    (headers,) = with_provenance(columns, longest)["headers"].to_pylist()
    assert sum(len(each["key"]) + len(each["value"]) + 8 for each in headers) < PROVENANCE_BYTES_MAX


def test_old_messages_on_both_sides_of_a_batch_are_never_rewritten_together() -> None:
    class Headers(dict[str, Any]):
        size = np.full(4, 50)
        position = np.arange(4) * 50

    headers: Any = Headers(magic=np.array([2, 1, 2, 1]))
    jobs = [rows.tolist() for rows in _jobs(headers, np.ones(4, np.int16))]
    assert sorted(jobs) == [[0, 2], [1], [3]]


def test_a_record_tells_where_it_has_been_and_who_brought_it_last() -> None:
    there: list[list[tuple[bytes, bytes | None]]] = [[(b"x", None)], [], [(b"maxbrod.origin", b"C/t")]]
    records = [Record(offset=row, timestamp=0, key=None, value=b"", headers=each) for row, each in enumerate(there)]
    columns = decode(packed(records), columns=["offset", "timestamp_ms", "headers"])
    first = replace(PROVENANCE, origins=("B/t", "A/*"), restore_id="a link")
    brought = with_provenance(columns, first)
    headers = brought.column("headers")
    for place, expected in (
        ("A/*", [True] * 3),
        ("B/t", [True] * 3),
        ("C/t", [False, False, True]),
        ("B/x", [False] * 3),
    ):
        assert passed(headers, ["X/t", place]).tolist() == expected
    assert source_offsets(headers, "a link").tolist() == [0, 1, 2]
    assert source_offsets(headers.slice(1), "a link").tolist() == [1, 2]
    later = with_provenance(brought, replace(PROVENANCE, restore_id="another link")).column("headers")
    assert source_offsets(later, "a link").tolist() == [-1, -1, -1], "another one was the last to bring it"
    assert source_offsets(columns.column("headers"), "a link").tolist() == [-1, -1, -1]


def test_a_record_that_comes_back_is_left_out() -> None:
    there: list[list[tuple[bytes, bytes | None]]] = [
        [],
        [(b"maxbrod.origin", b"here/t")],
        [(b"maxbrod.origin", b"here/x")],
    ]
    records = [Record(offset=row, timestamp=0, key=None, value=b"", headers=each) for row, each in enumerate(there)]
    data = packed(records)
    made = replay(
        data,
        walk(data),
        [],
        cut=Cut(),
        exact=False,
        batch_bytes_max=1000,
        provenance=replace(PROVENANCE, left_out=("here/t", "here/*")),
    )
    assert made.ranges.first_offset.tolist() == [0, 2]
