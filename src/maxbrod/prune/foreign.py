"""Segments of other tools' archives: how old their records are, and how they go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.batch.columns import number_column
from maxbrod.catalog.schema import Kind
from maxbrod.layouts.registry import layout_of, prune_of
from maxbrod.model import TimestampType
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from collections.abc import Collection

    from maxbrod.archive.archive import Archive
    from maxbrod.layouts.foreign import ForeignSegment, Layout
    from maxbrod.prune.plan import SegmentPolicy
    from maxbrod.storage.interface import Storage

_COLUMNS: Final = ("timestamp_ms", "timestamp_type")


def with_times(archive: Archive, rows: pa.Table, policy: SegmentPolicy) -> pa.Table:
    """The rows with the time of each segment's newest record, read from its records if the metadata has none.

    A record without a timestamp is as old as its object. With a rule by age alone, segments behind the first young one
    of a partition are not read: they stay in any case.
    """
    survey = archive.survey
    unknown = pc.and_(pc.equal(rows["kind"], Kind.DATA), pc.is_null(rows["max_timestamp"]))
    if survey is None or not pc.any(unknown).as_py():
        return rows
    storage, layout = open_storage(archive.url, archive.options), layout_of(survey.layout)
    modified = {info.path: info.modified_ms for info in storage.list()}
    segments = {(segment.path, segment.base_offset): segment for segment in survey.segments}
    by_age_alone = policy.topic_bytes_max is None and policy.archive_bytes_max is None
    limit = policy.before_ms if by_age_alone and policy.as_source_at_ms is None else None
    known = rows["max_timestamp"].to_pylist()
    young: set[tuple[str, int]] = set()
    columns = (rows[name].to_pylist() for name in ("topic_id", "partition", "path", "base_offset"))
    for number, (topic_id, partition, path, base) in enumerate(zip(*columns, strict=True)):
        if path is None:
            continue
        where = (topic_id, partition)
        if known[number] is None and where not in young:
            known[number] = _newest_ms(storage, layout, segments[path, base], modified.get(path, 0))
        elif known[number] is None:
            known[number] = np.iinfo(np.int64).max
        if limit is not None and known[number] >= limit:
            young.add(where)
    place = rows.schema.get_field_index("max_timestamp")
    return rows.set_column(place, rows.schema.field(place), pa.array(known, pa.int64()))


def _newest_ms(storage: Storage, layout: Layout, segment: ForeignSegment, modified_ms: int) -> int:
    newest: int | None = None
    for batch in layout.read(storage, segment, columns=_COLUMNS):
        timestamp = number_column(batch.column("timestamp_ms"))
        without = (number_column(batch.column("timestamp_type")) == TimestampType.NONE) | (timestamp == -1)
        if without.any():
            newest = max(newest or 0, modified_ms)
        if not without.all():
            highest = int(timestamp[~without].max())
            newest = highest if newest is None else max(newest, highest)
    return modified_ms if newest is None else newest


def delete_segments(archive: Archive, going: Collection[str]) -> None:
    """Delete these objects, and what an earlier call that was killed has left."""
    if archive.survey is not None:
        prune_of(archive.survey.layout)(open_storage(archive.url, archive.options), archive.survey, going)
