"""The notices of a backup's report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.errors import EXIT_DONE, EXIT_FAILED, EXIT_INCOMPLETE
from maxbrod.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.backup.plan.items import Failure
    from maxbrod.backup.plan.states import PartitionState
    from maxbrod.catalog.rows import Run
    from maxbrod.kafka.state.cluster_state import ClusterState
    from maxbrod.kafka.state.open_transactions import OpenTransaction
    from maxbrod.model import TopicPartition

STOPPED: Final = "stopped"
STORAGE: Final = "storage"
_CLOCKS_APART_MS: Final = 1000
"""The clocks of two machines, or one clock that is being adjusted, may differ by this much."""


def about(
    where: TopicPartition,
    kind: str,
    message: str,
    offsets: tuple[int, int] | None = None,
    *,
    hint: str | None = None,
    exit_code: int = EXIT_DONE,
) -> Notice:
    """A notice about a partition, and about offsets [first, end) of it."""
    first, end = offsets or (None, None)
    return Notice(
        kind=kind,
        message=message,
        topic=where.topic,
        partition=where.partition,
        first_offset=first,
        end_offset=end,
        hint=hint,
        exit_code=exit_code,
    )


def stopped() -> Notice:
    message = "stopped on request: everything up to the last commit is archived"
    return Notice(kind=STOPPED, message=message, hint="run it again to continue", exit_code=EXIT_INCOMPLETE)


def clock_behind(newest: Run | None, now_ms: int) -> Iterator[Notice]:
    """Runs are ordered by commit, whatever the clock says; the times that people read are not."""
    if newest is None or now_ms > newest.finished_at - _CLOCKS_APART_MS:
        return
    behind_s = (newest.finished_at - now_ms) // 1000
    yield Notice(
        kind="clock",
        message=f"this machine's clock is {behind_s} s behind the end of the newest run, {newest.run_id}; runs stay "
        "in the order of their commits, but the times, the name and the recovery point of this run, or of that one, "
        "are wrong",
        hint="set the clock of this machine, or of the one that made the newest run",
    )


def held_back(state: PartitionState, found: OpenTransaction, *, now_ms: int) -> Notice:
    """An open transaction delays its own partition and no other."""
    name = "" if found.transactional_id is None else f" ({found.transactional_id})"
    started_ms = found.last_timestamp_ms if found.started_at_ms is None else found.started_at_ms
    age = "" if started_ms < 0 else f", open for {max(0, now_ms - started_ms) // 1000} s"
    return about(
        state.where,
        "open transaction",
        f"a transaction of producer {found.producer_id}{name} holds the rest back{age}",
        (state.end, state.high_watermark),
        hint="it is archived as soon as it ends; end a hanging transaction with kafka-transactions.sh abort",
    )


def never_still(topic: str) -> Notice:
    """Its log was truncated, or it was deleted, each time the run had planned it again."""
    message = "it was truncated or recreated repeatedly during the run, and was not read to its end"
    return Notice(kind="failed", message=message, topic=topic, hint="run it again", exit_code=EXIT_INCOMPLETE)


def storage_failed(topic: str, failure: Failure) -> Notice:
    return Notice(kind=STORAGE, message=failure.message, topic=topic, hint=failure.hint, exit_code=EXIT_FAILED)


def not_captured(cluster: ClusterState) -> Iterator[Notice]:
    for gap in cluster.gaps:
        # A cluster without an authorizer has no ACLs, so none are missing.
        if gap.what != "ACLs" or cluster.acls is None:
            yield Notice(kind="not captured", message=f"{gap.what}: {gap.why}", hint=gap.hint)
