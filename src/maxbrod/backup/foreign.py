"""Backs up a cluster in another tool's layout. That layout records less than ours, so less can be proved.

Each wave is published before the next begins: whole partitions up to an offset. If a run is killed, the next one
continues after the last published offset. These layouts keep no leader epochs: a log that ends before the archive, or a
topic that was created again, is refused (see `truncation.py` for our own layout).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from maxbrod.archive.foreign_target import ForeignTarget, TargetRequest, facts_of
from maxbrod.archive.recovery import Reach, move_on, oldest
from maxbrod.archive.surveyed import SurveyedCatalog, topic_id_for
from maxbrod.backup.base import BackupBase, rate_of_one
from maxbrod.backup.notices import about, is_partial, stopped
from maxbrod.backup.observation import Observed, choose_topics, observe
from maxbrod.backup.plan.starts import AtTime, Earliest, Latest
from maxbrod.backup.plan.states import PartitionBackup, PartitionState, plan_partition
from maxbrod.backup.report import BackupReport, TopicReport, add_up
from maxbrod.catalog.rows import new_run_id
from maxbrod.errors import EXIT_FAILED, EXIT_INCOMPLETE
from maxbrod.kafka.state.capture import capture
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.foreign import ClusterFacts, ForeignGap, ForeignSegment
from maxbrod.model import GapReason, PartitionId, TopicPartition, now_ms
from maxbrod.notices import Notice, worst_exit_code
from maxbrod.transfer.task import TransferItem, Transferred, TransferSettings, run_transfer_task
from maxbrod.work.progress import OnProgress, Progress, silent
from maxbrod.work.windows import Window, next_windows, spread

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Mapping, Sequence

    from maxbrod.backup.plan.roll_limits import RollSchedule
    from maxbrod.config import Config
    from maxbrod.errors import MaxbrodError
    from maxbrod.kafka.state.cluster_state import ClusterState
    from maxbrod.work.session import Session

FAILED: Final = "failed"
"""The kind of notice about a partition that could not be read or written."""
_PUBLISH_EVERY_MS: Final = 60_000
_ELSEWHERE: Final = "back it up to another place: this layout cannot distinguish two topics of one name"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """The offsets that a run has published so far, and those that are left."""

    left: Mapping[TopicPartition, Window]
    ends: Mapping[TopicPartition, int]
    """How far each partition is published. Partitions that are not written are missing."""
    topics: Mapping[str, TopicReport]
    notices: tuple[Notice, ...] = ()
    objects: int = 0


class ForeignBackup(BackupBase):
    """A backup into an archive of another tool's layout."""

    def __init__(
        self,
        config: Config,
        request: TargetRequest,
        *,
        session: Session | None = None,
        on_progress: OnProgress = silent,
        stop: threading.Event | None = None,
    ) -> None:
        super().__init__(config, session=session, on_progress=on_progress, stop=stop)
        self.target = self._open_target(request)
        self._layout = request.layout
        self._ran = False
        self._reached: Mapping[TopicPartition, int] | None = None
        """Where the logs ended, if the last run has reached the end of every one."""
        # Recovery points as this process has seen them: the layout records none.
        self._points: dict[PartitionId, int | None] = {}
        self._committed: Mapping[TopicPartition, int] = {}
        """Up to where another place than the archive says that partitions are archived."""
        self._read: dict[TopicPartition, tuple[int, int]] = {}
        """Where the archive ended after a partition was read, and up to where it was read."""
        self._deleted: dict[TopicPartition, list[ForeignGap]] = {}
        """What the source had deleted before this run read it."""
        self._published: ClusterFacts | None = None
        self._published_at_ms = 0

    def _open_target(self, request: TargetRequest) -> ForeignTarget:
        return ForeignTarget(self._archive_url, self._config.storage, request)

    def run(self, *, demand_topics: bool = True, waiting: RollSchedule | None = None) -> BackupReport:
        """Bring the archive up to date, except for partitions that `waiting` defers."""
        cluster = capture(self._client, deadline=Deadline.after(self._config.patience))
        return self._back_up(cluster, demand_topics=demand_topics, waiting=waiting)

    def _back_up(
        self, cluster: ClusterState, *, demand_topics: bool, waiting: RollSchedule | None = None
    ) -> BackupReport:
        self.lags = None
        self._reached = None
        self.target.demand_acceptance()
        if self._ran:
            self.target.look_again()
        self._ran = True
        self._on_progress(Progress(phase="planning"))
        run_id, started_at_ms = new_run_id(), now_ms()
        patience_s = self._config.patience
        observed = observe(
            self._client,
            SurveyedCatalog(self.target.url, ()),
            choose_topics(self._client, self._request, patience_s=patience_s, demand=demand_topics, cluster=cluster),
            held={},
            compacted=(),
            start=self._start,
            patience_s=patience_s,
        )
        self._deleted = {}
        progress = self._plan(observed, waiting)
        facts = _facts(self._without_recreated(cluster), observed)
        self.lags = _lags(observed, progress.ends)
        progress = self._write(run_id, progress, observed, facts)
        facts = self._ending(facts, progress.ends)
        if not progress.objects and self._has_news(facts):
            self._publish((), facts, self.lags)
        self._move_on(observed, progress, began_at_ms=started_at_ms)
        self._reached = _reached(observed, progress)
        return BackupReport(
            run_id=run_id,
            archive=self.target.url,
            started_at_ms=started_at_ms,
            finished_at_ms=now_ms(),
            topics=tuple(
                replace(each, waiting=self.lags.get(name, 0)) for name, each in sorted(progress.topics.items())
            ),
            notices=progress.notices,
            objects=progress.objects,
            version=0,
            committed=bool(progress.objects),
            recovery_point_ms=self.recovery_point_ms,
        )

    def _move_on(self, observed: Observed, progress: _Progress, *, began_at_ms: int) -> None:
        """Advance the recovery points to what is published. A partition with anything missing keeps its own."""
        grave = {(notice.topic, notice.partition) for notice in progress.notices if notice.exit_code}
        reaches = {each: Reach(end=None, archived=0) for each in observed.unanswered}
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
        self.recovery_point_ms = oldest(self._points.values()) if self._points else began_at_ms
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

    def _plan(self, observed: Observed, waiting: RollSchedule | None) -> _Progress:
        """The offsets of each partition to write."""
        plans: dict[TopicPartition, PartitionBackup] = {}
        notices = list(observed.notices)
        # Partitions that appeared since the first run were never skipped on purpose.
        start = Earliest() if self.target.survey.positions or self.target.starts else self._start
        begun: dict[TopicPartition, int] = {}
        others = self._recreated_topics((state.topic, state.topic_id) for state in observed.states)
        for state in observed.states:
            where = state.where
            if state.topic in others:
                notices.append(_recreated(state))
                continue
            # A layout that has none of its records yet may say 0.
            known = (self.target.survey.positions.get(where), self._begun(state), self._committed.get(where))
            held = max((each for each in known if each is not None), default=None)
            if held is None:
                plans[where] = plan_partition(state, start, offset_for_time=observed.offsets_for_time.get(where, -1))
                begun[where] = plans[where].start
            elif held > state.high_watermark:
                notices.append(_diverged(state, held))
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
        ends = {where: self._read_up_to(where, plan) for where, plan in plans.items()}
        self._see(ends)
        news = [plan for where, plan in plans.items() if ends[where] < plan.end]
        due = news if waiting is None else waiting.choose(news, now_ms=now_ms())[0]
        return _Progress(
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
            notices=tuple(notices),
        )

    def _read_up_to(self, where: TopicPartition, plan: PartitionBackup) -> int:
        """Return how far the log is archived, with markers at its end: this process read them, without a record."""
        position, end = self._read.get(where, (-1, -1))
        return min(max(end, plan.start), plan.end) if plan.start == position else plan.start

    def _see(self, ends: Mapping[TopicPartition, int]) -> None:
        """Called when a run has planned, with how far each partition is archived."""

    def _begun(self, state: PartitionState) -> int | None:
        """Return where a partition without records begins; None if it has not begun, or if it is another topic now."""
        known = self.target.topic_ids.get(state.topic) == state.topic_id
        return self.target.starts.get(state.where) if known else None

    def _write(self, run_id: str, progress: _Progress, observed: Observed, facts: ClusterFacts) -> _Progress:
        """Write and publish wave by wave."""
        settings = TransferSettings(
            run_id=run_id,
            layout=self._layout,
            options=self.target.options,
            target_url=self.target.url,
            target=self._config.storage,
            kafka=self._kafka,
            patience_s=self._config.patience,
        )
        bytes_total = sum(each.bytes for each in progress.left.values())
        bytes_done = 0
        while progress.left:
            if self.stop.is_set():
                return replace(progress, notices=(*progress.notices, stopped()))
            self._on_progress(Progress(phase="reading", bytes_done=bytes_done, bytes_total=bytes_total))
            executor = self._workers.for_bytes(bytes_total)
            wave = next_windows(progress.left, bytes_max=self._request.commit_bytes)
            tasks = spread(
                [(each.bytes, self._item(where, each)) for where, each in wave.items()], self._workers.parallelism
            )
            paced = replace(
                settings,
                rate_bytes_per_s=rate_of_one(self._request.rate_bytes_per_s, len(tasks), self._workers.parallelism),
            )
            done = executor.run(run_transfer_task, paced, tasks, name=run_id)
            progress, segments = self._after_wave(progress, done)
            lags = _lags(observed, progress.ends)
            self._publish(segments, self._ending(facts, progress.ends, segments), lags)
            positions = self.target.survey.positions
            self._read.update(
                (where, (positions.get(where, window.start), progress.ends[where])) for where, window in wave.items()
            )
            # Only now is the wave published; an error in `publish` leaves the lags as they were.
            self.lags = lags
            bytes_done += sum(each.bytes for each in wave.values())
        return progress

    def _publish(self, segments: Sequence[ForeignSegment], facts: ClusterFacts, lags: Mapping[str, int | None]) -> None:
        gaps = tuple(each for found in self._deleted.values() for each in found)
        self.target.publish(segments, replace(facts, gaps=gaps), unfinished=_unfinished(lags))
        self._published, self._published_at_ms = replace(facts, taken_at_ms=0), now_ms()

    def _ending(
        self, facts: ClusterFacts, ends: Mapping[TopicPartition, int], written: Sequence[ForeignSegment] = ()
    ) -> ClusterFacts:
        """The facts, whose logs end without the markers at their ends: no reader of the archive waits for those."""
        positions = {**self.target.survey.positions, **{each.where: each.end_offset for each in written}}
        log_ends = {
            where: end - max(ends.get(where, 0) - positions.get(where, end), 0) for where, end in facts.log_ends.items()
        }
        return replace(facts, log_ends=log_ends)

    def _has_news(self, facts: ClusterFacts) -> bool:
        """True if facts are published without segments: for those that have changed, or to say that none has."""
        stale = now_ms() - self._published_at_ms >= _PUBLISH_EVERY_MS
        return stale or self._published != replace(facts, taken_at_ms=0)

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

    def _after_wave(self, progress: _Progress, done: Iterable[Transferred]) -> tuple[_Progress, list[ForeignSegment]]:
        """The progress once these segments are published."""
        left, ends, topics = dict(progress.left), dict(progress.ends), dict(progress.topics)
        notices = list(progress.notices)
        segments: list[ForeignSegment] = []
        for each in done:
            where, window = each.where, left.pop(each.where)
            if each.failure is not None:
                notices.append(_failed(where, window.start, each.failure))
                continue
            if each.start > window.start:
                notices.append(self._lose(where, window.start, each.start))
            segments += each.segments
            topic = topics[where.topic]
            topics[where.topic] = replace(
                topic,
                records=topic.records + each.records,
                bytes=topic.bytes + sum(segment.bytes for segment in each.segments),
                raw_bytes=topic.raw_bytes + each.raw_bytes,
            )
            ends[where] = each.end
            if each.end < window.end:
                left[where] = replace(window, start=each.end)
        objects = progress.objects + len(segments)
        return _Progress(left=left, ends=ends, topics=topics, notices=tuple(notices), objects=objects), segments

    def _lose(self, where: TopicPartition, first: int, end: int) -> Notice:
        gap = ForeignGap(where=where, base_offset=first, end_offset=end, reason=GapReason.RETENTION)
        self._deleted.setdefault(where, []).append(gap)
        return _lost(where, first, end)


def _no_records(observed: Observed) -> dict[str, TopicReport]:
    partitions = Counter((*(state.topic for state in observed.states), *observed.unanswered.values()))
    return {
        name: TopicReport(
            topic=name, topic_id=topic_id_for(name), partitions=partitions[name], records=0, bytes=0, raw_bytes=0
        )
        for name in observed.topics
    }


def _facts(cluster: ClusterState, observed: Observed) -> ClusterFacts:
    """The facts about the topics that are backed up, and no others."""
    facts = facts_of(cluster)
    topics = {name: each for name, each in facts.topics.items() if name in observed.topics}
    empty = tuple(state.where for state in observed.states if state.high_watermark == 0)
    log_ends = {state.where: state.high_watermark for state in observed.states}
    return replace(facts, topics=topics, empty=empty, log_ends=log_ends)


def _lags(observed: Observed, ends: Mapping[TopicPartition, int]) -> dict[str, int | None]:
    lags: dict[str, int | None] = dict.fromkeys(observed.topics, 0)
    for state in observed.states:
        # Without an end nothing of the partition is written: the archive holds another topic of the same name.
        lag = max(state.high_watermark - ends.get(state.where, state.log_start), 0)
        lags[state.topic] = add_up((lags[state.topic], lag))
    return {**lags, **dict.fromkeys(observed.unanswered.values())}


def _reached(observed: Observed, progress: _Progress) -> dict[TopicPartition, int] | None:
    """Up to the last stable offset: beyond it nothing is decided yet."""
    ends = {state.where: state.end for state in observed.states}
    behind = any(progress.ends.get(where, -1) < end for where, end in ends.items())
    return None if behind or observed.unanswered or worst_exit_code(progress.notices) else ends


def _unfinished(lags: Mapping[str, int | None]) -> set[str]:
    return {topic for topic, lag in lags.items() if lag != 0}


def _diverged(state: PartitionState, held: int) -> Notice:
    message = (
        f"the log ends at {state.high_watermark}, the archive at {held}: the topic was created again, or its log was "
        "truncated; nothing was written"
    )
    offsets = state.high_watermark, held
    return about(state.where, "truncated", message, offsets, hint=_ELSEWHERE, exit_code=EXIT_INCOMPLETE)


def _recreated(state: PartitionState) -> Notice:
    message = "the topic was deleted and created again: nothing was written"
    offsets = state.log_start, state.end
    return about(state.where, "truncated", message, offsets, hint=_ELSEWHERE, exit_code=EXIT_INCOMPLETE)


def _lost(where: TopicPartition, first: int, end: int) -> Notice:
    message = "retention deleted these offsets before they were read"
    hint = "back up more often, or increase the retention time"
    return about(where, "retention", message, (first, end), hint=hint, exit_code=EXIT_INCOMPLETE)


def _failed(where: TopicPartition, offset: int, error: MaxbrodError) -> Notice:
    return about(
        where,
        FAILED,
        error.message,
        (offset, offset),
        hint=error.hint,
        exit_code=error.exit_code or EXIT_FAILED,
    )
