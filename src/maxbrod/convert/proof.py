"""The proof of a conversion: tasks read both archives again, and the digests of every partition must be equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.batch.columns import number_array, number_column
from maxbrod.batch.digest import Digest, Field, join
from maxbrod.catalog.rows import Segment, decode_rows
from maxbrod.config import StorageConfig
from maxbrod.errors import EXIT_CORRUPT, MaxbrodError, naming
from maxbrod.layouts.reader import read_records
from maxbrod.model import PartitionId
from maxbrod.notices import Notice
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_storage
from maxbrod.transfer.task import TransferItem
from maxbrod.work.report import about
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive
    from maxbrod.convert.verb import ConvertedTopic
    from maxbrod.transfer.plan import ConvertPart
    from maxbrod.work.executor import Executor
    from maxbrod.work.work import Work

_SOURCE, _TARGET = 0, 1
_VALUE_NULL: Final = "value_null"
"""Not a field: a layout that loses it stores a null value as an empty one."""

_Item: TypeAlias = tuple[int, TransferItem]
"""The side, and the offsets of a partition to read there."""
_Verified: TypeAlias = tuple[Digest, MaxbrodError | None]
_Place: TypeAlias = tuple[int, PartitionId]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    """The settings that all tasks share. Contains secrets."""

    urls: tuple[str, str]
    storages: tuple[StorageConfig, StorageConfig] = field(repr=False)
    ignored: tuple[str, ...] = ()
    """Fields that one of the layouts cannot hold."""


def prove(
    work: Work,
    executor: Executor,
    archives: tuple[Archive, Archive],
    parts: Sequence[ConvertPart],
    topics: Mapping[str, ConvertedTopic],
    *,
    ignored: Sequence[str],
    run_id: str,
) -> list[Notice]:
    """Return a notice for each partition that differs. Adds the digests of each topic to its report.

    `parts` are whole partitions of the source.
    """
    source, target = archives
    urls, storages = (source.url, target.url), (source.options, target.options)
    settings = VerifySettings(urls=urls, storages=storages, ignored=tuple(ignored))
    items = [*_items(_SOURCE, source, parts, by_name=False)]
    items += _items(_TARGET, target, parts, by_name=not target.is_native)
    sizes = [(sum(stored.bytes for stored in item.slices), (side, item)) for side, item in items]
    tasks, total = spread(sizes, executor.parallelism), sum(size for size, _ in sizes)
    meter = work.meter("comparing both sides", total, tasks=len(tasks))
    verified = executor.run(run_verify_task, settings, tasks, name=f"verify-{run_id}", meter=meter, stop=work.stop)
    found = dict(verified)
    both = {part.id: (found[_SOURCE, part.id], found[_TARGET, part.id]) for part in parts}
    for name, topic in topics.items():
        _add_digests(topic, [both[part.id] for part in parts if part.topic == name])
    return [
        _different(part, mine, its)
        for part in parts
        for mine, its in [both[part.id]]
        if mine[0] != its[0] or mine[1] is not None or its[1] is not None
    ]


def _items(side: int, archive: Archive, parts: Sequence[ConvertPart], *, by_name: bool) -> Iterator[_Item]:
    """The items for one archive. Other layouts know only topic names; items carry the id of the source."""
    segments: dict[tuple[str, int], list[Segment]] = {}
    erasures = archive.erasures()
    for row in decode_rows(archive.catalog.rows()):
        if isinstance(row, Segment):
            segments.setdefault((row.topic if by_name else row.topic_id, row.partition), []).append(row)
    for part in parts:
        rows = segments.get((part.topic if by_name else part.topic_id, part.partition), [])
        start, end = part.rows[0].base_offset, part.end
        slices = tuple(erasures.slice_of(row) for row in rows if row.end_offset > start and row.base_offset < end)
        yield side, TransferItem(where=part.where, topic_id=part.topic_id, start=start, end=end, slices=slices)


def _add_digests(topic: ConvertedTopic, parts: Sequence[tuple[_Verified, _Verified]]) -> None:
    """Add none if a part could not be read, because the rest may well be equal."""
    if any(failure for part in parts for _, failure in part):
        return
    source, target = (join(part[side][0] for part in parts) for side in (_SOURCE, _TARGET))
    topic.source_records, topic.target_records = source.records, target.records
    topic.source_digest, topic.target_digest = source.sequence_text, target.sequence_text
    topic.equal = (source.sequence_text, source.records) == (target.sequence_text, target.records)


def _different(part: ConvertPart, source: _Verified, target: _Verified) -> Notice:
    failure, offsets = target[1] or source[1], (part.rows[0].base_offset, part.end)
    message = f"the source has {source[0].records} records, the target {target[0].records}, and they differ"
    hint = "convert it again into an empty folder; 'maxbrod check --deep' shows which side is damaged"
    message = message if failure is None else failure.message
    return about(part.where, "different", message, offsets, hint=hint, exit_code=EXIT_CORRUPT)


def run_verify_task(settings: VerifySettings, items: Sequence[_Item]) -> list[tuple[_Place, _Verified]]:
    """The digest of each item. An item that cannot be read has a failure, which is never equal."""
    storages = [open_storage(url, options) for url, options in zip(settings.urls, settings.storages, strict=True)]
    return [((side, item.id), _verify(storages[side], item, settings.ignored)) for side, item in items]


def _verify(storage: Storage, item: TransferItem, ignored: Sequence[str]) -> _Verified:
    # Loads numba, which the driver does not need.
    from maxbrod.batch.hashes import digest_records, hash_fields  # noqa: PLC0415

    digest = Digest()
    skipped = [Field(name) for name in ignored if name != _VALUE_NULL]
    try:
        with naming(str(item.where)):
            for records in _records(storage, item):
                if _VALUE_NULL in ignored:
                    records = _without_null_values(records)  # noqa: PLW2901 - the same, as far as it can be compared
                places = number_column(records.column("offset"))
                digest = digest.then(digest_records(hash_fields(records), places, skipped))
    except MaxbrodError as error:
        return digest, error
    return digest, None


def _without_null_values(records: pa.RecordBatch) -> pa.RecordBatch:
    column = records.schema.get_field_index("value")
    return records.set_column(column, records.schema.field(column), pc.fill_null(records.column(column), b""))


def _records(storage: Storage, item: TransferItem) -> Iterator[pa.RecordBatch]:
    from maxbrod.batch.hashes import COLUMNS  # noqa: PLC0415 - as above

    for stored in item.slices:
        for records in read_records(storage, stored, columns=COLUMNS):
            offsets = number_column(records.column("offset"))
            keep = (offsets >= item.start) & (offsets < item.end)
            chosen = records if keep.all() else records.filter(number_array(keep))
            if chosen.num_rows:
                yield chosen
