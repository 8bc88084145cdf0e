"""Empties old segments: the manifest counts a partition's segments from 0, so that none of them can be missing.

A segment that was emptied has a header and a footer, and no batch. Readers of the documented format find every number
that the manifest counts, and no record in those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maxbrod.errors import RefusedError
from maxbrod.layouts.backups import MANIFEST, Backup, list_segments, refuse_rebuilt
from maxbrod.layouts.coverage import by_partition
from maxbrod.layouts.documents import by_topic, read_document, write_document
from maxbrod.layouts.kbs.manifest import EMPTIED, OURS
from maxbrod.layouts.kbs.schema import EMPTY_BYTES, SEGMENT, Header, SegmentCodec, encode_footer, encode_header

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from maxbrod.layouts.foreign import ForeignSegment, Survey
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage

    Partitions = Mapping[TopicPartition, list[ForeignSegment]]


def prune(storage: Storage, survey: Survey, going: Collection[str]) -> None:
    backup = Backup.surveyed(survey)
    if backup is None:
        return
    path = backup.path(MANIFEST)
    refuse_rebuilt(storage, backup, survey)
    manifest = read_document(storage, path)
    if manifest is None:
        raise RefusedError("the manifest has disappeared", object_name=storage.name_of(path))
    kept = by_partition(segment for segment in survey.segments if segment.path not in going)
    if going:
        write_document(storage, path, _without(manifest.values, by_partition(survey.segments), kept))
    # Those that a killed call has left included.
    for where, number, name, size in list_segments(storage, backup, SEGMENT):
        if where in kept and number < kept[where][0].details["index"] and size != EMPTY_BYTES:
            storage.replace(name, _empty(kept[where][0].base_offset))


def _empty(first_offset: int) -> bytes:
    from maxbrod.layouts.kbs.crc64 import crc64  # noqa: PLC0415 - loads numba, which a survey must not

    header = encode_header(Header(codec=SegmentCodec.NONE, first_offset=first_offset, records=0, checksum=crc64(b"")))
    return header + encode_footer(0, crc64(header))


def _without(old: Mapping[str, Any], before: Partitions, kept: Partitions) -> dict[str, Any]:
    """The manifest without the records of emptied segments, which it still counts."""
    gone = [each for where, held in before.items() for each in held if each not in kept[where]]
    segments = [each for held in kept.values() for each in held]
    statistics = dict(old.get("statistics") or {})
    for name, less in (
        ("records", sum(each.records or 0 for each in gone)),
        ("compressed_bytes", sum(each.bytes - EMPTY_BYTES for each in gone)),
        ("uncompressed_bytes", sum(each.details.get("uncompressed_bytes", 0) for each in gone)),
    ):
        if isinstance(statistics.get(name), int):
            statistics[name] = max(statistics[name] - less, 0)
    times = [segment.min_timestamp for segment in segments if segment.min_timestamp is not None]
    time_range = dict(old.get("time_range") or {})
    if len(times) == len(segments):
        time_range["earliest_timestamp"] = min(times)
    topics = [
        {**topic, "partitions": [_partition(topic["name"], each, kept) for each in topic.get("partitions") or []]}
        for topic in old.get("topics") or []
    ]
    return {**old, "statistics": statistics, "time_range": time_range, "topics": topics, OURS: _own(old, kept)}


def _partition(topic: str, entry: dict[str, Any], kept: Partitions) -> dict[str, Any]:
    held = next(
        (held for where, held in kept.items() if (where.topic, where.partition) == (topic, entry["partition"])), None
    )
    if held is None:
        return entry
    return {**entry, "first_offset": held[0].base_offset, "records": sum(each.records or 0 for each in held)}


def _own(old: Mapping[str, Any], kept: Partitions) -> dict[str, Any]:
    own = dict(old.get(OURS) or {})
    listed = {name: dict(each) for name, each in (own.get("segments") or {}).items()}
    for where, held in kept.items():
        number, entries = str(where.partition), listed.get(where.topic, {})
        if number in entries:
            entries[number] = entries[number][-len(held) :]
    emptied = {where: held[0].details["index"] for where, held in kept.items() if held[0].details["index"]}
    return {**own, "segments": listed, EMPTIED: by_topic(emptied)}
