"""`manifest.json` and `consumer-groups-snapshot.json` as values. Damage to a part is a fault of that part alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import CorruptDataError
from maxbrod.layouts.documents import INT32_MAX, INT64_MAX, Fields, known_topic
from maxbrod.layouts.foreign import Fault, ForeignGap, ForeignGroup, ForeignSegment, ForeignTopic
from maxbrod.layouts.kbak.schema import path_of
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maxbrod.layouts.backups import Backup

CONTROL_SKIPPED: Final = "control_records_skipped"
_INT64_MIN: Final = -(1 << 63)
# The only reason that the tool itself has: the log no longer had these offsets.
_REASONS: Final = {"offset_out_of_range": "retention"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The values of a manifest. Segments of a partition are in order of offsets, without overlaps."""

    segments: tuple[ForeignSegment, ...]
    topics: dict[str, ForeignTopic]
    gaps: tuple[ForeignGap, ...]
    positions: dict[TopicPartition, int]
    faults: tuple[Fault, ...]


def parse_manifest(manifest: Fields, backup: Backup) -> Contents:
    """The readable parts of a manifest, and a fault for each of the others."""
    reader = _Reader(backup)
    for topic in manifest.objects("topics"):
        reader.add_topic(topic)
    return Contents(
        segments=tuple(reader.segments),
        topics=reader.topics,
        gaps=tuple(reader.gaps),
        positions=reader.positions,
        faults=tuple(reader.faults),
    )


class _Reader:
    def __init__(self, backup: Backup) -> None:
        self._backup = backup
        self.segments: list[ForeignSegment] = []
        self.topics: dict[str, ForeignTopic] = {}
        self.gaps: list[ForeignGap] = []
        self.positions: dict[TopicPartition, int] = {}
        self.faults: list[Fault] = []

    def add_topic(self, topic: Fields) -> None:
        try:
            name = known_topic(topic.text("name"), topic.object_name)
            if name in self.topics:
                raise topic.wrong("name", f"listed twice: {name}")
            configs = topic.inner("configurations").values
            self.topics[name] = ForeignTopic(
                name=name,
                partition_count=topic.optional_integer("original_partition_count", least=1, most=INT32_MAX),
                replication_factor=topic.optional_integer("source_replication_factor", least=1, most=INT32_MAX),
                configs={key: value for key, value in configs.items() if isinstance(value, str)},
            )
            partitions = topic.objects("partitions")
        except CorruptDataError as error:
            self._fault(topic, error)
            return
        for partition in partitions:
            self._add_partition(name, partition)

    def _add_partition(self, topic: str, partition: Fields) -> None:
        try:
            where = TopicPartition(topic=topic, partition=partition.integer("partition_id", most=INT32_MAX))
            if where in self.positions:
                raise partition.wrong("partition_id", f"listed twice: {where}")
            position = partition.integer("covered_through", least=-1, most=INT64_MAX - 1, default=-1) + 1
            gaps = [*self._gaps(where, partition, "gaps", 0), *self._gaps(where, partition, "pruned", 1)]
            listed = partition.objects("segments")
        except CorruptDataError as error:
            self._fault(partition, error)
            return
        segments = self._without_overlaps(list(self._segments(where, listed)))
        ends = [position, *(segment.end_offset for segment in segments), *(gap.end_offset for gap in gaps)]
        if max(ends) or listed:
            self.positions[where] = max(ends)
        self.segments += segments
        self.gaps += gaps

    def _gaps(self, where: TopicPartition, partition: Fields, name: str, inclusive: int) -> Iterable[ForeignGap]:
        for each in partition.objects(name):
            base = each.integer("start_offset")
            end = each.integer("end_offset", least=base, most=INT64_MAX - 1) + inclusive
            reason = each.text("reason", default="")
            if end > base:
                yield ForeignGap(
                    where=where,
                    base_offset=base,
                    end_offset=end,
                    reason="pruned" if inclusive else _REASONS.get(reason, reason or "unexplained"),
                )

    def _segments(self, where: TopicPartition, listed: Iterable[Fields]) -> Iterator[ForeignSegment]:
        for fields in listed:
            try:
                yield parse_segment(where, fields, self._backup)
            except CorruptDataError as error:
                self._fault(fields, error)

    def _without_overlaps(self, segments: Sequence[ForeignSegment]) -> list[ForeignSegment]:
        """A run that was resumed may have read some records twice. The earlier segment keeps them."""
        kept: list[ForeignSegment] = []
        for segment in sorted(segments, key=lambda one: (one.base_offset, -one.end_offset)):
            end = kept[-1].end_offset if kept else 0
            if not kept or segment.base_offset >= end:
                kept.append(segment)
                continue
            self.faults.append(
                Fault(
                    path=segment.path,
                    message="holds offsets that another has, too",
                    offset=segment.base_offset,
                    fatal=False,
                )
            )
            if segment.end_offset > end:
                kept.append(
                    replace(segment, base_offset=end, records=None, details={**segment.details, "from_offset": end})
                )
        return kept

    def _fault(self, fields: Fields, error: CorruptDataError) -> None:
        self.faults.append(Fault(path=self._backup.path("manifest.json"), message=f"{fields.place}: {error.message}"))


def parse_segment(where: TopicPartition, fields: Fields, backup: Backup) -> ForeignSegment:
    key = fields.text("key")
    start = fields.integer("start_offset")
    details: dict[str, Any] = {
        "key": key,
        "start_offset": start,
        "start_timestamp": fields.integer("start_timestamp", least=_INT64_MIN),
        "end_timestamp": fields.integer("end_timestamp", least=_INT64_MIN),
        "uncompressed_size": fields.integer("uncompressed_size", default=0),
    }
    if fields.values.get(CONTROL_SKIPPED) is not None:
        details[CONTROL_SKIPPED] = fields.integer(CONTROL_SKIPPED)
    sha256 = fields.text("sha256", default="")
    return ForeignSegment(
        where=where,
        path=path_of(backup, key, fields.object_name),
        base_offset=start,
        end_offset=fields.integer("end_offset", least=start, most=INT64_MAX - 1) + 1,
        records=fields.integer("record_count"),
        bytes=fields.integer("compressed_size", default=0),
        details={**details, "sha256": sha256} if sha256 else details,
    )


def parse_groups(snapshot: Fields) -> tuple[ForeignGroup, ...]:
    return tuple(
        ForeignGroup(group_id=group.text("group_id"), offsets=dict(_offsets(group.inner("offsets"))))
        for group in snapshot.objects("groups")
    )


def _offsets(topics: Fields) -> Iterator[tuple[TopicPartition, int]]:
    for topic in topics.values:
        partitions = topics.inner(topic)
        for name in partitions.values:
            partition = partitions.partition(name)
            # Brokers report -1 for a partition in which a group has committed nothing.
            offset = partitions.integer(name, least=-1)
            if offset >= 0:
                yield TopicPartition(topic=known_topic(topic, topics.object_name), partition=partition), offset
