"""One run of a backup as a frozen value: what it has planned, proved and committed so far.

Each step of the run returns a newer value. Recovery points, lags and the report come from here. They count only what is
committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from maxbrod.archive.snapshots import Reach, behind, move_on, oldest
from maxbrod.backup.archive_state import ArchiveState
from maxbrod.backup.generations import KnownGenerations
from maxbrod.backup.plan.ranges import PartitionBackup
from maxbrod.backup.report import STORAGE, BackupReport, CapturedSchemas, TopicReport, add_up, is_partial
from maxbrod.catalog.rows import Gap, Row, Segment, new_run_id
from maxbrod.model import PartitionId, now_ms
from maxbrod.notices import Notice
from maxbrod.registry.stored import RegistryCapture

if TYPE_CHECKING:
    from maxbrod.backup.observation import Observed
    from maxbrod.backup.proof import Proved


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedTally:
    """The figures of rows, by topic id."""

    records: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    raw_bytes: Counter[str] = field(default_factory=Counter)
    gaps: Mapping[str, Counter[str]] = field(default_factory=dict)
    objects: frozenset[str] = frozenset()

    def plus(self, rows: Iterable[Segment | Gap]) -> ArchivedTally:
        records, stored, raw = Counter(self.records), Counter(self.bytes), Counter(self.raw_bytes)
        gaps = {topic_id: Counter(counts) for topic_id, counts in self.gaps.items()}
        paths = set()
        for row in rows:
            if isinstance(row, Gap):
                gaps.setdefault(row.topic_id, Counter())[row.reason] += row.end_offset - row.base_offset
                continue
            records[row.topic_id] += row.records
            stored[row.topic_id] += row.bytes
            raw[row.topic_id] += row.raw_bytes
            paths.add(row.path)
        return ArchivedTally(records=records, bytes=stored, raw_bytes=raw, gaps=gaps, objects=self.objects | paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupRun:
    """A run under way, or done."""

    run_id: str = field(default_factory=new_run_id)
    started_at_ms: int = field(default_factory=now_ms)
    present: frozenset[str] = frozenset()
    """The ids of all topics that the cluster has."""
    notices: tuple[Notice, ...] = ()
    interrupted: bool = False

    # Observed and planned
    planned: bool = False
    """True if the run knows what the cluster has."""
    plans: Mapping[PartitionId, PartitionBackup] = field(default_factory=dict)
    unanswered: Mapping[PartitionId, str] = field(default_factory=dict)
    """Chosen partitions whose leader did not report offsets, with the topic's name."""
    others: frozenset[PartitionId] = frozenset()
    """Chosen partitions that other writers back up."""
    deferred: frozenset[PartitionId] = frozenset()
    """Partitions that are left in the log until more has been written."""
    held_since_ms: Mapping[PartitionId, int | None] = field(default_factory=dict)
    """Partitions that open transactions hold back: when the oldest one began, None if unknown."""
    suspect: frozenset[PartitionId] = frozenset()
    """Partitions with damaged or unexplained offsets that the run should have read again, and did not."""

    # Proved, not committed
    rows: tuple[Segment | Gap, ...] = ()
    replaced: tuple[Gap, ...] = ()
    """Gaps that `rows` replace."""
    superseded: Mapping[PartitionId, tuple[Row, ...]] = field(default_factory=dict)
    """All rows of partitions whose log lost everything: a commit with new rows of the partition retires them."""

    registry: RegistryCapture | None = None
    """The schema registry as this run has captured it."""
    schemas: CapturedSchemas | None = None

    # Committed
    ends: Mapping[PartitionId, int] = field(default_factory=dict)
    """The end of each planned partition in the catalog."""
    archived: ArchivedTally = field(default_factory=ArchivedTally)
    explained: tuple[Gap, ...] = ()
    """The gaps among the committed rows: the run's snapshot lists them."""
    committed: bool = False
    """True if anything is committed."""

    def with_notices(self, notices: Iterable[Notice]) -> BackupRun:
        return replace(self, notices=(*self.notices, *notices))

    def with_plans(
        self, observed: Observed, plans: Mapping[PartitionId, PartitionBackup], ends: Mapping[PartitionId, int]
    ) -> BackupRun:
        """`ends` is how far the catalog reaches."""
        unanswered = {place: topic for place, topic in self.unanswered.items() if place not in plans}
        return replace(
            self,
            planned=True,
            plans={**self.plans, **plans},
            unanswered={**unanswered, **observed.unanswered},
            ends={**self.ends, **{partition: ends[partition] for partition in plans}},
        )

    def with_proved(self, proved: Proved) -> BackupRun:
        # Waves that meet the same error of the store report it once.
        new = (notice for notice in proved.notices if notice.kind != STORAGE or notice not in self.notices)
        return replace(
            self,
            rows=(*self.rows, *proved.rows),
            replaced=(*self.replaced, *proved.replaced),
            notices=(*self.notices, *new),
        )

    def to_supersede(self, *, everything: bool) -> set[PartitionId]:
        """The partitions whose old rows the next commit retires: those that it has new rows of, or all.

        The commit of the run's own row retires all of them: its snapshot says how far the archive reaches.
        """
        new = {row.id for row in self.rows if self.superseded}
        return {partition for partition in self.superseded if everything or partition in new}

    def to_retire(self, *, everything: bool) -> list[Row]:
        """The rows that the next commit retires."""
        partitions = self.to_supersede(everything=everything)
        return [
            *self.replaced,
            *(row for partition in self.superseded if partition in partitions for row in self.superseded[partition]),
        ]

    def after_commit(self, ends: Mapping[PartitionId, int], *, everything: bool) -> BackupRun:
        """The run once its rows are committed and the catalog reaches to these ends."""
        retired = self.to_supersede(everything=everything)
        return replace(
            self,
            rows=(),
            replaced=(),
            superseded={place: rows for place, rows in self.superseded.items() if place not in retired},
            ends={**self.ends, **{partition: ends[partition] for partition in self.plans}},
            archived=self.archived.plus(self.rows),
            explained=(*self.explained, *(row for row in self.rows if isinstance(row, Gap))),
            committed=True,
        )

    def without_uncommitted(self) -> BackupRun:
        """The run without rows that the catalog may not have."""
        return replace(self, rows=(), replaced=())

    @property
    def partial(self) -> bool:
        """True if the run cannot know that it has archived every topic that it was to archive."""
        return is_partial(self.notices)

    def reaches(self) -> dict[PartitionId, Reach]:
        """Return how far the run has come with every partition that it chose."""
        grave = {
            (notice.topic, notice.partition) for notice in self.notices if notice.exit_code and notice.topic is not None
        }
        # Most runs have none of these, and of a thousand partitions each look-up costs a millisecond.
        suspect, deferred, held = self.suspect, self.deferred, self.held_since_ms
        answered = {
            partition: Reach(
                end=plan.end,
                archived=self.ends.get(partition, plan.first),
                sound=not (grave and grave & {(plan.state.topic, partition.partition), (plan.state.topic, None)})
                and not (suspect and partition in suspect),
                put_off=bool(deferred) and partition in deferred,
                held_back=bool(held) and partition in held,
                held_since_ms=held.get(partition) if held else None,
            )
            for partition, plan in self.plans.items()
        }
        return {**answered, **{place: Reach(end=None, archived=0) for place in self.unanswered}}

    def recovery_points(
        self, before: Mapping[PartitionId, int | None], reaches: Mapping[PartitionId, Reach] | None = None
    ) -> dict[PartitionId, int | None]:
        """The recovery points after the run. Other partitions keep theirs while the cluster has them.

        Partitions that other writers have not begun with have none: they count as well.
        Here and below, `reaches` saves finding them again.
        """
        kept = {partition: point for partition, point in before.items() if self._may_be_there(partition)}
        mine = {
            partition: move_on(before.get(partition), reach, began_at_ms=self.started_at_ms)
            for partition, reach in (self.reaches() if reaches is None else reaches).items()
        }
        return {**dict.fromkeys(self.others), **kept, **mine}

    def recovery_point(self, points: Mapping[PartitionId, int | None], *, with_others: bool = False) -> int | None:
        """The recovery point of the run's partitions; None if there are none, as nothing is archived then.

        None also if topics may be hidden. `with_others`: of all chosen partitions, also of those of other writers.
        """
        if self.partial:
            return None
        chosen = {*self.plans, *self.unanswered, *(self.others if with_others else ())}
        return oldest(points.get(each) for each in chosen) if chosen else None

    def behind(
        self, before: Mapping[PartitionId, int | None], reaches: Mapping[PartitionId, Reach] | None = None
    ) -> dict[PartitionId, int | None]:
        """Partitions that are archived less far than planned. Those that the run did not choose stay as they were."""
        reaches = self.reaches() if reaches is None else reaches
        kept = {
            partition: end
            for partition, end in before.items()
            if partition not in reaches and self._may_be_there(partition)
        }
        return {**kept, **behind(reaches)}

    def _may_be_there(self, partition: PartitionId) -> bool:
        """True if the cluster may have it: one that is hidden is not gone."""
        return self.partial or partition.topic_id in self.present

    def lags(self) -> dict[str, int | None] | None:
        """For each topic, how many offsets the cluster has and the archive lacks; None if unknown."""
        if not self.planned:
            return None
        names = self._names()
        found: dict[str, int | None] = {}
        for topic_id, lag in self._lags_by_id().items():
            topic = names[topic_id]
            found[topic] = add_up((found.get(topic, 0), lag))
        return {
            **found,
            **dict.fromkeys(notice.topic for notice in self.notices if notice.topic and is_partial([notice])),
        }

    def report(self, archive: str, version: int, recovery_point_ms: int | None) -> BackupReport:
        lags, archived = self._lags_by_id(), self.archived
        partitions = Counter(partition.topic_id for partition in {*self.plans, *self.unanswered})
        topics = tuple(
            TopicReport(
                topic=topic,
                topic_id=topic_id,
                partitions=partitions[topic_id],
                records=archived.records[topic_id],
                bytes=archived.bytes[topic_id],
                raw_bytes=archived.raw_bytes[topic_id],
                gaps=dict(archived.gaps.get(topic_id, {})),
                waiting=lags[topic_id],
            )
            for topic, topic_id in sorted((topic, topic_id) for topic_id, topic in self._names().items())
        )
        return BackupReport(
            run_id=self.run_id,
            archive=archive,
            started_at_ms=self.started_at_ms,
            finished_at_ms=now_ms(),
            topics=topics,
            notices=self.notices,
            objects=len(archived.objects),
            version=version,
            committed=self.committed,
            recovery_point_ms=recovery_point_ms,
            planned=self.planned,
            schemas=self.schemas,
            of_partitions=len({*self.plans, *self.unanswered, *self.others}) if self.others else None,
        )

    def _names(self) -> dict[str, str]:
        """The name of each topic id of the run."""
        planned = {partition.topic_id: plan.state.topic for partition, plan in self.plans.items()}
        return {**planned, **{partition.topic_id: topic for partition, topic in self.unanswered.items()}}

    def _lags_by_id(self) -> dict[str, int | None]:
        lags: dict[str, int] = dict.fromkeys(self._names(), 0)
        for partition, plan in self.plans.items():
            lags[partition.topic_id] += max(plan.state.high_watermark - self.ends.get(partition, plan.first), 0)
        return {**lags, **dict.fromkeys(place.topic_id for place in self.unanswered)}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietRun:
    """A run that found the archive complete and wrote nothing: if the next one observes the same, so does that.

    Most intervals of a backup that follows are such. `observation.observe` then returns the same value as in the last
    run, and everything that was derived from it holds again, except for the times.
    """

    observed: Observed
    run: BackupRun
    lags: Mapping[str, int | None] | None
    _report: BackupReport
    _other_points: Mapping[PartitionId, int | None]
    """The recovery points of partitions that the run did not choose."""

    def again(self, run: BackupRun) -> BackupRun:
        """A run that has just observed the same, once it has planned."""
        return replace(self.run, run_id=run.run_id, started_at_ms=run.started_at_ms, notices=run.notices, schemas=None)

    def recovery_points(self, run: BackupRun) -> dict[PartitionId, int | None]:
        """The recovery points after such a run: everything that it chose is archived as of its start."""
        return {**self._other_points, **dict.fromkeys(self.run.plans, run.started_at_ms)}

    def report(self, run: BackupRun, version: int) -> BackupReport:
        return replace(
            self._report,
            run_id=run.run_id,
            started_at_ms=run.started_at_ms,
            finished_at_ms=now_ms(),
            notices=run.notices,
            schemas=run.schemas,
            version=version,
            recovery_point_ms=run.started_at_ms,
        )


def quiet_run(
    observed: Observed,
    run: BackupRun,
    report: BackupReport,
    reaches: Mapping[PartitionId, Reach],
    points: Mapping[PartitionId, int | None],
) -> QuietRun | None:
    """The run, if the next one would end the same with what it has observed; None if something is left to do.

    `points` are the recovery points after the run. Damage and open transactions are looked at again in every run.
    """
    if run.committed or run.interrupted or report.exit_code or not run.plans:
        return None
    if not all(reach.complete and not reach.held_back and not reach.put_off for reach in reaches.values()):
        return None
    if any(plan.state.high_watermark > plan.state.end for plan in run.plans.values()):
        return None
    return QuietRun(
        observed=observed,
        run=run,
        lags=run.lags(),
        _report=report,
        _other_points={partition: point for partition, point in points.items() if partition not in run.plans},
    )


class BackupState:
    """The three values that the steps of a run replace, so that each step sees what the last one has left.

    An error leaves them at the last step that succeeded.
    """

    def __init__(self) -> None:
        self.known = ArchiveState()
        """The state of the archive, for any number of runs."""
        self.generations = KnownGenerations()
        """Also for any number of runs."""
        self.run = BackupRun()
        """The work that this run has done."""

    def note(self, *notices: Notice) -> None:
        self.run = self.run.with_notices(notices)

    def accept(self, proved: Proved) -> None:
        """Keep proved rows for the next commit."""
        self.known = self.known.with_held(proved.held)
        self.run = self.run.with_proved(proved)
