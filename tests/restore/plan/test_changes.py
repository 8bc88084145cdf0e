"""A restore runs the plan that was agreed to: the archive may grow in the meantime, and nothing else may change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from maxbrod.errors import RefusedError
from maxbrod.restore.plan.plan import refuse_changes
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest
from maxbrod.restore.plan.sources import UnreadableRange
from support.catalog_rows import segment
from support.restore_plans import NOW, partition_id, plan, target, topic

if TYPE_CHECKING:
    from maxbrod.restore.plan.plan import RestorePlan

FRESH = {"min_timestamp": NOW - 1000, "max_timestamp": NOW}
ROWS = [segment(0, 10, **FRESH)]
THERE = target(topic(), ends={"orders": [(0, 0)]})


def test_an_archive_that_has_grown_changes_nothing() -> None:
    grown = plan([*ROWS, segment(10, 20, **FRESH)], now_ms=NOW + 60_000)
    refuse_changes(plan(ROWS), grown, begun=False)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (plan(ROWS, into=THERE), "orders was created or deleted"),
        (plan(ROWS, restore_id="restore-2"), "carried out elsewhere"),
        (plan([segment(0, 5, **FRESH)]), "no longer holds all of orders"),
        (plan(ROWS, RestoreRequest(configs={"retention.ms": "1"})), "orders was"),
        (
            plan(
                ROWS,
                RestoreRequest(accept_gaps=True),
                lost={
                    partition_id(): [UnreadableRange(first=5, end=10, object_name="gone.log", why="it is not there")]
                },
            ),
            "gone.log",
        ),
    ],
)
def test_a_target_that_has_changed_or_a_new_obstacle_is_refused(now: RestorePlan, words: str) -> None:
    with pytest.raises(RefusedError, match=words) as caught:
        refuse_changes(plan(ROWS), now, begun=False)
    assert "run the same command again" in str(caught.value.hint)


def test_a_log_that_has_grown_is_another_target() -> None:
    request = RestoreRequest(offsets=OffsetsMode.APPEND)
    agreed, now = (plan(ROWS, request, into=target(topic(), ends={"orders": [(0, end)]})) for end in (7, 8))
    with pytest.raises(RefusedError, match="orders was changed"):
        refuse_changes(agreed, now, begun=False)


def test_a_restore_that_was_begun_is_gone_on_with_only_as_it_was_shown() -> None:
    stored = plan(ROWS)
    refuse_changes(replace(stored, rate_bytes_per_s=5), stored, begun=True)
    with pytest.raises(RefusedError, match="begun elsewhere"):
        refuse_changes(plan(ROWS, now_ms=NOW + 1), stored, begun=True)
