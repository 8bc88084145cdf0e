"""What a backup has to tell a person besides its figures, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.errors import EXIT_FAILED, EXIT_INCOMPLETE
from maxbrod.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maxbrod.backup.plan.items import Failure
    from maxbrod.backup.plan.states import PartitionState
    from maxbrod.catalog.rows import Run, Segment
    from maxbrod.kafka.state.cluster_state import ClusterState
    from maxbrod.kafka.state.open_transactions import OpenTransaction

STOPPED: Final = "stopped"
_OBJECTS_NAMED: Final = 5
_CLOCKS_APART_MS: Final = 1000
"""Clocks of two machines, or one that is being set right, may differ by so much."""


def stopped() -> Notice:
    message = "stopped on request: everything up to the last commit is archived"
    return Notice(kind=STOPPED, message=message, hint="run it again to go on", exit_code=EXIT_INCOMPLETE)


def clock_behind(newest: Run | None, now_ms: int) -> Iterator[Notice]:
    """Runs are in the order of commits whatever the clock says; times that people read are not."""
    if newest is None or now_ms > newest.finished_at - _CLOCKS_APART_MS:
        return
    behind_s = (newest.finished_at - now_ms) // 1000
    yield Notice(
        kind="clock",
        message=f"this machine's clock is {behind_s} s behind the end of the newest run, {newest.run_id}; runs stay in "
        "the order of their commits, but the times of this one, its name and the recovery point are wrong, or those "
        "of that run are",
        hint="set the clock right, on this machine or on the one that made the newest run",
    )


def truncated(state: PartitionState, offset: int, end_offset: int, lost: Sequence[Segment]) -> Notice:
    """`lost` is what the archive held beyond the cut."""
    objects = ", ".join(sorted({row.path for row in lost})[:_OBJECTS_NAMED])
    hint = f"what the cluster lost is still in {objects}, and is restored as of an earlier run (--as-of)"
    return Notice(
        kind="truncated",
        message=f"the log was truncated to offset {offset} since it was archived, and is archived again from there",
        topic=state.topic,
        partition=state.partition,
        first_offset=offset,
        end_offset=end_offset,
        hint=hint if lost else None,
    )


def held_back(state: PartitionState, found: OpenTransaction, *, now_ms: int) -> Notice:
    """By a transaction that is open: it delays its own partition and no other."""
    name = "" if found.transactional_id is None else f" ({found.transactional_id})"
    started_ms = found.last_timestamp_ms if found.started_at_ms is None else found.started_at_ms
    age = "" if started_ms < 0 else f", open for {max(0, now_ms - started_ms) // 1000} s"
    return Notice(
        kind="open transaction",
        message=f"a transaction of producer {found.producer_id}{name} holds the rest back{age}",
        topic=state.topic,
        partition=state.partition,
        first_offset=state.end,
        end_offset=state.high_watermark,
        hint="it is archived as soon as it ends; one that hangs is ended by kafka-transactions.sh abort",
    )


def never_still(topic: str) -> Notice:
    """Its log was cut, or it was deleted, each time that the run had planned it afresh."""
    message = "it changed under the run again and again, and was not read to its end"
    return Notice(kind="failed", message=message, topic=topic, hint="run it again", exit_code=EXIT_INCOMPLETE)


def storage_failed(topic: str, failure: Failure) -> Notice:
    return Notice(kind="storage", message=failure.message, topic=topic, hint=failure.hint, exit_code=EXIT_FAILED)


def not_captured(cluster: ClusterState) -> Iterator[Notice]:
    for gap in cluster.gaps:
        # A cluster without an authorizer has no ACLs: nothing is missing.
        if gap.what != "ACLs" or cluster.acls is None:
            yield Notice(kind="not captured", message=f"{gap.what}: {gap.why}", hint=gap.hint)
