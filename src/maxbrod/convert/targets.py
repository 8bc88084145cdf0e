"""The target of a conversion: an archive in our own layout, or in another tool's. One interface for both."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from maxbrod.archive.archive import open_for_writing
from maxbrod.archive.foreign_target import ForeignTarget, TargetRequest, facts_of
from maxbrod.archive.knowledge import Carried, RunKnowledge, carry, encode_carried
from maxbrod.archive.snapshot_document import RunFacts, encode, gaps_of
from maxbrod.archive.snapshots import Moment, find_moment
from maxbrod.catalog.rows import Gap, Row, Run, Segment, decode_rows, new_run_id
from maxbrod.convert.expressions import refuse_other, run_of_wave
from maxbrod.convert.plan.rows import convert_rows
from maxbrod.errors import RefusedError
from maxbrod.layouts.foreign import ClusterFacts, ForeignGap, Loss, PartitionSurvey, WriteOptions
from maxbrod.model import GapReason, PartitionId, TopicPartition, now_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from maxbrod.config import StorageConfig
    from maxbrod.convert.plan.parts import ConvertPart
    from maxbrod.transfer.task import Transferred
    from maxbrod.transform.plan import Transform


class Target(Protocol):
    @property
    def url(self) -> str: ...

    @property
    def options(self) -> WriteOptions: ...

    @property
    def losses(self) -> Sequence[Loss]: ...

    def position(self, part: ConvertPart) -> int | None:
        """The end offset of a partition in the target; None if the target has nothing of it."""

    def survey_of(self, part: ConvertPart) -> PartitionSurvey | None:
        """Return what the writer of the partition needs to know of a target in another tool's layout."""

    def publish(self, done: Sequence[tuple[ConvertPart, Transferred]]) -> None:
        """Make written parts visible. The caller leaves out failed parts and all later parts of their partitions."""

    def withdraw(self, ids: Collection[PartitionId]) -> None:
        """Remove what this conversion has published of these partitions, if the layout can do so."""

    def finish(
        self, moment: Moment, empty: Sequence[TopicPartition], *, failed: Collection[str], started_at_ms: int
    ) -> None:
        """Record what is known of the cluster. The snapshot has the ends of partitions without rows.

        `empty`: partitions that never had a record. `failed`: topics that were not converted completely.
        """

    def partition_count(self, topic: str) -> int | None:
        """Return how many partitions of a topic the target can record, with records or not; None: any number."""


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
        self._archive = open_for_writing(url, storage, before_creating=before_creating)
        refuse_other(self._archive, transform)
        self._transform = transform
        self._run_id = run_id
        self.url = self._archive.url
        self.options = options
        self.losses: tuple[Loss, ...] = ()
        found = self._archive.catalog.positions()
        self._positions = {each: position.end_offset for each, position in found.items()}
        self._names = {each.topic_id: position.topic for each, position in found.items()}
        self._before = find_moment(self._archive.storage, self._archive.catalog.runs(), None)
        self._committed = self._lacks_snapshot()
        """Whether a snapshot is due: there is none, or this run or a killed one has committed rows after it."""

    def _lacks_snapshot(self) -> bool:
        snapshot = self._before.snapshot
        return snapshot is None or any(snapshot.ends.get(each) != end for each, end in self._positions.items())

    def position(self, part: ConvertPart) -> int | None:
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
        del part

    def publish(self, done: Sequence[tuple[ConvertPart, Transferred]]) -> None:
        rows: list[Row] = []
        for part, each in done:
            otherwise = None if self._transform is None else GapReason.PRUNED
            rows += convert_rows(part.rows, each.slices, run_id=self._run_id, written_at=now_ms(), otherwise=otherwise)
            self._positions[part.id] = part.end
            self._names[part.topic_id] = part.topic
        if rows:
            if self._transform is not None:
                rows.append(run_of_wave(new_run_id(), self._transform))
            self._archive.catalog.commit(rows)
            self._committed = True

    def withdraw(self, ids: Collection[PartitionId]) -> None:
        rows = decode_rows(self._archive.catalog.rows())
        mine = [
            row
            for row in rows
            if isinstance(row, Segment | Gap)
            and row.run_id == self._run_id
            and PartitionId(topic_id=row.topic_id, partition=row.partition) in ids
        ]
        self._archive.catalog.commit([], replaced=mine)
        found = self._archive.catalog.positions()
        for each in ids:
            self._positions.pop(each, None)
            if each in found:
                self._positions[each] = found[each].end_offset

    def partition_count(self, topic: str) -> int | None:
        del topic
        return None

    def finish(
        self, moment: Moment, empty: Sequence[TopicPartition], *, failed: Collection[str], started_at_ms: int
    ) -> None:
        """The ends of partitions with rows are those of the target: the source may have more."""
        del empty, failed
        snapshot = moment.snapshot
        if snapshot is None or not self._committed:
            return
        path, at = f"snapshots/{self._run_id}.json.zst", now_ms()
        ends, topics = {**snapshot.ends, **self._positions}, {**snapshot.topics, **self._names}
        carried = None if moment.knowledge is None else encode_carried(self._carried(moment.knowledge, topics))
        converted = replace(
            snapshot,
            run_id=self._run_id,
            ends=ends,
            topics=topics,
            carried=carried,
            # The revisions and the runs of the source are not the target's.
            revisions=self._archive.catalog.revisions(),
            runs=(),
            firsts={each: held.first_offset for each, held in self._archive.catalog.positions().items()},
            gaps=gaps_of(row for row in self._archive.catalog.gaps(set(GapReason)) if row.run_id == self._run_id),
            run=RunFacts(
                started_at=started_at_ms, finished_at=at, statistics={}, commit=self._archive.catalog.version + 1
            ),
        )
        self._archive.storage.put(path, encode(converted))
        run = Run(run_id=self._run_id, started_at=started_at_ms, finished_at=at, snapshot=path, written_at=at)
        self._archive.catalog.commit([run])

    def _carried(self, source: RunKnowledge, topics: Mapping[str, str]) -> Carried:
        """What the source carries on, and what the target knew of topics that the source no longer has."""
        before = self._before.knowledge
        return source.carried if before is None else carry(before, source.cluster, topics, source.carried)


class OtherTarget:
    """An archive in another tool's layout. Every wave is published."""

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
        self._target = ForeignTarget(url, storage, request)
        self.url = self._target.url
        facts = ClusterFacts() if moment.cluster is None else facts_of(moment.cluster)
        known = {name: each for name, each in facts.topics.items() if name in topics}
        self._facts = replace(facts, topics=known, committed=committed)

    @property
    def options(self) -> WriteOptions:
        return self._target.options

    @property
    def losses(self) -> Sequence[Loss]:
        return self._target.losses

    def demand_acceptance(self) -> None:
        self._target.demand_acceptance()

    def position(self, part: ConvertPart) -> int | None:
        return self._target.survey.positions.get(part.where)

    def survey_of(self, part: ConvertPart) -> PartitionSurvey:
        return self._target.survey.of_partition(part.where)

    def publish(self, done: Sequence[tuple[ConvertPart, Transferred]]) -> None:
        segments = [segment for _, each in done for segment in each.segments]
        gaps = [
            ForeignGap(where=part.where, base_offset=row.base_offset, end_offset=row.end_offset, reason=str(row.reason))
            for part, _ in done
            for row in part.rows
            if isinstance(row, Gap)
        ]
        self._target.publish(segments, replace(self._facts, gaps=tuple(gaps)), unfinished=self._facts.topics.keys())

    def withdraw(self, ids: Collection[PartitionId]) -> None:
        """Published segments stay: the conversion continues after them."""

    def partition_count(self, topic: str) -> int | None:
        known = self._target.survey.topics.get(topic)
        held = [position.partition + 1 for position in self._target.survey.positions if position.topic == topic]
        return max([0 if known is None else known.partition_count or 0, *held])

    def finish(
        self, moment: Moment, empty: Sequence[TopicPartition], *, failed: Collection[str], started_at_ms: int
    ) -> None:
        """The waves have published all records; this adds groups and empty partitions."""
        del moment, started_at_ms
        self._target.publish((), replace(self._facts, empty=tuple(empty)), unfinished=failed)
