"""A gap that wants looking at is read again while it can be, and replaced only by something better."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from maxbrod.backup.plan.assembly import Assembly, assemble, check_tiling
from maxbrod.backup.plan.ranges import Damage, FailureKind, Outcome, PartitionState, plan_partition
from maxbrod.backup.plan.starts import Earliest
from maxbrod.backup.proof import Retry, outcomes_by_retry, plan_mending, settle
from maxbrod.catalog.queries import ArchivedRange
from maxbrod.catalog.rows import Gap
from maxbrod.model import GapReason
from support.backup_plans import PARTITION, TOPIC, TOPIC_ID, Batch, item, outcome, part, read_until


def gap(base: int, end: int, reason: GapReason = GapReason.CORRUPT, **changes: Any) -> Gap:
    values: dict[str, Any] = {"topic": TOPIC, "topic_id": TOPIC_ID, "partition": PARTITION.partition, **changes}
    return Gap(**values, base_offset=base, end_offset=end, reason=reason, run_id="run-0", written_at=1)


def retries(*rows: Gap, log_start: int = 0, end: int = 100, cut: int | None = None) -> tuple[Retry, ...]:
    held = ArchivedRange(topic=TOPIC, first_offset=0, end_offset=90, last_leader_epoch=1)
    state = PartitionState(
        topic=TOPIC,
        topic_id=TOPIC_ID,
        partition=PARTITION.partition,
        log_start=log_start,
        end=end,
        high_watermark=end,
        held=held,
        truncated_at=cut,
        bytes_per_offset=2.0,
        compacted=False,
    )
    return plan_mending(rows, {PARTITION: plan_partition(state, Earliest())})


def assembled(retry: Retry, *outcomes: Outcome) -> Assembly:
    return assemble(PARTITION, retry.planned, outcomes, topic=TOPIC, compacted=False, run_id="run-1", written_at=2)


@pytest.mark.parametrize("reason", GapReason)
def test_only_what_wants_looking_at_is_read_again(reason: GapReason) -> None:
    mendable = reason in {GapReason.CORRUPT, GapReason.UNEXPLAINED}
    assert bool(retries(gap(10, 20, reason))) == mendable


def test_what_has_left_the_log_is_final() -> None:
    gone, stranger, half = gap(10, 20), gap(10, 20, topic_id="gone"), gap(25, 40)
    found = retries(gone, stranger, half, log_start=30)
    assert [each.row for each in found] == [half]
    assert found[0].planned == (30, 40)
    assert found[0].range.bytes_estimate == 20


def test_rows_that_the_run_replaces_anyway_are_left_to_it() -> None:
    assert not retries(gap(10, 20), cut=15)
    assert not retries(gap(10, 20), end=15)


def test_a_gap_that_can_be_read_now_is_replaced_by_its_data() -> None:
    (retry,) = retries(gap(10, 20))
    rows = settle(retry, assembled(retry, outcome(10, 20, part(10, 20))))
    assert rows is not None
    assert [(row.base_offset, row.end_offset, row.reason) for row in rows] == [(10, 20, None)]


def test_a_gap_that_is_partly_gone_keeps_its_reason_for_that_part() -> None:
    (retry,) = retries(gap(10, 20), log_start=14)
    rows = settle(retry, assembled(retry, outcome(14, 20, part(14, 20), log_start=14)))
    assert rows is not None
    check_tiling(rows, {PARTITION: (10, 20)})
    assert rows[0] == replace(retry.row, end_offset=14)


def test_a_second_look_that_finds_nothing_new_never_replaces_a_row() -> None:
    (retry,) = retries(gap(10, 20))
    still = replace(outcome(10, 20), damages=(Damage(offset=10, message="CRC"),))
    assert settle(retry, assembled(retry, still)) is None
    log = [Batch(base=10, end=15, records=5), Batch(base=15, end=20, records=5)]
    for reached in (10, 15):
        short = read_until(log, outcome(10, 20), reached, FailureKind.UNAVAILABLE)
        assert settle(retry, assembled(retry, short)) is None


def test_outcomes_find_their_retry() -> None:
    one, other = retries(gap(10, 20), gap(40, 50))
    fresh, again, elsewhere = outcome(90, 95), outcome(44, 50), outcome(10, 20)
    elsewhere = replace(elsewhere, item=replace(item(10, 20), partition=0))
    assert outcomes_by_retry([fresh, again, elsewhere], [one, other]) == [(one, []), (other, [again])]
