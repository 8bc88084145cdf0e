"""One task of a backup, in a Python worker of Spark or anywhere else: fetch, check, write, report.

A task may run twice at once (speculation) or again (retry). Every attempt writes objects under names of its own, and
the driver commits only the outcomes of the attempt that wins. Clients are opened here and do not travel with the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from maxbrod.backup.plan.ranges import Damage, Failure, FailureKind, Outcome, RangeItem
from maxbrod.board import stop_of_task
from maxbrod.config import KafkaConfig, StorageConfig
from maxbrod.errors import (
    AccessDeniedError,
    CorruptDataError,
    LogTruncatedError,
    MaxbrodError,
    TopicGoneError,
    UnavailableError,
    UnsupportedFormatError,
    UsageError,
    naming,
)
from maxbrod.kafka.fetch.ranges import FETCH_BYTES, SmallRange, read_range, read_small_ranges
from maxbrod.kafka.fetch.request import Chunk
from maxbrod.kafka.wire.client import PATIENCE_S, KafkaClient
from maxbrod.kafka.wire.deadline import Pace
from maxbrod.kafka.wire.kept import client_for
from maxbrod.layouts.kafka.described_batches import look_into
from maxbrod.layouts.kafka.format import SEGMENTS, Compression, SegmentLimits
from maxbrod.layouts.kafka.writer import ArchiveWriter, PartitionWriter
from maxbrod.model import topic_id_of
from maxbrod.storage.stores import open_storage

_FAILURE_KINDS: Final[tuple[tuple[type[MaxbrodError], FailureKind], ...]] = (
    (TopicGoneError, FailureKind.DELETED),
    (LogTruncatedError, FailureKind.TRUNCATED),
    (UnsupportedFormatError, FailureKind.UNSUPPORTED),
    (AccessDeniedError, FailureKind.DENIED),
    # A broker answers so to a user who may describe a topic and not read it.
    (UsageError, FailureKind.DENIED),
)
"""All other errors mean UNAVAILABLE."""

_GATHER_BYTES: Final = 16 << 20
_GATHER_RANGES: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """The settings that all tasks of a run share. Contains secrets."""

    run_id: str
    archive_url: str
    kafka: KafkaConfig
    storage: StorageConfig = field(repr=False)
    compression: Compression
    limits: SegmentLimits
    exact_timestamps: bool = False
    """True if every record is examined for the lowest timestamp; otherwise only those that cost almost nothing."""
    fetch_bytes: int = FETCH_BYTES
    patience_s: float = PATIENCE_S
    rate_bytes_per_s: float | None = None
    """The rate of one task."""


@dataclass(slots=True)
class _Reading:
    """An item while it is read. Its slices count only when all objects of the task are durable."""

    item: RangeItem
    part: PartitionWriter
    reached: int
    log_start_offset: int = 0
    damages: list[Damage] = field(default_factory=list)
    failure: Failure | None = None
    erased: int = 0

    def outcome(self) -> Outcome:
        return Outcome(
            item=self.item,
            slices=self.part.slices,
            reached=self.reached,
            log_start_offset=self.log_start_offset,
            damages=tuple(self.damages),
            failure=self.failure,
            erased=self.erased,
        )


def run_backup_task(settings: TaskSettings, items: Sequence[RangeItem]) -> tuple[Outcome, ...]:
    """Archive the items of a task. Errors are reported, not raised: they must not affect other partitions."""
    try:
        storage = open_storage(settings.archive_url, settings.storage)
        writer = ArchiveWriter(
            storage,
            run_id=settings.run_id,
            compression=settings.compression,
            limits=settings.limits,
            exact_timestamps=settings.exact_timestamps,
            look=look_into(sum(item.bytes_estimate for item in items)),
        )
        pace = Pace(settings.rate_bytes_per_s)
        with client_for(settings.kafka) as client, writer as archive:
            readings = [
                _archive(client, archive, item, settings, chunk, pace)
                for group in _groups(items)
                for item, chunk in _gathered(client, group)
            ]
    except MaxbrodError as error:
        return _nothing_written(items, error)
    return tuple(reading.outcome() for reading in readings)


def _groups(items: Sequence[RangeItem]) -> Iterator[list[RangeItem]]:
    """Items that are read together: many small ones, as far as memory allows, or one large one."""
    group: list[RangeItem] = []
    room = _GATHER_BYTES
    for item in items:
        cost = item.bytes_estimate if item.packed else _GATHER_BYTES
        if group and (cost > room or len(group) == _GATHER_RANGES):
            yield group
            group, room = [], _GATHER_BYTES
        group.append(item)
        room -= cost
    if group:
        yield group


def _gathered(client: KafkaClient, group: Sequence[RangeItem]) -> Iterator[tuple[RangeItem, Chunk | None]]:
    """Each item, with its whole range if one fetch returned all of it."""
    small = {
        SmallRange(
            where=item.where,
            topic_id=topic_id_of(item.topic_id),
            start=item.start,
            end=item.end,
            bytes_estimate=item.bytes_estimate,
            floor=item.floor,
        ): item
        for item in group
    }
    whole = {small[wanted]: chunk for wanted, chunk in read_small_ranges(client, list(small))} if len(group) > 1 else {}
    for item in group:
        yield item, whole.pop(item, None)


def _archive(
    client: KafkaClient,
    archive: ArchiveWriter,
    item: RangeItem,
    settings: TaskSettings,
    chunk: Chunk | None,
    pace: Pace,
) -> _Reading:
    part = archive.partition(
        topic=item.topic,
        topic_id=item.topic_id,
        partition=item.partition,
        packed=item.packed,
        every_hole=not item.compacted,
    )
    reading = _Reading(item, part, item.start)
    if chunk is not None:
        _append(reading, chunk, pace)
    with naming(str(item.where)):
        while reading.reached < item.end and reading.failure is None:
            _read_on(client, reading, settings, pace)
        part.close()
    return reading


def _read_on(client: KafkaClient, reading: _Reading, settings: TaskSettings, pace: Pace) -> None:
    """Read to the end of the range, past the next damaged batch, or until an error."""
    item = reading.item
    chunks = read_range(
        client,
        item.where,
        reading.reached,
        item.end,
        topic_id=topic_id_of(item.topic_id),
        floor=item.floor if reading.reached == item.start else None,
        fetch_bytes=min(settings.fetch_bytes, _fetch_bytes(item)),
        patience_s=settings.patience_s,
    )
    while True:
        try:
            chunk = next(chunks, None)
        except CorruptDataError as error:
            offset = reading.reached if error.offset is None else max(error.offset, reading.reached)
            reading.damages.append(Damage(offset=offset, message=error.message))
            # The damage gets its own row, even in a compacted topic: a later run may read it from an intact replica.
            reading.part.close()
            reading.reached = offset + 1
            return
        except MaxbrodError as error:
            # An error of one partition must not affect the others of the task.
            reading.failure = _failure(error)
            return
        if chunk is None:
            return
        # Errors from here on come from the storage, and end the task.
        _append(reading, chunk, pace)
        if reading.failure is not None:
            return


def _append(reading: _Reading, chunk: Chunk, pace: Pace) -> None:
    try:
        pace.wait(len(chunk.data))
    except UnavailableError as error:
        # On request: the chunk is left for the next run.
        reading.failure = Failure(kind=FailureKind.STOPPED, message=error.message, hint=error.hint)
        return
    if len(chunk.headers):
        data, headers = chunk.data, chunk.headers
        if reading.item.erased is not None:
            # Loads numba: only what is read again from the source can have such records.
            from maxbrod.batch.erasure import find_erased, without_offsets  # noqa: PLC0415

            gone = find_erased(data, headers, reading.item.erased)
            data, headers = without_offsets(data, headers, gone)
            reading.erased += len(gone)
        reading.part.append(data, headers, chunk.aborted)
    elif chunk.start < chunk.log_start_offset:
        # Offsets that retention deleted get a row of their own, however few they are: no slice may span them.
        reading.part.close()
    reading.reached = chunk.end
    reading.log_start_offset = max(reading.log_start_offset, chunk.log_start_offset)


def _fetch_bytes(item: RangeItem) -> int:
    """No more than a small range needs, with room for a wrong estimate: a broker sends as much as it may."""
    return max(4 * item.bytes_estimate, 1 << 20)


def _failure(error: MaxbrodError) -> Failure:
    stop = stop_of_task()
    if stop is not None and stop.is_set() and isinstance(error, UnavailableError):
        # Nothing is waited for any more: whatever did not answer at once is read by the next run.
        return Failure(kind=FailureKind.STOPPED, message="stopped on request", hint="run it again")
    kind = next(
        (kind for error_class, kind in _FAILURE_KINDS if isinstance(error, error_class)), FailureKind.UNAVAILABLE
    )
    return Failure(kind=kind, message=error.message, offset=error.offset, hint=error.hint)


def _nothing_written(items: Sequence[RangeItem], error: MaxbrodError) -> tuple[Outcome, ...]:
    """Not all objects of the task are durable, so none of its items is archived."""
    # A segment belongs to one of the partitions, and says nothing to the others.
    alone = len({item.id for item in items}) == 1 or SEGMENTS not in (error.object_name or "").split("/")
    failure = replace(_failure(error), kind=FailureKind.STORAGE, message=str(error) if alone else error.message)
    return tuple(
        Outcome(item=item, slices=(), reached=item.start, log_start_offset=0, failure=failure) for item in items
    )
