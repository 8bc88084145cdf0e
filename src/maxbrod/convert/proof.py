"""The proof of a conversion: tasks read both archives again, and the digests of every partition must be equal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from maxbrod.batch.columns import number_array, number_column
from maxbrod.batch.digest import Digest, Field, join
from maxbrod.catalog.rows import Segment, decode_rows, slice_of
from maxbrod.errors import EXIT_CORRUPT, MaxbrodError, naming
from maxbrod.layouts.reader import read_records
from maxbrod.notices import Notice
from maxbrod.storage.stores import open_storage
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from maxbrod.archive.archive import Archive
    from maxbrod.config import StorageConfig
    from maxbrod.convert.plan.parts import ConvertPart
    from maxbrod.convert.report import TopicCounts
    from maxbrod.layouts.kafka.format import Slice
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage
    from maxbrod.work.executor import Executor


_SOURCE, _TARGET = 0, 1
_VALUE_NULL: Final = "value_null"
"""Not a field: a layout that loses it stores a null value as an empty one."""


def prove(
    executor: Executor,
    source: Archive,
    target: Archive,
    parts: Sequence[ConvertPart],
    counts: Mapping[str, TopicCounts],
    *,
    ignored: Sequence[str],
    run_id: str,
) -> list[Notice]:
    """Return a notice for each partition that differs. Adds the digests of each topic to its counts.

    `parts` are whole partitions of the source.
    """
    settings = VerifySettings(
        run_id=run_id,
        urls=(source.url, target.url),
        storages=(source.options, target.options),
        ignored=tuple(ignored),
    )
    items = [*_items(_SOURCE, source, parts, by_name=False)]
    items += _items(_TARGET, target, parts, by_name=target.survey is not None)
    tasks = spread([(sum(each.bytes for each in item.slices), item) for item in items], executor.parallelism)
    verified = executor.run(run_verify_task, settings, tasks, name=f"verify-{run_id}")
    found = {(each.archive, each.topic_id, each.where.partition): each for each in verified}
    notices = []
    for part in parts:
        mine, its = (found[side, part.topic_id, part.partition] for side in (_SOURCE, _TARGET))
        if mine.digest != its.digest or mine.failure is not None or its.failure is not None:
            notices.append(_different(part, mine, its))
    for topic, each in counts.items():
        each.verified = _verified(topic, parts, found)
    return notices


def _items(archive: int, opened: Archive, parts: Sequence[ConvertPart], *, by_name: bool) -> Iterator[VerifyItem]:
    """The items for one archive. Other layouts know only topic names; items carry the id of the source."""
    slices: dict[tuple[str, int], list[Segment]] = {}
    for row in decode_rows(opened.catalog.rows()):
        if isinstance(row, Segment):
            slices.setdefault((row.topic if by_name else row.topic_id, row.partition), []).append(row)
    for part in parts:
        key = (part.topic if by_name else part.topic_id, part.partition)
        first, end = part.rows[0].base_offset, part.end
        rows = [row for row in slices.get(key, []) if row.end_offset > first and row.base_offset < end]
        yield VerifyItem(
            archive=archive,
            where=part.where,
            topic_id=part.topic_id,
            first=first,
            end=end,
            slices=tuple(slice_of(row) for row in rows),
        )


def _verified(
    topic: str, parts: Sequence[ConvertPart], found: Mapping[tuple[int, str, int], Verified]
) -> dict[str, int | str]:
    """The digests of a topic; none if a part could not be read, because the rest may well be equal."""
    mine = [part for part in parts if part.topic == topic]
    if any(found[side, part.topic_id, part.partition].failure for part in mine for side in (_SOURCE, _TARGET)):
        return {}
    source, target = (
        join(found[side, part.topic_id, part.partition].digest for part in mine) for side in (_SOURCE, _TARGET)
    )
    return {
        "source_records": source.records,
        "target_records": target.records,
        "source_digest": source.sequence_text,
        "target_digest": target.sequence_text,
    }


def _different(part: ConvertPart, mine: Verified, its: Verified) -> Notice:
    failure = its.failure or mine.failure
    return Notice(
        kind="different",
        message=f"the source has {mine.digest.records} records, the target {its.digest.records}, and they differ"
        if failure is None
        else failure.message,
        topic=part.topic,
        partition=part.partition,
        first_offset=part.rows[0].base_offset,
        end_offset=part.end,
        hint="convert it again into an empty folder; 'maxbrod check --deep' shows which side is damaged",
        exit_code=EXIT_CORRUPT,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    """The settings that all tasks share. Contains secrets."""

    run_id: str
    urls: tuple[str, str]
    """The URLs of both archives."""
    storages: tuple[StorageConfig, StorageConfig] = field(repr=False)
    ignored: tuple[str, ...] = ()
    """Fields that one of the layouts cannot hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyItem:
    """Offsets [first, end) of a partition in one of the archives: 0 is the source, 1 the target."""

    archive: int
    where: TopicPartition
    topic_id: str
    first: int
    end: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    archive: int
    where: TopicPartition
    topic_id: str
    digest: Digest
    failure: MaxbrodError | None = None


def run_verify_task(settings: VerifySettings, items: Sequence[VerifyItem]) -> list[Verified]:
    """The digest of each item. An item that cannot be read has a failure, which is never equal."""
    storages = [open_storage(url, each) for url, each in zip(settings.urls, settings.storages, strict=True)]
    return [_verify(storages[item.archive], item, settings.ignored) for item in items]


def _verify(storage: Storage, item: VerifyItem, ignored: Sequence[str]) -> Verified:
    # Loads numba, which the driver does not need.
    from maxbrod.batch.hashes import digest_records, hash_fields  # noqa: PLC0415

    digest = Digest()
    failure: MaxbrodError | None = None
    skipped = [Field(name) for name in ignored if name != _VALUE_NULL]
    try:
        with naming(str(item.where)):
            for records in _records(storage, item):
                if _VALUE_NULL in ignored:
                    records = _without_null_values(records)  # noqa: PLW2901 - the same, as far as it can be compared
                places = number_column(records.column("offset"))
                digest = digest.then(digest_records(hash_fields(records), places, skipped))
    except MaxbrodError as error:
        failure = error
    return Verified(archive=item.archive, where=item.where, topic_id=item.topic_id, digest=digest, failure=failure)


def _without_null_values(records: pa.RecordBatch) -> pa.RecordBatch:
    column = records.schema.get_field_index("value")
    return records.set_column(column, records.schema.field(column), pc.fill_null(records.column(column), b""))


def _records(storage: Storage, item: VerifyItem) -> Iterator[pa.RecordBatch]:
    from maxbrod.batch.hashes import COLUMNS  # noqa: PLC0415 - as above

    for stored in item.slices:
        for records in read_records(storage, stored, columns=COLUMNS):
            offsets = number_column(records.column("offset"))
            keep = (offsets >= item.first) & (offsets < item.end)
            chosen = records if keep.all() else records.filter(number_array(keep))
            if chosen.num_rows:
                yield chosen
