"""Truncated logs: a log loses its end, for example by an unclean leader election, and then grows again differently.

The archive then holds records that the cluster has lost. It must neither continue them with records of the new log, nor
forget them: they may be the only copy. Everything about this is here, in the order in which a run meets it:

1. *Planning*: `find_truncations` compares leader epochs and finds the offset from which on log and archive differ.
2. *Archive*: `apply_truncation` replaces the rows from there on. The replaced rows and their objects stay:
   `--as-of` an earlier run finds them.
3. *Reading*: a log can also be cut while tasks read it. Brokers compare epochs within a range; `find_mixed` does so
   between ranges. Such partitions are planned again in the same run.

The leader epoch decides, never the end of the log: the high watermark of a new leader may lag for a moment, and a log
that was cut may have grown past the end of the archive since. Layouts of other tools keep no epochs: `foreign.py`
compares ends and topic ids there, and refuses to continue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from maxbrod.backup.plan.ranges import Outcome, PartitionBackup, PartitionState, outcomes_by_partition
from maxbrod.catalog.rows import SLICE_FIELDS, Gap, Row, Segment, decode_rows, slice_of
from maxbrod.errors import MaxbrodError
from maxbrod.kafka.fetch.offsets import EpochEnd, epoch_ends
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.kafka.format import PartitionName
from maxbrod.layouts.kafka.slices import cut_slice
from maxbrod.model import PartitionId, TopicPartition, now_ms
from maxbrod.notices import Notice
from maxbrod.work.report import about

if TYPE_CHECKING:
    from maxbrod.archive.archive import AnyCatalog, Archive
    from maxbrod.catalog.queries import ArchivedRange

_EVERYTHING: Final = 2**63 - 1
_OBJECTS_NAMED: Final = 5


# Planning: is the log still the one that was archived?


def find_truncations(
    client: KafkaClient,
    catalog: AnyCatalog,
    states: Iterable[PartitionState],
    *,
    failed: dict[TopicPartition, MaxbrodError],
    patience_s: float,
) -> dict[TopicPartition, int]:
    """The offset at which each truncated log was cut. Partitions whose leader does not answer are added to `failed`."""
    held = {state.where: (state, state.held) for state in states if state.held is not None}
    epochs = {
        where: -1 if archived.last_leader_epoch is None else archived.last_leader_epoch
        for where, (_, archived) in held.items()
    }
    # Messages of the oldest formats carry no epoch, and neither do gaps: there is nothing to compare.
    known = {where: epoch for where, epoch in epochs.items() if epoch >= 0}
    answers = epoch_ends(client, known, deadline=Deadline.after(patience_s), failed=failed)
    found = {
        where: truncated_at(
            archived.end_offset,
            common_end=_common_end(catalog, state.id, epochs[where], answers.get(where)),
            high_watermark=state.high_watermark,
        )
        for where, (state, archived) in held.items()
    }
    return {where: offset for where, offset in found.items() if offset is not None}


def truncated_at(archive_end: int, *, common_end: int | None, high_watermark: int) -> int | None:
    """Return where the log was cut below the end of the archive. `common_end` comes from `diverges_at`.

    Only without an epoch to compare does the high watermark decide.
    """
    end = high_watermark if common_end is None else common_end
    return end if end < archive_end else None


def diverges_at(held_epochs: Iterable[tuple[int, int]], *, asked_epoch: int, answer: tuple[int, int]) -> int | None:
    """The offset up to which log and archive are the same, from a broker's answer about the last archived epoch.

    `held_epochs` is the base offset and last leader epoch of data rows, in any order. `answer` is an epoch and its end
    offset. If the answer is about an older epoch than `asked_epoch`, the log never had, or lost, the younger epochs:
    rows that reach into those are not trusted from their beginning on. None: the broker has no epoch to compare.
    """
    epoch, end = answer
    if end < 0:
        return None
    if epoch >= asked_epoch:
        return end
    return min([end, *(base for base, last_epoch in held_epochs if last_epoch > epoch)])


def _common_end(catalog: AnyCatalog, partition: PartitionId, asked_epoch: int, answer: EpochEnd | None) -> int | None:
    if answer is None:
        return None
    held_epochs: list[tuple[int, int]] = []
    # Rows are read only if the broker does not know the epoch.
    if answer.leader_epoch < asked_epoch:
        columns = ["base_offset", "last_leader_epoch"]
        rows = catalog.rows(topic_id=partition.topic_id, partition=partition.partition, columns=columns)
        pairs = zip(*(rows[name].to_pylist() for name in columns), strict=True)
        held_epochs = [(base, epoch) for base, epoch in pairs if epoch is not None]
    return diverges_at(held_epochs, asked_epoch=asked_epoch, answer=(answer.leader_epoch, answer.end_offset))


# The archive: rows beyond the cut are replaced.


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """The archive of a partition after its log was cut, and the notice about it."""

    held: ArchivedRange
    notice: Notice
    superseded: tuple[Row, ...] | None
    """The partition's rows if none of them stays: the commit with new rows of it replaces them. None: the cut has been
    committed already."""


def apply_truncation(archive: Archive, plan: PartitionBackup, offset: int, *, run_id: str) -> Truncation:
    """Remove the rows from `offset` on, in a commit of their own if older rows of the partition stay."""
    state = plan.state
    assert state.held is not None  # noqa: S101 - only an archived partition can differ from its log
    held = state.held
    if offset <= held.first_offset:
        # If the partition had no row at all, a run killed now would leave only the last snapshot to say how far the
        # archive reaches, and that speaks of the lost log. So its rows stay until there is something in their place.
        rows = decode_rows(archive.catalog.rows(topic_id=state.topic_id, partition=state.partition))
        lost = [row for row in rows if isinstance(row, Segment)]
        return Truncation(
            held=replace(held, first_offset=offset, end_offset=offset, last_leader_epoch=None),
            notice=_notice(plan.state, offset, held.end_offset, lost),
            superseded=tuple(rows),
        )
    lost = cut_back(archive, state.id, offset, run_id=run_id, now_ms=now_ms())
    left = archive.catalog.rows(topic_id=state.topic_id, partition=state.partition, columns=["last_leader_epoch"])
    return Truncation(
        held=replace(held, end_offset=offset, last_leader_epoch=pc.max(left["last_leader_epoch"]).as_py()),
        notice=_notice(plan.state, offset, held.end_offset, lost),
        superseded=None,
    )


def cut_back(archive: Archive, partition: PartitionId, offset: int, *, run_id: str, now_ms: int) -> list[Segment]:
    """Commit that the archive holds nothing of this partition from `offset` on; the data rows it held there."""
    table = archive.catalog.rows(
        topic_id=partition.topic_id, partition=partition.partition, offsets=(offset, _EVERYTHING)
    )
    rows = decode_rows(table)
    kept = [_head(archive, row, offset, run_id=run_id, now_ms=now_ms) for row in rows]
    archive.catalog.commit([row for row in kept if row is not None], retired=table)
    return [row for row in rows if isinstance(row, Segment)]


def _head(archive: Archive, row: Row, offset: int, *, run_id: str, now_ms: int) -> Row | None:
    """The part of a row before `offset`."""
    match row:
        case Gap() if row.base_offset < offset:
            return replace(row, end_offset=offset, run_id=run_id, written_at=now_ms)
        case Segment() if row.base_offset < offset:
            name = PartitionName(topic=row.topic, topic_id=row.topic_id, partition=row.partition)
            head = cut_slice(archive.storage, slice_of(row), offset, name, run_id=run_id)
            if head is None:
                return None
            values = {name: getattr(head, name) for name in SLICE_FIELDS}
            return replace(row, **values, run_id=run_id, written_at=now_ms)
        case _:
            return None


def _notice(state: PartitionState, offset: int, end_offset: int, lost: Sequence[Segment]) -> Notice:
    """`lost` are the data rows that the archive held beyond the cut."""
    objects = ", ".join(sorted({row.path for row in lost})[:_OBJECTS_NAMED])
    hint = f"the records that the cluster lost are still in {objects}; restore them as of an earlier run (--as-of)"
    message = f"the log was truncated to offset {offset} after it was archived; it is archived again from there"
    return about(state.where, "truncated", message, (offset, end_offset), hint=hint if lost else None)


# Reading: was the log cut while tasks read it?


def find_mixed(
    client: KafkaClient, held: Mapping[PartitionId, ArchivedRange], outcomes: Sequence[Outcome], *, patience_s: float
) -> dict[PartitionId, str]:
    """Partitions whose outcomes must not be committed because they mix two histories of the log, and why.

    Epochs are compared at planning, and within a range the broker compares them with every fetch. Between the two, and
    between ranges, a log may be cut and grow again. If the epoch rises there, this asks the leader whether the older
    epoch really reached that far. No request is sent if no epoch has risen.
    """
    seams = {
        partition: deque(found)
        for partition, reports in outcomes_by_partition(outcomes).items()
        if (found := _seams(held.get(partition), reports))
    }
    places = {outcome.item.id: outcome.item.where for outcome in outcomes}
    mixed: dict[PartitionId, str] = {}
    while seams:
        questions = {places[partition]: (partition, *left.popleft()) for partition, left in seams.items()}
        failed: dict[TopicPartition, MaxbrodError] = {}
        epochs = {where: epoch for where, (_, epoch, _) in questions.items()}
        answers = epoch_ends(client, epochs, deadline=Deadline.after(patience_s), failed=failed)
        for where, (partition, epoch, end) in questions.items():
            answer = answers.get(where)
            if answer is None:
                mixed[partition] = f"the leader did not say whether it is one history: {failed[where].message}"
            elif answer.end_offset >= 0 and (answer.leader_epoch < epoch or answer.end_offset < end):
                mixed[partition] = f"the log was truncated below offset {end} while it was read"
        seams = {partition: left for partition, left in seams.items() if left and partition not in mixed}
    return mixed


def _seams(held: ArchivedRange | None, outcomes: Sequence[Outcome]) -> list[tuple[int, int]]:
    """The rises of the epoch between two separate reads: the older epoch, and the offset up to which it was read."""
    epoch = -1 if held is None or held.last_leader_epoch is None else held.last_leader_epoch
    end = 0 if held is None else held.end_offset
    found = []
    for outcome in sorted(outcomes, key=lambda outcome: outcome.item.start):
        for number, part in enumerate(outcome.slices):
            # Within a range the broker has compared the epochs itself.
            if number == 0 and 0 <= epoch < part.first_leader_epoch:
                found.append((epoch, end))
            epoch, end = part.last_leader_epoch, part.end_offset
    return found
