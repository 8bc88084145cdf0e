"""Backs a cluster up in another tool's layout. Like `Backup`, but that layout remembers less, so less can be proved.

What is published is whole partitions up to an offset. Each wave is published before the next begins; killed at any
instant, the next run goes on behind what was published last.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from maxbrod.archive.foreign_target import ForeignTarget, TargetRequest, facts_of
from maxbrod.archive.recovery import Reach, move_on, oldest
from maxbrod.archive.surveyed import topic_id_for
from maxbrod.backup.notices import stopped
from maxbrod.backup.observing import choose_topics, observe
from maxbrod.backup.plan.starts import AtTime, Earliest, Latest, parse_start
from maxbrod.backup.plan.states import plan_partition
from maxbrod.backup.report import BackupReport, TopicReport, add_up
from maxbrod.catalog.run_ids import new_run_id
from maxbrod.catalog.surveyed import SurveyedCatalog
from maxbrod.engine.progress import Progress, silent
from maxbrod.engine.session import open_configured, parallelism_of
from maxbrod.engine.windows import Window, next_windows, spread
from maxbrod.errors import EXIT_FAILED, EXIT_INCOMPLETE, UsageError
from maxbrod.kafka.state.capture import capture
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.travelling import decode_segment, encode_survey, of_partition
from maxbrod.model import TopicPartition, now_ms
from maxbrod.notices import Notice
from maxbrod.transfer.job import run_transfer_job
from maxbrod.transfer.task import TransferItem, TransferSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from maxbrod.backup.observing import Observation
    from maxbrod.backup.plan.states import PartitionState
    from maxbrod.backup.waiting import Waiting
    from maxbrod.config import Config
    from maxbrod.engine.progress import OnProgress
    from maxbrod.engine.session import Session
    from maxbrod.kafka.state.cluster_state import ClusterState
    from maxbrod.layouts.foreign import ClusterFacts, ForeignSegment
    from maxbrod.model import PartitionId
    from maxbrod.transfer.task import Transferred


@dataclass(slots=True)
class _Totals:
    """Of one topic."""

    topic_id: str
    partitions: int = 0
    records: int = 0
    bytes: int = 0
    raw_bytes: int = 0
    objects: int = 0


class ForeignBackup:
    """One place and one cluster, for any number of runs. Use it in a `with`."""

    def __init__(
        self,
        config: Config,
        request: TargetRequest,
        *,
        session: Session | None = None,
        on_progress: OnProgress = silent,
        stop: threading.Event | None = None,
    ) -> None:
        if config.kafka is None:
            raise UsageError("no cluster is named", hint="give --bootstrap, or kafka.bootstrap in the configuration")
        if config.archive is None:
            raise UsageError("no archive is named", hint="give --archive, or archive in the configuration")
        self._config, self._kafka, self._request = config, config.kafka, config.backup
        self._start = parse_start(config.backup.start)
        self.target = ForeignTarget(config.archive, config.storage, request)
        self._layout = request.layout
        self._on_progress = on_progress
        self.stop = stop or threading.Event()
        self._given_session = session
        self._session: Session | None = None
        self._ran = False
        self.recovery_point_ms: int | None = None
        """Of the topics that are chosen, as this process has found out: the layout remembers no such thing."""
        self.lags: Mapping[str, int | None] | None = None
        """Of each topic, what the cluster had at the last run and the archive has not; None: unknown."""
        self._points: dict[PartitionId, int | None] = {}
        self._undo = ExitStack()
        self._client = self._undo.enter_context(KafkaClient(config.kafka, stop=self.stop))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def hurry(self) -> None:
        """Nothing is ever put off."""

    def run(self, *, demand_topics: bool = True, waiting: Waiting | None = None) -> BackupReport:
        """Bring the archive up to the present. Nothing can be put off: `waiting` is always None."""
        del waiting
        self.lags = None
        self.target.demand_acceptance()
        if self._ran:
            self.target.look_again()
        self._ran = True
        self._on_progress(Progress(phase="planning"))
        run_id, started_at_ms = new_run_id(), now_ms()
        patience_s = self._config.patience
        cluster = capture(self._client, deadline=Deadline.after(patience_s))
        found = choose_topics(self._client, self._request, patience_s=patience_s, demand=demand_topics)
        observe(
            self._client,
            SurveyedCatalog(self.target.url, ()),
            found,
            positions={},
            compacted=(),
            start=self._start,
            patience_s=patience_s,
        )
        notices = list(found.notices)
        windows = dict(self._windows(found, notices))
        ends = {where: window.start for where, window in windows.items()}
        windows = {where: window for where, window in windows.items() if window.start < window.end}
        totals = {name: _Totals(topic_id=topic_id_for(name)) for name in found.topics}
        for topic in (*(state.topic for state in found.states), *found.unasked.values()):
            totals[topic].partitions += 1
        facts = _facts(self._of_held_topics(cluster), found)
        self.lags = _lags(found, ends)
        try:
            written = self._write(run_id, windows, totals, notices, facts, ends)
            if not written:
                self.target.publish((), facts)
        finally:
            self.lags = _lags(found, ends)
        self._move_on(found, ends, notices, began_at_ms=started_at_ms)
        return BackupReport(
            run_id=run_id,
            archive=self.target.url,
            started_at_ms=started_at_ms,
            finished_at_ms=now_ms(),
            topics=tuple(_topic_report(name, each, self.lags.get(name, 0)) for name, each in sorted(totals.items())),
            notices=tuple(notices),
            objects=sum(each.objects for each in totals.values()),
            version=0,
            committed=written,
            recovery_point_ms=self.recovery_point_ms,
        )

    def _move_on(
        self, found: Observation, ends: Mapping[TopicPartition, int], notices: list[Notice], *, began_at_ms: int
    ) -> None:
        """From what is published. A partition of which anything is reported missing stays where it was."""
        grave = {(each.topic, each.partition) for each in notices if each.exit_code}
        reaches = {each: Reach(end=None, archived=0) for each in found.unasked}
        for state in found.states:
            where = TopicPartition(topic=state.topic, partition=state.partition)
            reaches[state.id] = Reach(
                end=state.end, archived=ends.get(where, 0), sound=(state.topic, state.partition) not in grave
            )
        self._points = {
            partition: move_on(self._points.get(partition), reach, began_at_ms=began_at_ms)
            for partition, reach in reaches.items()
        }
        self.recovery_point_ms = oldest(self._points.values()) if self._points else began_at_ms

    def _of_held_topics(self, cluster: ClusterState) -> ClusterState:
        """Without topics that were created again: of these names the archive holds the ones before."""
        held = {each.topic for each in self.target.survey.positions}
        ids = self.target.topic_ids
        others = {
            each.name
            for each in cluster.topics
            if each.name in held and ids.get(each.name, each.topic_id) != each.topic_id
        }
        topics = tuple(each for each in cluster.topics if each.name not in others)
        groups = tuple(
            each
            if each.offsets is None
            else replace(each, offsets=tuple(one for one in each.offsets if one.topic not in others))
            for each in cluster.groups
        )
        return replace(cluster, topics=topics, groups=groups)

    def _windows(self, found: Observation, notices: list[Notice]) -> list[tuple[TopicPartition, Window]]:
        """Of each partition the offsets that are to be written."""
        planned = []
        # Whatever came since the first run has never been skipped on purpose.
        start = Earliest() if self.target.survey.positions or self.target.starts else self._start
        begun: dict[TopicPartition, int] = {}
        held_topics, ids = {each.topic for each in self.target.survey.positions}, self.target.topic_ids
        others = {
            state.topic
            for state in found.states
            if state.topic in held_topics and ids.get(state.topic, state.topic_id) != state.topic_id
        }
        for state in found.states:
            where = TopicPartition(topic=state.topic, partition=state.partition)
            if state.topic in others:
                notices.append(_recreated(state))
                continue
            # A layout that has none of its records yet may say 0.
            known = (self.target.survey.positions.get(where), self._begun(where, state))
            held = max((each for each in known if each is not None), default=None)
            if held is None:
                plan = plan_partition(state, start, offset_for_time=found.offsets_for_time.get(where, -1))
                first, end = plan.start, plan.end
                begun[where] = first
            elif held > state.high_watermark:
                notices.append(_diverged(state, held))
                continue
            else:
                if state.log_start > held:
                    notices.append(_overtaken(state, held))
                first, end = max(held, state.log_start), state.end
            size = state.bytes_per_offset
            planned.append((where, Window(topic_id=state.topic_id, start=first, end=end, bytes_per_offset=size)))
        # Asked again for the end or for a time, partitions would begin later, and miss what came since.
        self.target.remember(
            begun if isinstance(start, Latest | AtTime) else {},
            {state.topic: state.topic_id for state in found.states if state.topic not in others},
        )
        return planned

    def _begun(self, where: TopicPartition, state: PartitionState) -> int | None:
        """Where a partition without records was to begin; None: nowhere yet, or it is another topic now."""
        known = self.target.topic_ids.get(where.topic) == state.topic_id
        return self.target.starts.get(where) if known else None

    def _write(
        self,
        run_id: str,
        windows: dict[TopicPartition, Window],
        totals: dict[str, _Totals],
        notices: list[Notice],
        facts: ClusterFacts,
        ends: dict[TopicPartition, int],
    ) -> bool:
        """Move `ends` on with everything that is published."""
        settings = TransferSettings(
            run_id=run_id,
            layout=self._layout,
            options=self.target.options,
            target_url=self.target.url,
            target=self._config.storage,
            kafka=self._kafka,
            patience_s=self._config.patience,
        )
        wrote = False
        bytes_total = sum(each.bytes for each in windows.values())
        bytes_done = 0
        while windows:
            if self.stop.is_set():
                notices.append(stopped())
                break
            self._progress(bytes_done, bytes_total)
            wave = next_windows(windows, bytes_max=self._request.commit_bytes)
            items = [(each.bytes, self._item(where, each)) for where, each in wave.items()]
            tasks = spread(items, self._parallelism())
            done = run_transfer_job(self._spark(), settings, tasks)
            segments = self._take(done, windows, totals, notices)
            self.target.publish(segments, facts)
            ends.update({each.where: each.end for each in done if each.failure is None})
            wrote = wrote or bool(segments)
            bytes_done += sum(each.bytes for each in wave.values())
        return wrote

    def _take(
        self,
        done: list[Transferred],
        windows: dict[TopicPartition, Window],
        totals: dict[str, _Totals],
        notices: list[Notice],
    ) -> list[ForeignSegment]:
        segments: list[ForeignSegment] = []
        for each in done:
            where, window = each.where, windows[each.where]
            if each.failure is not None:
                notices.append(_failed(where, window.start, each.failure))
                del windows[where]
                continue
            if each.start > window.start:
                notices.append(_lost(where, window.start, each.start))
            found = [decode_segment(fields) for fields in each.segments]
            segments += found
            topic = totals[where.topic]
            topic.records += each.records
            topic.bytes += sum(segment.bytes for segment in found)
            topic.objects += len(found)
            topic.raw_bytes += each.raw_bytes
            windows[where] = replace(window, start=each.end)
            if each.end >= window.end:
                del windows[where]
        return segments

    def _item(self, where: TopicPartition, window: Window) -> TransferItem:
        return TransferItem(
            where=where,
            topic_id=window.topic_id,
            start=window.start,
            end=window.end,
            survey=encode_survey(of_partition(self.target.survey, where)),
        )

    def _progress(self, done: int, total: int) -> None:
        self._on_progress(Progress(phase="reading", bytes_done=done, bytes_total=total))

    def _parallelism(self) -> int:
        return parallelism_of(self._config.spark.master, self._session or self._given_session)

    def _spark(self) -> Session:
        if self._session is None:
            self._on_progress(Progress(phase="starting Spark"))
            opening = open_configured(self._config.spark, self._given_session)
            self._session = self._undo.enter_context(opening)
        return self._session


def _facts(cluster: ClusterState, found: Observation) -> ClusterFacts:
    """Of the topics that are backed up, and of no others."""
    facts = facts_of(cluster)
    empty = (
        TopicPartition(topic=state.topic, partition=state.partition)
        for state in found.states
        if state.high_watermark == 0
    )
    topics = {name: each for name, each in facts.topics.items() if name in found.topics}
    return replace(facts, topics=topics, empty=tuple(empty))


def _lags(found: Observation, ends: Mapping[TopicPartition, int]) -> dict[str, int | None]:
    lags: dict[str, int | None] = dict.fromkeys(found.topics, 0)
    for state in found.states:
        where = TopicPartition(topic=state.topic, partition=state.partition)
        # Without an end nothing of the partition is written: its topic is another one than the archive's.
        lag = max(state.high_watermark - ends.get(where, state.log_start), 0)
        lags[state.topic] = add_up((lags[state.topic], lag))
    return {**lags, **dict.fromkeys(found.unasked.values())}


def _topic_report(name: str, totals: _Totals, waiting: int | None) -> TopicReport:
    return TopicReport(
        topic=name,
        topic_id=totals.topic_id,
        partitions=totals.partitions,
        records=totals.records,
        bytes=totals.bytes,
        raw_bytes=totals.raw_bytes,
        waiting=waiting,
    )


def _diverged(state: PartitionState, held: int) -> Notice:
    return Notice(
        kind="truncated",
        message=f"the log ends at {state.high_watermark}, the archive at {held}: the topic was created again, or "
        "its log was cut; nothing was written",
        topic=state.topic,
        partition=state.partition,
        first_offset=state.high_watermark,
        end_offset=held,
        hint="back it up to another place: this layout cannot tell two topics of one name apart",
        exit_code=EXIT_INCOMPLETE,
    )


def _recreated(state: PartitionState) -> Notice:
    return Notice(
        kind="truncated",
        message="the topic was deleted and created again: nothing was written",
        topic=state.topic,
        partition=state.partition,
        first_offset=state.log_start,
        end_offset=state.end,
        hint="back it up to another place: this layout cannot tell two topics of one name apart",
        exit_code=EXIT_INCOMPLETE,
    )


def _overtaken(state: PartitionState, held: int) -> Notice:
    where = TopicPartition(topic=state.topic, partition=state.partition)
    return _lost(where, held, state.log_start)


def _lost(where: TopicPartition, first: int, end: int) -> Notice:
    return Notice(
        kind="retention",
        message="retention deleted these offsets before they were read",
        topic=where.topic,
        partition=where.partition,
        first_offset=first,
        end_offset=end,
        hint="back up more often, or keep records longer",
        exit_code=EXIT_INCOMPLETE,
    )


def _failed(where: TopicPartition, offset: int, failure: dict[str, object]) -> Notice:
    return Notice(
        kind="failed",
        message=str(failure.get("message", "it could not be read")),
        topic=where.topic,
        partition=where.partition,
        first_offset=offset,
        end_offset=offset,
        hint=None if failure.get("hint") is None else str(failure["hint"]),
        exit_code=int(str(failure.get("exit_code", EXIT_FAILED))) or EXIT_FAILED,
    )
