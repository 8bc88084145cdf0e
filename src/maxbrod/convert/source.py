"""The source of a conversion: the selected partitions, and what is wrong with the archive."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from maxbrod.archive.archive import open_archive
from maxbrod.archive.selection import Incarnation, newest_ids, select_names
from maxbrod.archive.snapshots import Moment, find_moment
from maxbrod.catalog.rows import Gap, Segment, decode_rows
from maxbrod.convert.plan.parts import ConvertPart
from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_INCOMPLETE, RefusedError
from maxbrod.layouts.foreign import UNCOMMITTED
from maxbrod.layouts.logdir.layout import CHECK_CRC
from maxbrod.layouts.registry import NATIVE
from maxbrod.model import GapReason, PartitionId, TopicPartition
from maxbrod.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from maxbrod.convert.run import ConvertRequest


class ConvertSource:
    """The archive as it was when it was opened, or last surveyed again."""

    def __init__(self, request: ConvertRequest) -> None:
        self._request = request
        self.unchecked = request.source_extra.get(CHECK_CRC) == "false"
        """Whether the survey skipped checksums, so that reading may meet unknown damage."""
        self._open(request.source_extra)

    def _open(self, extra: Mapping[str, str]) -> None:
        request = self._request
        self.archive = open_archive(request.source_url, request.source, layout=request.source_layout, extra=extra)
        self.moment: Moment = find_moment(self.archive.storage, self.archive.catalog.runs(), None)
        self.notices: list[Notice] = []

    def survey_with_checksums(self) -> None:
        """Open the archive again and check every checksum: damage becomes a gap, or is read from another copy."""
        self.unchecked = False
        self._open({**self._request.source_extra, CHECK_CRC: "true"})

    @property
    def layout(self) -> str:
        return self.archive.layout

    @property
    def is_committed(self) -> bool:
        """False if the archive may hold records of aborted transactions as ordinary ones."""
        return self.archive.survey is None or not self.archive.survey.details.get(UNCOMMITTED)

    def faults(self) -> Iterator[Notice]:
        """Yield what the source lacked, repaired or cannot prove, before it was converted."""
        survey = self.archive.survey
        if survey is None:
            return
        for fault in survey.faults:
            yield Notice(
                kind="damaged" if fault.fatal else "repaired",
                message=f"{fault.path}: {fault.message}",
                first_offset=fault.offset,
                end_offset=fault.offset,
                exit_code=EXIT_CORRUPT if fault.fatal else EXIT_DONE,
            )
        chosen = self._chosen(
            {segment.where.topic for segment in survey.segments} | {each.where.topic for each in survey.gaps}
        )
        for gap in survey.gaps:
            if gap.reason == GapReason.UNEXPLAINED and gap.where.topic in chosen:
                yield Notice(
                    kind="unexplained",
                    message="no segment holds them, for an unknown reason",
                    topic=gap.where.topic,
                    partition=gap.where.partition,
                    first_offset=gap.base_offset,
                    end_offset=gap.end_offset,
                    exit_code=EXIT_INCOMPLETE,
                )
        for doubt in survey.doubts:
            yield Notice(
                kind="unproved", message=doubt.what, topic=doubt.topic, partition=doubt.partition, hint=doubt.hint
            )

    def demand_acceptance(self, *, accepted: bool) -> None:
        """RefusedError: the archive has a doubt that can harm an application, and it is not accepted."""
        refused = [each for each in (self.archive.survey.doubts if self.archive.survey else ()) if each.refused]
        if refused and not accepted:
            raise RefusedError(
                str(refused[0]),
                operation="convert",
                object_name=self.archive.url,
                hint="give --accept-loss to convert it as it is",
            )

    def parts(self) -> Iterator[ConvertPart]:
        """Every selected partition. Other layouts have only names: of topics with the same name, only the newest."""
        rows = [row for row in decode_rows(self.archive.catalog.rows()) if isinstance(row, Segment | Gap)]
        names = {row.topic_id: row.topic for row in rows}
        chosen = self._chosen(names.values())
        selected = {topic_id for topic_id, name in names.items() if name in chosen}
        if self._request.to.layout != NATIVE:
            selected &= self._newest(rows)
        for row_id, group in groupby(rows, key=lambda row: (row.topic_id, row.partition)):
            found = tuple(group)
            if row_id[0] in selected:
                first = found[0]
                yield ConvertPart(topic=first.topic, topic_id=first.topic_id, partition=first.partition, rows=found)

    def _chosen(self, archived: Iterable[str]) -> Collection[str]:
        """The selected topics, of those with rows and those that are empty in the snapshot."""
        snapshot = self.moment.snapshot
        known = () if snapshot is None else snapshot.topics.values()
        return select_names({*archived, *known}, self._request.topics)

    def topics(self) -> dict[str, int]:
        """The partition count, with records or not, of each selected topic whose count the source knows."""
        snapshot, cluster = self.moment.snapshot, self.moment.cluster
        if snapshot is None or cluster is None:
            return {}
        chosen = set(self._chosen(())) & set(snapshot.topics.values())
        return {topic.name: topic.partition_count for topic in cluster.topics if topic.name in chosen}

    def empty(self, parts: Sequence[ConvertPart]) -> tuple[TopicPartition, ...]:
        """Partitions of these topics that have no rows and whose log never had a record, as far as is known."""
        snapshot = self.moment.snapshot
        ends = {} if snapshot is None else snapshot.ends
        ids = {} if snapshot is None else {name: topic_id for topic_id, name in snapshot.topics.items()}
        held = {part.where for part in parts}
        every = (
            TopicPartition(topic=name, partition=each) for name, count in self.topics().items() for each in range(count)
        )
        return tuple(
            where
            for where in every
            if where not in held and not ends.get(PartitionId(topic_id=ids[where.topic], partition=where.partition), 0)
        )

    def moment_for(self, parts: Sequence[ConvertPart]) -> Moment:
        """The moment without the ends of unconverted partitions: a backup would continue there and miss records.

        The target knows the ends of partitions with rows itself. Partitions without rows can have an end too.
        """
        snapshot = self.moment.snapshot
        if snapshot is None:
            return self.moment
        held, names = self.archive.catalog.positions(), self.topics()
        chosen = {part.topic_id for part in parts} | {key for key, name in snapshot.topics.items() if name in names}
        ends = {
            each: end
            for each, end in snapshot.ends.items()
            if each not in held and (each.topic_id in chosen or not self._request.topics)
        }
        # A conversion asks no cluster, so it advances no recovery point; and a part of it may fail.
        return replace(self.moment, snapshot=replace(snapshot, ends=ends, recovery_points={}, behind={}))

    def _newest(self, rows: Sequence[Segment | Gap]) -> set[str]:
        first: dict[str, Incarnation] = {}
        for row in rows:
            known = first.get(row.topic_id)
            if known is None or row.written_at < known.first_written_at:
                first[row.topic_id] = Incarnation(
                    topic=row.topic, topic_id=row.topic_id, first_written_at=row.written_at
                )
        newest = newest_ids(first.values(), self.moment.ranks)
        for each in first.values():
            if each.topic_id not in newest:
                message = f"an older topic of this name ({each.topic_id}) is left out: the layout knows names only"
                self.notices.append(Notice(kind="incarnation", message=message, topic=each.topic))
        return newest
