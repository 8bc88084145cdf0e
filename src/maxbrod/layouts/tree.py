"""What the layouts avro, parquet and binlog share: each is a tree of segments beside which the tool keeps little.

What such a layout cannot hold is in one object of ours: groups, topics, the cluster, the offsets of the segments.

One object of ours beside the segments, `maxbrod.json`, which no other tool opens. A JSON object, every field optional
but the first: `version` 1, `layout`, `cluster_id`, `taken_at_ms`, `topics` by name (`partition_count`,
`replication_factor`, `configs`), `groups` by id (topic, partition as text, next offset), `log_ends` of the source at
that time by topic, partition, `offsets` by topic, partition (see `layouts.coverage`). Without it every record can still
be read, but missing records cannot be detected.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from maxbrod import strict_json
from maxbrod.batch.columns import number_column
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, RefusedError, UnsupportedFormatError, naming
from maxbrod.layouts.coverage import (
    Coverage,
    by_partition,
    decode_coverage,
    encode_coverage,
    extended_by,
    judge,
    without_segments,
)
from maxbrod.layouts.documents import INT64_MAX, by_topic
from maxbrod.layouts.foreign import ClusterFacts, Doubt, Fault, ForeignGroup, ForeignSegment, ForeignTopic, Survey
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from maxbrod.storage.interface import Storage

PATH: Final = "maxbrod.json"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    cluster_id: str | None = None
    taken_at_ms: int | None = None
    topics: Mapping[str, ForeignTopic] = field(default_factory=dict)
    groups: tuple[ForeignGroup, ...] = ()
    log_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    coverage: Mapping[TopicPartition, Coverage] = field(default_factory=dict)


def is_published(storage: Storage, layout: str) -> bool:
    """True if the object exists and is of this layout: an archive of empty topics has nothing else."""
    try:
        return bool(strict_json.parse(storage.get(PATH))["layout"] == layout)
    except (ObjectNotFoundError, ValueError, KeyError, TypeError, CorruptDataError):
        return False


def surveyed_facts(storage: Storage, faults: list[Fault]) -> Facts:
    """The facts; if the object is damaged, no facts and a fault."""
    try:
        return read_facts(storage)
    except (CorruptDataError, UnsupportedFormatError) as error:
        faults.append(Fault(path=PATH, message=error.message))
        return Facts()


def read_facts(storage: Storage) -> Facts:
    """CorruptDataError, UnsupportedFormatError: the object is damaged, or of a later version."""
    try:
        text = bytes(storage.get(PATH))
    except ObjectNotFoundError:
        return Facts()
    with naming(storage.name_of(PATH)):
        try:
            return decode_facts(strict_json.parse(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptDataError(f"the facts about topics and groups cannot be read: {error}") from error


def decode_facts(document: dict[str, Any]) -> Facts:
    """ValueError, KeyError, TypeError, AttributeError: `encode_facts` has not written this."""
    version = document["version"]
    if version != _VERSION:
        raise UnsupportedFormatError(f"the facts have version {version!r}; version 1 is known")
    topics = {
        name: ForeignTopic(
            name=name,
            partition_count=_number(topic.get("partition_count")),
            replication_factor=_number(topic.get("replication_factor")),
            configs={str(key): str(value) for key, value in topic.get("configs", {}).items()},
        )
        for name, topic in document.get("topics", {}).items()
    }
    cluster_id = document.get("cluster_id")
    return Facts(
        cluster_id=None if cluster_id is None else str(cluster_id),
        taken_at_ms=_number(document.get("taken_at_ms")),
        topics=topics,
        groups=tuple(_decode_group(group, offsets) for group, offsets in document.get("groups", {}).items()),
        log_ends=_decode_offsets(document.get("log_ends", {})),
        coverage=decode_coverage(document.get("offsets")),
    )


def _decode_group(group_id: str, topics: dict[str, dict[str, int]]) -> ForeignGroup:
    return ForeignGroup(group_id=group_id, offsets=_decode_offsets(topics))


def _decode_offsets(topics: dict[str, dict[str, int]]) -> dict[TopicPartition, int]:
    offsets = {}
    for topic, partitions in topics.items():
        for partition, offset in partitions.items():
            number, next_offset = _number(int(partition)), _number(offset)
            if number is None or next_offset is None:
                raise ValueError("an offset is missing")
            offsets[TopicPartition(topic=topic, partition=number)] = next_offset
    return offsets


def _number(value: Any) -> int | None:  # noqa: ANN401 - JSON
    if value is not None and (type(value) is not int or not 0 <= value <= INT64_MAX):
        raise ValueError(f"{value!r} is not a possible number")
    return value


def write_facts(
    storage: Storage, survey: Survey, facts: ClusterFacts, coverage: Mapping[TopicPartition, Coverage]
) -> None:
    """Writes the new facts over the old ones. If the source has no groups at all, the old ones are kept."""
    document = encode_facts(survey, facts, coverage)
    storage.replace(PATH, json.dumps(document, indent=2, ensure_ascii=False).encode())


def encode_facts(survey: Survey, facts: ClusterFacts, coverage: Mapping[TopicPartition, Coverage]) -> dict[str, Any]:
    groups = {group.group_id: by_topic(group.offsets) for group in facts.groups or survey.groups if group.offsets}
    topics = {
        name: {
            "partition_count": topic.partition_count,
            "replication_factor": topic.replication_factor,
            "configs": dict(topic.configs),
        }
        for name, topic in sorted({**survey.topics, **facts.topics}.items())
    }
    return {
        "version": _VERSION,
        "layout": survey.layout,
        "cluster_id": facts.cluster_id or survey.cluster_id,
        "taken_at_ms": facts.taken_at_ms or survey.taken_at_ms,
        "topics": topics,
        "groups": groups,
        "log_ends": by_topic(facts.log_ends),
        "offsets": encode_coverage(coverage),
    }


def publish_tree(
    storage: Storage, survey: Survey, written: Sequence[ForeignSegment], facts: ClusterFacts, *, levels: int = 0
) -> None:
    """Publish what is known besides the records, and which offsets segments hold: only this shows that one is lost.

    The segments themselves count as soon as they exist. `levels`: the folders between a partition's and its segments.
    """
    coverage = extended_by(read_facts(storage).coverage, survey, written, facts.gaps, levels=levels)
    write_facts(storage, survey, facts, coverage)


def prune_tree(storage: Storage, survey: Survey, going: Collection[str]) -> None:
    """Delete old segments. Before that, the list of what the tree must hold forgets them."""
    known = read_facts(storage).coverage
    gone = by_partition(segment for segment in survey.segments if segment.path in going)
    changed = {where: without_segments(known[where], segments) for where, segments in gone.items() if where in known}
    if changed:
        write_facts(storage, survey, ClusterFacts(), {**known, **changed})
    storage.delete(going)


def survey_tree(
    layout: str,
    segments: Sequence[ForeignSegment],
    facts: Facts,
    faults: Sequence[Fault],
    *,
    topics: Iterable[str],
    doubts: Sequence[Doubt] = (),
    details: Mapping[str, Any] | None = None,
) -> Survey:
    """Return the survey of a tree with these segments, in order and without overlaps, and these facts."""
    verdict = judge(segments, facts.coverage)
    positions = {where: coverage.end_offset for where, coverage in facts.coverage.items()}
    for segment in segments:
        positions[segment.where] = max(positions.get(segment.where, 0), segment.end_offset)
    return Survey(
        layout=layout,
        segments=tuple(segments),
        topics={**{topic: ForeignTopic(name=topic) for topic in topics}, **facts.topics},
        gaps=verdict.gaps,
        groups=facts.groups,
        positions=positions,
        cluster_id=facts.cluster_id,
        taken_at_ms=facts.taken_at_ms,
        faults=(*faults, *verdict.faults),
        doubts=(*verdict.doubts, *doubts),
        details=details or {},
    )


def check_records(
    segment: ForeignSegment, batches: Iterable[pa.RecordBatch], *, first: int | None = None, end: int | None = None
) -> Iterator[Fault]:
    """Yield the faults of a segment that only its records show. `batches` are all of them, as they are read.

    `first`: the offset of its first record, `end`: the offset after its last one; None: any will do.
    """
    records, begin, last = 0, None, segment.base_offset - 1
    try:
        for batch in batches:
            offset = number_column(batch.column("offset"))
            if int(offset[0]) <= last:
                yield Fault(path=segment.path, message="has offsets that do not rise", offset=int(offset[0]))
            begin = int(offset[0]) if begin is None else begin
            records, last = records + len(offset), int(offset[-1])
    except (CorruptDataError, RefusedError, ObjectNotFoundError) as error:
        yield Fault(path=segment.path, message=error.message, offset=max(last + 1, error.offset or 0))
        return
    if records != (records if segment.records is None else segment.records) or (
        (first, end) != (None if first is None else begin, None if end is None else last + 1)
    ):
        message = f"has {records} records from offset {begin} to {last}, which is not what it says of itself"
        yield Fault(path=segment.path, message=message, offset=begin)
