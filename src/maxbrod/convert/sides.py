"""Both sides of a conversion: the source with what is wrong with it, and the target in our own or another layout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Final

from maxbrod.archive.archive import Archive, open_archive, open_for_writing
from maxbrod.archive.erasures import put_erasure, read_erasures
from maxbrod.archive.foreign_target import ForeignTarget, TargetRequest, facts_of
from maxbrod.archive.knowledge import carry, encode_carried
from maxbrod.archive.selection import Incarnation, newest_ids, select_names
from maxbrod.archive.snapshot_document import RunFacts, encode, gaps_of, snapshot_path
from maxbrod.archive.snapshots import Moment, find_moment
from maxbrod.catalog.rows import Gap, Row, Run, Segment, decode_rows, new_run_id
from maxbrod.config import StorageConfig
from maxbrod.convert.options import ConvertOptions
from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_INCOMPLETE, RefusedError
from maxbrod.layouts.foreign import UNCOMMITTED, ClusterFacts, ForeignGap, Loss, Survey, WriteOptions
from maxbrod.layouts.logdir.format import CHECK_CRC
from maxbrod.layouts.registry import NATIVE
from maxbrod.model import GapReason, PartitionId, TopicPartition, now_ms
from maxbrod.notices import Notice
from maxbrod.registry.stored import copy_registry
from maxbrod.transfer.plan import ConvertPart, convert_rows
from maxbrod.transfer.task import Transferred, native_compression
from maxbrod.transform.plan import Transform
from maxbrod.work.report import about

_TRANSFORM: Final = "transform"


class ConvertSource:
    """The archive as it was when it was opened, or last surveyed again."""

    def __init__(self, url: str, storage: StorageConfig, options: ConvertOptions) -> None:
        self._url, self._storage, self._options = url, storage, options
        self.unchecked = options.from_options.get(CHECK_CRC) == "false"
        """True if the survey skipped checksums, so that reading may meet unknown damage."""
        self._open(options.from_options)

    def _open(self, extra: Mapping[str, str]) -> None:
        self.archive = open_archive(
            self._url, self._storage, layout=self._options.from_layout, extra=extra, records=True
        )
        self.moment: Moment = find_moment(self.archive.storage, self.archive.catalog.runs(), None)
        self.notices: list[Notice] = []

    def survey_with_checksums(self) -> None:
        """Open the archive again and check every checksum: damage becomes a gap, or is read from another copy."""
        self.unchecked = False
        self._open({**self._options.from_options, CHECK_CRC: "true"})

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
            {segment.where.topic for segment in survey.segments} | {gap.where.topic for gap in survey.gaps}
        )
        for gap in survey.gaps:
            if gap.reason == GapReason.UNEXPLAINED and gap.where.topic in chosen:
                message, offsets = "no segment holds them, for an unknown reason", (gap.base_offset, gap.end_offset)
                yield about(gap.where, "unexplained", message, offsets, exit_code=EXIT_INCOMPLETE)
        for doubt in survey.doubts:
            yield Notice(
                kind="unproved", message=doubt.what, topic=doubt.topic, partition=doubt.partition, hint=doubt.hint
            )

    def demand_acceptance(self) -> None:
        """RefusedError: the archive has a doubt that can harm an application, and it is not accepted."""
        refused = [doubt for doubt in (self.archive.survey.doubts if self.archive.survey else ()) if doubt.refused]
        if refused and not self._options.accept_loss:
            raise RefusedError(
                str(refused[0]),
                operation="convert",
                object_name=self.archive.url,
                hint="give --accept-loss to convert it as it is",
            )

    def parts(self) -> Iterator[ConvertPart]:
        """Every selected partition. Other layouts have only names: of topics with the same name, only the newest."""
        erasures = self.archive.erasures()
        rows = [
            erasures.explained(row)
            for row in decode_rows(self.archive.catalog.rows())
            if isinstance(row, Segment | Gap)
        ]
        names = {row.topic_id: row.topic for row in rows}
        chosen = self._chosen(names.values())
        selected = {topic_id for topic_id, name in names.items() if name in chosen}
        if self._options.to != NATIVE:
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
        return select_names({*archived, *known}, self._options.topics)

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
            TopicPartition(topic=name, partition=number)
            for name, count in self.topics().items()
            for number in range(count)
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
            partition: end
            for partition, end in snapshot.ends.items()
            if partition not in held and (partition.topic_id in chosen or not self._options.topics)
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
        for incarnation in first.values():
            if incarnation.topic_id not in newest:
                message = (
                    f"an older topic of this name ({incarnation.topic_id}) is left out: the layout knows names only"
                )
                self.notices.append(Notice(kind="incarnation", message=message, topic=incarnation.topic))
        return newest


class NativeTarget:
    """An archive in our own layout. Every wave is a commit; the run's row and its snapshot come last."""

    def __init__(
        self,
        url: str,
        storage: StorageConfig,
        options: WriteOptions,
        *,
        run_id: str,
        transform: Transform | None = None,
        before_creating: Callable[[], object] = lambda: None,
    ) -> None:
        native_compression(options)  # An unknown codec is refused before anything is created.
        self._archive = open_for_writing(url, storage, before_creating=before_creating)
        self._transform = transform
        self._refuse_other()
        self._run_id = run_id
        self.url = self._archive.url
        self.options = options
        self.losses: tuple[Loss, ...] = ()
        found = self._archive.catalog.positions()
        self._positions = {partition: position.end_offset for partition, position in found.items()}
        self._names = {partition.topic_id: position.topic for partition, position in found.items()}
        self._before = find_moment(self._archive.storage, self._archive.catalog.runs(), None)
        snapshot = self._before.snapshot
        self._committed = snapshot is None or any(
            snapshot.ends.get(partition) != end for partition, end in self._positions.items()
        )
        """True if a snapshot is due: there is none, or this run or a killed one has committed rows after it."""

    def _refuse_other(self) -> None:
        """RefusedError: the target's records went through other expressions, or through none."""
        mine = None if self._transform is None else asdict(self._transform)
        known = [run.statistics.get(_TRANSFORM) for run in self._archive.catalog.runs()]
        # Runs without expressions end a conversion, or had none.
        recorded = [value for value in known if value is not None]
        other = any(value != mine for value in recorded) or (mine is not None and not recorded)
        if other and self._archive.catalog.positions():
            raise RefusedError(
                "the records of the target went through other expressions, or through none",
                operation="convert",
                object_name=self._archive.url,
                hint="give an empty folder, or the same --where and --select as before",
            )

    def position(self, part: ConvertPart) -> int | None:
        """Return the end offset of a partition in the target; None if the target has nothing of it."""
        found = self._positions.get(part.id)
        if found is not None and any(row.base_offset < found < row.end_offset for row in part.rows):
            raise RefusedError(
                f"the target ends at {found}, within a row of the source: it was converted from another archive",
                operation="convert",
                object_name=str(part.where),
                offset=found,
                hint="give an empty folder",
            )
        return found

    def survey_of(self, part: ConvertPart) -> None:
        """Return what the writer of the partition needs to know of a target in another tool's layout."""
        del part

    def add(self, done: Sequence[tuple[ConvertPart, Transferred]]) -> None:
        """Make written parts visible. The caller leaves out failed parts and all later parts of their partitions."""
        rows: list[Row] = []
        for part, outcome in done:
            otherwise = None if self._transform is None else GapReason.PRUNED
            rows += convert_rows(
                part.rows, outcome.slices, run_id=self._run_id, written_at=now_ms(), otherwise=otherwise
            )
            self._positions[part.id] = part.end
            self._names[part.topic_id] = part.topic
        if rows:
            if self._transform is not None:
                # Every wave records its expressions, so that no later run can add records that went through others.
                at, statistics = now_ms(), {_TRANSFORM: asdict(self._transform)}
                rows.append(
                    Run(
                        run_id=new_run_id(),
                        started_at=at,
                        finished_at=at,
                        snapshot=None,
                        statistics=statistics,
                        written_at=at,
                    )
                )
            self._archive.catalog.commit(rows)
            self._committed = True

    def withdraw(self, ids: Collection[PartitionId]) -> None:
        """Remove what this conversion has published of these partitions, if the layout can do so."""
        rows = decode_rows(self._archive.catalog.rows())
        mine = [row for row in rows if isinstance(row, Segment | Gap) and row.run_id == self._run_id and row.id in ids]
        self._archive.catalog.commit([], replaced=mine)
        found = self._archive.catalog.positions()
        for partition in ids:
            self._positions.pop(partition, None)
            if partition in found:
                self._positions[partition] = found[partition].end_offset

    def partition_count(self, topic: str) -> int | None:
        """Return how many partitions of a topic the target can record, with records or not; None: any number."""
        del topic
        return None

    def bring_erasures(self, source: Archive) -> None:
        """Copy the ledger of erasures: what an earlier conversion brought may have records that were erased since."""
        known = {erasure.id for erasure in read_erasures(self._archive.storage).documents}
        for erasure in source.erasures().documents:
            if erasure.id not in known:
                put_erasure(self._archive.storage, erasure)

    def bring_registry(self, source: Archive, moment: Moment) -> None:
        """Copy the captured schema registry, which the snapshot of `finish` names."""
        copy_registry(source.storage, self._archive.storage, moment.snapshot)

    def finish(
        self, moment: Moment, empty: Sequence[TopicPartition], *, failed: Collection[str], started_at_ms: int
    ) -> None:
        """Record what is known of the cluster. The snapshot has the ends of partitions without rows.

        `empty`: partitions that never had a record. `failed`: topics that were not converted completely.
        The ends of partitions with rows are those of the target: the source may have more.
        """
        del empty, failed
        snapshot = moment.snapshot
        if snapshot is None or not self._committed:
            return
        at = now_ms()
        ends, topics = {**snapshot.ends, **self._positions}, {**snapshot.topics, **self._names}
        known, before = moment.knowledge, self._before.knowledge
        # What the source carries on, and what the target knew of topics that the source no longer has.
        carried = None if known is None else known.carried
        if known is not None and before is not None:
            carried = carry(before, known.cluster, topics, known.carried)
        converted = replace(
            snapshot,
            run_id=self._run_id,
            ends=ends,
            topics=topics,
            carried=None if carried is None else encode_carried(carried),
            # The revisions and the runs of the source are not the target's.
            revisions=self._archive.catalog.revisions(),
            runs=(),
            firsts={partition: held.first_offset for partition, held in self._archive.catalog.positions().items()},
            gaps=gaps_of(row for row in self._archive.catalog.gaps(set(GapReason)) if row.run_id == self._run_id),
            run=RunFacts(
                started_at=started_at_ms, finished_at=at, statistics={}, commit=self._archive.catalog.version + 1
            ),
        )
        storage, data = self._archive.storage, encode(converted)
        path = snapshot_path(self._run_id, data, signed=storage.signing is not None)
        storage.put(path, data)
        run = Run(run_id=self._run_id, started_at=started_at_ms, finished_at=at, snapshot=path, written_at=at)
        self._archive.catalog.commit([run])


class OtherTarget(ForeignTarget):
    """An archive in another tool's layout, as a NativeTarget is one. Every wave is published."""

    def __init__(
        self,
        url: str,
        storage: StorageConfig,
        request: TargetRequest,
        moment: Moment,
        *,
        topics: Collection[str],
        committed: bool = True,
    ) -> None:
        """`topics` are the converted ones; `committed`: they hold no record of an aborted transaction."""
        super().__init__(url, storage, request)
        facts = ClusterFacts() if moment.cluster is None else facts_of(moment.cluster)
        known = {name: topic for name, topic in facts.topics.items() if name in topics}
        self._facts = replace(facts, topics=known, committed=committed)

    def position(self, part: ConvertPart) -> int | None:
        return self.survey.positions.get(part.where)

    def survey_of(self, part: ConvertPart) -> Survey:
        return self.survey.of_partition(part.where)

    def add(self, done: Sequence[tuple[ConvertPart, Transferred]]) -> None:
        segments = [segment for _, outcome in done for segment in outcome.segments]
        gaps = [
            ForeignGap(where=part.where, base_offset=row.base_offset, end_offset=row.end_offset, reason=str(row.reason))
            for part, _ in done
            for row in part.rows
            if isinstance(row, Gap)
        ]
        self.publish(segments, replace(self._facts, gaps=tuple(gaps)), unfinished=self._facts.topics.keys())

    def withdraw(self, ids: Collection[PartitionId]) -> None:
        """Published segments stay: the conversion continues after them."""

    def partition_count(self, topic: str) -> int | None:
        known = self.survey.topics.get(topic)
        held = [position.partition + 1 for position in self.survey.positions if position.topic == topic]
        return max([0 if known is None else known.partition_count or 0, *held])

    def finish(
        self, moment: Moment, empty: Sequence[TopicPartition], *, failed: Collection[str], started_at_ms: int
    ) -> None:
        """The waves have published all records; this adds groups and empty partitions."""
        del moment, started_at_ms
        self.publish((), replace(self._facts, empty=tuple(empty)), unfinished=failed)
