from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.errors import UsageError
from maxbrod.inspect.topic import DATA, EVERY, HOLE, Span, measure_partition, show_topic
from maxbrod.model import AbortedTransaction, GapReason
from support.catalog_rows import TOPIC_ID, gap, segment
from support.full_archive import OLD_ID, fill

if TYPE_CHECKING:
    from maxbrod.catalog.rows import Gap, Segment
    from support.archives import Place


def test_a_topic_is_shown_with_its_gaps_epochs_aborted_transactions_and_groups(place: Place) -> None:
    fill(place)
    (orders,) = show_topic(place.open(), "orders").topics
    first, second = orders.partitions
    assert (orders.topic_id, orders.newest, orders.configs) == (TOPIC_ID, True, {"retention.ms": "1000"})
    assert (first.first_offset, first.end_offset, first.records, first.segments) == (0, 30, 25, 3)
    assert (first.first_leader_epoch, first.last_leader_epoch) == (3, 4)
    assert first.spans == (
        Span(first_offset=0, end_offset=20, cover=DATA),
        Span(first_offset=20, end_offset=25, cover="compacted"),
        Span(first_offset=25, end_offset=30, cover=DATA),
    )
    # One transaction, though two slices name it.
    assert first.aborted == (AbortedTransaction(producer_id=9, first_offset=3, last_offset=12),)
    assert (second.first_offset, second.end_offset, second.raw_bytes) == (5, 10, 5000)
    # Lag counts from the archive's end; whoever is ahead of it has a negative one.
    assert [(each.group_id, each.partition, each.lag) for each in orders.groups] == [
        ("billing", 0, 12),
        ("billing", 1, -2),
    ]


def test_as_of_a_run_the_topic_ends_where_it_ended_then(local_place: Place) -> None:
    report = show_topic(fill(local_place), "orders", as_of="run-1")
    (orders,) = report.topics
    assert (report.as_of, report.snapshot) == ("run-1", "run-1")
    assert [(each.end_offset, each.records, each.exact) for each in orders.partitions] == [
        (20, 20, True),
        (10, 5, True),
    ]
    assert orders.groups[0].lag == 2


def test_old_incarnations_are_shown_on_request_only(local_place: Place) -> None:
    archive = fill(local_place)
    assert [each.topic_id for each in show_topic(archive, "orders", topic_id=EVERY).topics] == [TOPIC_ID, OLD_ID]
    (past,) = show_topic(archive, "orders", topic_id=OLD_ID).topics
    assert (past.newest, past.partitions[0].end_offset, past.configs) == (False, 7, None)
    assert [each.group_id for each in past.groups] == ["of the past"]
    with pytest.raises(UsageError, match="has the id"):
        show_topic(archive, "orders", topic_id="nobody")


def test_an_empty_topic_is_shown_empty(local_place: Place) -> None:
    (empty,) = show_topic(fill(local_place), "empty").topics
    assert [(each.end_offset, each.records, each.spans) for each in empty.partitions] == [(0, 0, ()), (0, 0, ())]


def test_one_partition_can_be_shown_alone_and_must_be_there(local_place: Place) -> None:
    archive = fill(local_place)
    (orders,) = show_topic(archive, "orders", partition=1).topics
    assert [each.partition for each in orders.partitions] == [1]
    assert {each.partition for each in orders.groups} == {1}
    with pytest.raises(UsageError, match="no partition 2") as caught:
        show_topic(archive, "orders", partition=2)
    assert caught.value.hint == "it has 0, 1"


def test_an_unknown_topic_is_refused_with_close_names(local_place: Place) -> None:
    archive = fill(local_place)
    with pytest.raises(UsageError, match="no topic 'emtpy'") as caught:
        show_topic(archive, "emtpy")
    assert caught.value.hint == "did you mean empty?"
    with pytest.raises(UsageError, match="no topic"):
        show_topic(archive, "empty", as_of="run-0")


def test_a_slice_that_reaches_beyond_the_end_asked_for_is_said_to(local_place: Place) -> None:
    extent = measure_partition(0, [segment(0, 10), segment(10, 20)], 15)
    assert (extent.end_offset, extent.exact, extent.records) == (15, False, 20)
    assert extent.spans == (Span(first_offset=0, end_offset=15, cover=DATA),)


@given(
    pieces=st.lists(st.tuples(st.integers(1, 5), st.sampled_from([DATA, HOLE, *GapReason])), max_size=12),
    end=st.integers(0, 60),
)
def test_spans_cover_each_offset_as_its_row_does(pieces: list[tuple[int, str]], end: int) -> None:
    rows: list[Segment | Gap] = []
    covers: list[str] = []
    for length, cover in pieces:
        base, last = len(covers), len(covers) + length
        covers += [cover] * length
        if cover == DATA:
            rows.append(segment(base, last))
        elif cover != HOLE:
            rows.append(gap(base, last, reason=GapReason(cover)))
    first = rows[0].base_offset if rows else 0
    extent = measure_partition(0, [row for row in rows if row.base_offset < end], end)
    spread = [span.cover for span in extent.spans for _ in range(span.first_offset, span.end_offset)]
    if rows and first < end:
        # A hole shows between rows; after the last one there is nothing to tell it from the end.
        reached = max(min(row.end_offset, end) for row in rows if row.base_offset < end)
        assert spread == covers[first:reached]
        assert (extent.first_offset, extent.end_offset) == (first, reached)
    else:
        assert spread == []
