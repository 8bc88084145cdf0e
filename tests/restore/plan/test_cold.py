"""A log begins where it began at its cluster, and all of its batches are written, those without records as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.catalog.rows import Row, decode_rows, encode_rows
from maxbrod.model import GapReason, PartitionId
from maxbrod.restore.cold.plan import SourceLog, measure_extents, rows_to_write
from maxbrod.restore.plan.request import Chosen, RestoreRequest
from maxbrod.restore.plan.sources import Source, measure_sources
from support.catalog_rows import TOPIC_ID, gap, segment

if TYPE_CHECKING:
    from collections.abc import Sequence


HERE = PartitionId(topic_id=TOPIC_ID, partition=0)


def sources(rows: Sequence[Row], end: int | None = None) -> tuple[Source, ...]:
    """As of a run that ended there, or now."""
    chosen = Chosen(topics={TOPIC_ID: "orders"}, missing=())
    ends = {} if end is None else {HERE: end}
    return measure_sources(encode_rows(rows), RestoreRequest(), chosen, ends, as_of=end is not None)


def extent(rows: Sequence[Row], end: int | None = None) -> SourceLog:
    return measure_extents([encode_rows(rows)], sources(rows, end))[HERE]


@pytest.mark.parametrize(
    ("rows", "start"),
    [
        ([segment(0, 10)], 0),
        ([segment(7, 10)], 7),
        ([gap(0, 5), segment(5, 10)], 5),
        ([gap(0, 5), gap(5, 6, reason=GapReason.DELETED), segment(6, 10)], 6),
        # What compaction has taken lies within the log.
        ([gap(0, 5, reason=GapReason.COMPACTED), segment(5, 10)], 0),
        ([gap(0, 3), gap(3, 5, reason=GapReason.COMPACTED), segment(5, 10)], 3),
        ([segment(0, 5), gap(5, 10), segment(10, 12)], 0),
        ([gap(0, 10)], 10),
    ],
)
def test_a_log_begins_where_it_began_at_its_cluster(rows: Sequence[Row], start: int) -> None:
    assert extent(rows).start == start


def test_epochs_after_the_run_that_is_asked_for_do_not_count() -> None:
    rows = [segment(0, 10, last_leader_epoch=2), segment(10, 20, last_leader_epoch=8)]
    assert (extent(rows).last_epoch, extent(rows, end=10).last_epoch) == (8, 2)
    assert extent([gap(0, 5)]).last_epoch == -1


def test_batches_that_compaction_has_emptied_are_written_too() -> None:
    rows: list[Row] = [
        *(segment(0, 10), segment(10, 20, records=0, reason=GapReason.COMPACTED)),
        *(gap(20, 30, reason=GapReason.COMPACTED), segment(30, 40)),
    ]
    written = decode_rows(rows_to_write(encode_rows(rows), sources(rows)))
    assert written == [rows[0], rows[1], rows[3]]
    assert decode_rows(rows_to_write(encode_rows(rows), sources(rows, end=20))) == rows[:2]
