"""Backs up a cluster in another tool's layout. That layout records less than ours, so less can be proved.

Each wave is published before the next begins: whole partitions up to an offset. If a run is killed, the next one
continues after the last published offset. These layouts keep no leader epochs: a log that ends before the archive, or a
topic that was created again, is refused (see `truncation.py` for our own layout).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Unpack

from maxbrod.archive.foreign_target import ForeignTarget, TargetRequest, facts_of
from maxbrod.archive.snapshots import Reach, move_on, oldest
from maxbrod.archive.surveyed import SurveyedCatalog, topic_id_for
from maxbrod.backup.base import BackupBase
from maxbrod.backup.observation import Observed, observe
from maxbrod.backup.plan.ranges import PartitionBackup, RollSchedule, plan_partition
from maxbrod.backup.plan.starts import AtTime, Earliest, Latest
from maxbrod.backup.report import BackupReport, TopicReport, add_up, is_partial, stopped
from maxbrod.catalog.rows import new_run_id
from maxbrod.config import Config
from maxbrod.errors import EXIT_FAILED, EXIT_INCOMPLETE, StoppedError, UsageError
from maxbrod.kafka.state.cluster_state import ClusterState
from maxbrod.layouts.foreign import ClusterFacts, ForeignGap, ForeignSegment
from maxbrod.model import GapReason, PartitionId, TopicPartition, now_ms
from maxbrod.notices import Notice, worst_exit_code
from maxbrod.transfer.task import TransferItem, Transferred, TransferSettings, run_transfer_task
from maxbrod.work.progress import Meter
from maxbrod.work.report import about
from maxbrod.work.windows import Window, next_windows, spread
from maxbrod.work.work import Means

FAILED: Final = "failed"
"""The kind of notice about a partition that could not be read or written."""
_PUBLISH_EVERY_MS: Final = 60_000
_ELSEWHERE: Final = "back it up to another place: this layout cannot distinguish two topics of one name"


@dataclass(slots=True, kw_only=True)
class _Publication:
    """The offsets that a run has published so far, and those that are left."""

    left: dict[TopicPartition, Window]
    ends: dict[TopicPartition, int]
    """The published end of each partition. Partitions that are not written are missing."""
    topics: dict[str, TopicReport]
    notices: list[Notice]
    objects: int = 0


class ForeignBackup(BackupBase):
    """A backup into an archive of another tool's layout."""

    def __init__(self, config: Config, request: TargetRequest, **means: Unpack[Means]) -> None:
        super().__init__(config, **means)
        if config.backup.schema_registry is not None:
            raise UsageError(
                f"the layout {request.layout} has no place for a schema registry",
                hint="leave out --schema-registry, or back up into maxbrod's own layout",
            )
        self.target = self._open_target(request)
        self.losses = self.target.losses
        self._layout = request.layout
        self._ran = False
        self._reached: Mapping[TopicPartition, int] | None = None
        """The ends of the logs, if the last run has reached the end of every one."""
        # Recovery points as this process has seen them: the layout records none.
        self._points: dict[PartitionId, int | None] = {}
        self._committed: Mapping[TopicPartition, int] = {}
        """Up to where another place than the archive says that partitions are archived."""
        self._read: dict[TopicPartition, tuple[int, int]] = {}
        """The end of the archive after a partition was read, and the offset up to which it was read."""
        self._deleted: dict[TopicPartition, list[ForeignGap]] = {}
        """The offsets that the source had deleted before this run read them."""
        self._published: ClusterFacts | None = None
        self._published_at_ms = 0

    def _open_target(self, request: TargetRequest) -> ForeignTarget:
        return ForeignTarget(self.archive_url, self.config.storage, request)

    def run(self, *, demand_topics: bool = True, waiting: RollSchedule | None = None) -> BackupReport:
        """Bring the archive up to date, except for partitions that `waiting` defers."""
        return self._back_up(self.capture(), demand_topics=demand_topics, waiting=waiting)

    def _back_up(
        self, cluster: ClusterState, *, demand_topics: bool, waiting: RollSchedule | None = None
    ) -> BackupReport:
        self.lags = None
        self._reached = None
        self.target.demand_acceptance()
        if self._ran:
            self.target.look_again()
        self._ran = True
        self.tell("planning")
        run_id, started_at_ms = new_run_id(), now_ms()
        observed = observe(
            self.client,
            SurveyedCatalog(self.target.url, ()),
            self.choose(demand=demand_topics, cluster=cluster),
            held={},
            compacted=(),
            start=self.start,
            patience_s=self.config.patience,
        )
        self.observed = observed
        self._deleted = {}
        progress = self._plan(observed, waiting)
        facts = facts_of(self._without_recreated(cluster))
        facts = replace(
            facts,
            topics={name: topic for name, topic in facts.topics.items() if name in observed.topics},
            empty=tuple(state.where for state in observed.states if state.high_watermark == 0),
            log_ends={state.where: state.high_watermark for state in observed.states},
        )
        self.lags = _lags(observed, progress.ends)
        self._write(run_id, progress, observed, facts)
        facts = self._ending(facts, progress.ends)
        # Published without segments, too: facts that have changed, or that none has.
        stale = now_ms() - self._published_at_ms >= _PUBLISH_EVERY_MS
        if not progress.objects and (stale or self._published != replace(facts, taken_at_ms=0)):
            self._publish((), facts, self.lags)
        self._move_on(observed, progress, began_at_ms=started_at_ms)
        self._reached = _reached(observed, progress)
        return BackupReport(
            run_id=run_id,
            archive=self.target.url,
            started_at_ms=started_at_ms,
            finished_at_ms=now_ms(),
            topics=tuple(
                replace(report, waiting=self.lags.get(name, 0)) for name, report in sorted(progress.topics.items())
            ),
            notices=tuple(progress.notices),
            objects=progress.objects,
            version=0,
            committed=bool(progress.objects),
            recovery_point_ms=self.recovery_point_ms,
        )

    def _move_on(self, observed: Observed, progress: _Publication, *, began_at_ms: int) -> None:
        """Advance the recovery points to what is published. A partition with anything missing keeps its own."""
        grave = {(notice.topic, notice.partition) for notice in progress.notices if notice.exit_code}
        reaches = {place: Reach(end=None, archived=0) for place in observed.unanswered}
        for state in observed.states:
            reaches[state.id] = Reach(
                end=state.end,
                archived=progress.ends.get(state.where, 0),
                sound=(state.topic, state.partition) not in grave,
            )
        self._points = {
            partition: move_on(self._points.get(partition), reach, began_at_ms=began_at_ms)
            for partition, reach in reaches.items()
        }
        self.recovery_point_ms = oldest(self._points.values()) if self._points else None
        if is_partial(progress.notices):
            self.recovery_point_ms = None

    def _recreated_topics(self, ids: Iterable[tuple[str, str]]) -> set[str]:
        """The names, of these names and topic ids, under which the archive holds another incarnation."""
        held, known = {position.topic for position in self.target.survey.positions}, self.target.topic_ids
        return {name for name, topic_id in ids if name in held and known.get(name, topic_id) != topic_id}

    def _without_recreated(self, cluster: ClusterState) -> ClusterState:
        """The cluster without topics that were created again: the archive holds their predecessors."""
        others = self._recreated_topics((topic.name, topic.topic_id) for topic in cluster.topics)
        groups = tuple(
            group
            if group.offsets is None
            else replace(group, offsets=tuple(one for one in group.offsets if one.topic not in others))
            for group in cluster.groups
        )
        topics = tuple(topic for topic in cluster.topics if topic.name not in others)
        return replace(cluster, topics=topics, groups=groups)

    def _plan(self, observed: Observed, waiting: RollSchedule | None) -> _Publication:
        """The offsets of each partition to write."""
        plans: dict[TopicPartition, PartitionBackup] = {}
        notices = list(observed.notices)
        # Partitions that appeared since the first run were never skipped on purpose.
        start = Earliest() if self.target.survey.positions or self.target.starts else self.start
        begun: dict[TopicPartition, int] = {}
        others = self._recreated_topics((state.topic, state.topic_id) for state in observed.states)
        for state in observed.states:
            where = state.where
            if state.topic in others:
                message = "the topic was deleted and created again: nothing was written"
                notices.append(_refused(where, message, (state.log_start, state.end)))
                continue
            # A layout that has none of its records yet may say 0.
            same = self.target.topic_ids.get(state.topic) == state.topic_id
            begun_at = self.target.starts.get(where) if same else None
            known = (self.target.survey.positions.get(where), begun_at, self._committed.get(where))
            held = max((point for point in known if point is not None), default=None)
            if held is None:
                plans[where] = plan_partition(state, start, offset_for_time=observed.offsets_for_time.get(where, -1))
                begun[where] = plans[where].start
            elif held > state.high_watermark:
                message = (
                    f"the log ends at {state.high_watermark}, the archive at {held}: the topic was created again, or "
                    "its log was truncated; nothing was written"
                )
                notices.append(_refused(where, message, (state.high_watermark, held)))
                continue
            else:
                if state.log_start > held:
                    notices.append(self._lose(where, held, state.log_start))
                begin = max(held, state.log_start)
                plans[where] = PartitionBackup(state=state, first=held, start=begin, end=max(state.end, begin))
        # If a later run looked up the end or the time again, partitions would begin later and miss records.
        self.target.remember(
            begun if isinstance(start, Latest | AtTime) else {},
            {state.topic: state.topic_id for state in observed.states if state.topic not in others},
        )
        ends = {}
        for where, plan in plans.items():
            # Markers at the end of a log leave no record: this process knows that it has read them.
            position, end = self._read.get(where, (-1, -1))
            ends[where] = min(max(end, plan.start), plan.end) if plan.start == position else plan.start
        self._see(ends)
        news = [plan for where, plan in plans.items() if ends[where] < plan.end]
        due, deferred = (news, []) if waiting is None else waiting.choose(news, now_ms=now_ms())
        self.put_off = frozenset(plan.state.id for plan in deferred)
        return _Publication(
            left={
                plan.state.where: Window(
                    topic_id=plan.state.topic_id,
                    start=plan.start,
                    end=plan.end,
                    bytes_per_offset=plan.state.bytes_per_offset,
                )
                for plan in due
            },
            ends=ends,
            topics=_no_records(observed),
            notices=notices,
        )

    def _see(self, ends: Mapping[TopicPartition, int]) -> None:
        """Called when a run has planned, with how far each partition is archived."""

    def _write(self, run_id: str, progress: _Publication, observed: Observed, facts: ClusterFacts) -> None:
        """Write and publish wave by wave."""
        settings = TransferSettings(
            run_id=run_id,
            layout=self._layout,
            options=self.target.options,
            target_url=self.target.url,
            target=self.config.storage,
            kafka=self.kafka,
            patience_s=self.config.patience,
        )
        bytes_total = sum(each.bytes for each in progress.left.values())
        meter = Meter(self.on_progress, "reading", bytes_total)
        while progress.left:
            if self.is_stopped():
                progress.notices.append(stopped())
                return
            executor = self.pool.for_bytes(bytes_total)
            wave = next_windows(progress.left, bytes_max=self.request.commit_bytes)
            tasks = spread(
                [(part.bytes, self._item(where, part)) for where, part in wave.items()], self.pool.parallelism
            )
            paced = replace(settings, rate_bytes_per_s=self.rate_of_one(len(tasks)))
            meter.begin(len(tasks), sum(window.bytes for window in wave.values()))
            done = executor.run(run_transfer_task, paced, tasks, name=run_id, meter=meter, stop=self.stop, gentle=True)
            segments = self._add(progress, done)
            lags = _lags(observed, progress.ends)
            self._publish(segments, self._ending(facts, progress.ends, segments), lags)
            positions = self.target.survey.positions
            self._read.update(
                (where, (positions.get(where, window.start), progress.ends[where])) for where, window in wave.items()
            )
            # Only now is the wave published; an error in `publish` leaves the lags as they were.
            self.lags = lags

    def _publish(self, segments: Sequence[ForeignSegment], facts: ClusterFacts, lags: Mapping[str, int | None]) -> None:
        gaps = tuple(gap for found in self._deleted.values() for gap in found)
        unfinished = {topic for topic, lag in lags.items() if lag != 0}
        self.target.publish(segments, replace(facts, gaps=gaps), unfinished=unfinished)
        self._published, self._published_at_ms = replace(facts, taken_at_ms=0), now_ms()

    def _ending(
        self, facts: ClusterFacts, ends: Mapping[TopicPartition, int], written: Sequence[ForeignSegment] = ()
    ) -> ClusterFacts:
        """The facts, whose logs end without the markers at their ends: no reader of the archive waits for those."""
        positions = {**self.target.survey.positions, **{segment.where: segment.end_offset for segment in written}}
        log_ends = {
            where: end - max(ends.get(where, 0) - positions.get(where, end), 0) for where, end in facts.log_ends.items()
        }
        return replace(facts, log_ends=log_ends)

    def _item(self, where: TopicPartition, window: Window) -> TransferItem:
        losses = self._deleted.get(where, ())
        return TransferItem(
            where=where,
            topic_id=window.topic_id,
            start=window.start,
            end=window.end,
            survey=self.target.survey.of_partition(where),
            asked=next((loss.base_offset for loss in losses if loss.end_offset == window.start), None),
        )

    def _add(self, progress: _Publication, done: Iterable[Transferred]) -> list[ForeignSegment]:
        """Add what a wave has written to the progress, and return its segments, which are to be published."""
        segments: list[ForeignSegment] = []
        for written in done:
            where, window = written.where, progress.left.pop(written.where)
            if isinstance(written.failure, StoppedError):
                progress.left[where] = window
                continue
            if written.failure is not None:
                error, offsets = written.failure, (window.start, window.start)
                notice = about(
                    where, FAILED, error.message, offsets, hint=error.hint, exit_code=error.exit_code or EXIT_FAILED
                )
                progress.notices.append(notice)
                continue
            if written.start > window.start:
                progress.notices.append(self._lose(where, window.start, written.start))
            segments += written.segments
            topic = progress.topics[where.topic]
            progress.topics[where.topic] = replace(
                topic,
                records=topic.records + written.records,
                bytes=topic.bytes + sum(segment.bytes for segment in written.segments),
                raw_bytes=topic.raw_bytes + written.raw_bytes,
            )
            progress.ends[where] = written.end
            if written.end < window.end:
                progress.left[where] = replace(window, start=written.end)
        progress.objects += len(segments)
        return segments

    def _lose(self, where: TopicPartition, first: int, end: int) -> Notice:
        gap = ForeignGap(where=where, base_offset=first, end_offset=end, reason=GapReason.RETENTION)
        self._deleted.setdefault(where, []).append(gap)
        message = "retention deleted these offsets before they were read"
        hint = "back up more often, or increase the retention time"
        return about(where, "retention", message, (first, end), hint=hint, exit_code=EXIT_INCOMPLETE)


def _no_records(observed: Observed) -> dict[str, TopicReport]:
    partitions = Counter((*(state.topic for state in observed.states), *observed.unanswered.values()))
    return {
        name: TopicReport(
            topic=name, topic_id=topic_id_for(name), partitions=partitions[name], records=0, bytes=0, raw_bytes=0
        )
        for name in observed.topics
    }


def _lags(observed: Observed, ends: Mapping[TopicPartition, int]) -> dict[str, int | None]:
    lags: dict[str, int | None] = dict.fromkeys(observed.topics, 0)
    for state in observed.states:
        # Without an end nothing of the partition is written: the archive holds another topic of the same name.
        lag = max(state.high_watermark - ends.get(state.where, state.log_start), 0)
        lags[state.topic] = add_up((lags[state.topic], lag))
    return {**lags, **dict.fromkeys(observed.unanswered.values())}


def _reached(observed: Observed, progress: _Publication) -> dict[TopicPartition, int] | None:
    """Up to the last stable offset: beyond it nothing is decided yet."""
    ends = {state.where: state.end for state in observed.states}
    behind = any(progress.ends.get(where, -1) < end for where, end in ends.items())
    return None if behind or observed.unanswered or worst_exit_code(progress.notices) else ends


def _refused(where: TopicPartition, message: str, offsets: tuple[int, int]) -> Notice:
    return about(where, "truncated", message, offsets, hint=_ELSEWHERE, exit_code=EXIT_INCOMPLETE)
