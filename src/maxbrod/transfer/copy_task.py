"""What one task does that copies slices into an archive of our own layout: batches as they are, of any source.

Objects have names of their own for each attempt, and only what the driver commits is ever read.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from maxbrod.batch.looking import look_into
from maxbrod.errors import MaxbrodError, UsageError, naming
from maxbrod.layouts.kafka.compression import Compression
from maxbrod.layouts.kafka.slices import SegmentLimits
from maxbrod.layouts.kafka.writing import ArchiveWriter
from maxbrod.layouts.reading import read_logs
from maxbrod.storage.opening import open_storage
from maxbrod.transfer.task import Transferred, nothing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.layouts.kafka.partition import PartitionWriter
    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.storage.interface import Storage
    from maxbrod.transfer.task import TransferItem, TransferSettings

_PACKED_BYTES: Final = 4 << 20
"""Partitions with less than this share objects, as in a backup."""


def run_copy_task(settings: TransferSettings, items: Sequence[TransferItem]) -> list[Transferred]:
    """Items share objects, so that what goes wrong with one spoils all: then each is copied by itself."""
    if settings.source_url is None or settings.source is None:
        raise UsageError("an archive is copied from another one")
    options = settings.options
    source = open_storage(settings.source_url, settings.source)
    writer = ArchiveWriter(
        open_storage(settings.target_url, settings.target),
        run_id=settings.run_id,
        compression=Compression.parse(options.codec or "auto"),
        limits=SegmentLimits(
            bytes_max=options.segment_bytes_max or SegmentLimits().bytes_max, records_max=options.segment_records_max
        ),
        look=look_into(sum(each.raw_bytes for item in items for each in item.slices)),
    )
    try:
        with writer as archive:
            parts = [_copy(archive, source, item) for item in items]
    except MaxbrodError as error:
        if len(items) == 1:
            return [nothing(item, error) for item in items]
        return [done for item in items for done in run_copy_task(settings, [item])]
    return [
        Transferred(
            where=item.where,
            topic_id=item.topic_id,
            segments=tuple(asdict(each) for each in part.slices),
            records=sum(each.records for each in part.slices),
            start=item.start,
            end=item.end,
        )
        for item, part in zip(items, parts, strict=True)
    ]


def _copy(archive: ArchiveWriter, source: Storage, item: TransferItem) -> PartitionWriter:
    size = sum(each.raw_bytes for each in item.slices)
    part = archive.partition(
        topic=item.where.topic,
        topic_id=item.topic_id,
        partition=item.where.partition,
        packed=size < _PACKED_BYTES,
    )
    with naming(str(item.where)):
        for before, stored in pairwise((None, *item.slices)):
            if before is not None and stored is not None and before.end_offset < stored.base_offset:
                # What was a gap stays a row of its own: no slice may reach over it.
                part.close()
            if stored is not None:
                _append(part, source, stored)
        part.close()
    return part


def _append(part: PartitionWriter, source: Storage, stored: Slice) -> None:
    for data, headers in read_logs(source, stored):
        if len(headers):
            first, last = int(headers["base_offset"][0]), int(headers.last_offset[-1])
            # Those that touch it, as a broker would name them with it.
            touching = [each for each in stored.aborted if each.first_offset <= last and each.last_offset >= first]
            part.append(data, headers, [(each.producer_id, each.first_offset) for each in touching])
