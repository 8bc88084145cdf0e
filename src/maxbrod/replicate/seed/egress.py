"""Egress into a tree: a continuous backup in the layout of the original, with the original's limits and its group.

The tree itself says how far it is. The group says the same to the original: it continues where this ends, and the other
way round. A segment appears whole, under its own name, and counts from then on; it also says which offsets before it
never had a record. So a process may be killed at any time, and the next one continues after the last segment.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Unpack

from maxbrod.archive.foreign_target import TargetRequest
from maxbrod.archive.selection import select_topics
from maxbrod.backup.follow import Interval, follow
from maxbrod.backup.foreign import FAILED, ForeignBackup
from maxbrod.backup.plan.ranges import RollSchedule
from maxbrod.backup.report import BackupReport
from maxbrod.config import Config
from maxbrod.errors import RefusedError, UnavailableError, UsageError
from maxbrod.kafka.groups import ACTIVE, CLASSIC, ListedGroup, commit_offsets, read_offsets
from maxbrod.kafka.state.cluster_state import CommittedOffset
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.layouts.foreign import ClusterFacts, ForeignSegment
from maxbrod.model import TopicPartition
from maxbrod.replicate.egress import limits_of
from maxbrod.replicate.link import plain_offset
from maxbrod.transfer.task import TransferItem
from maxbrod.work.progress import OnProgress, silent
from maxbrod.work.session import Session
from maxbrod.work.windows import Window
from maxbrod.work.work import Means

LAYOUT: Final = "parquet"
_SEGMENT_SECONDS_MAX: Final = 86_400

_OPERATION: Final = "commit the progress of an egress"
_OURS: Final = "maxbrod "


class TreeEgress(ForeignBackup):
    """One tree and one cluster. Call `run` again and again."""

    def __init__(self, config: Config, **means: Unpack[Means]) -> None:
        options = config.egress_tree
        if not options.region:
            raise UsageError("the region of the source is missing", hint="give --region, such as us-east-1")
        self.region = options.region
        self._common, self._by_topic = limits_of(options)
        self.written: Counter[tuple[TopicPartition, str]] = Counter()
        """By partition: `messages` and `segments` that this process has written."""
        self.rewinded: Counter[tuple[str, int]] = Counter()
        """Attempts to write a partition that failed, by topic and partition: it is read again."""
        request = TargetRequest(
            layout=LAYOUT,
            codec=options.codec,
            segment_bytes=options.roll_bytes,
            segment_records=options.roll_records,
            extra={
                "region": options.region,
                "prefix": options.key_prefix,
                # Everything that is read at once was waiting: its age is measured before it is read.
                "segment_seconds_max": str(_SEGMENT_SECONDS_MAX),
            },
        )
        super().__init__(backup_config(config), request, **means)
        self._group = EgressGroup(self.client, options.group, self._is_followed, patience_s=config.patience)
        self._claimed = False

    def waiting(self) -> RollSchedule:
        return RollSchedule(self._common, self._by_topic)

    def run(self, *, demand_topics: bool = True, waiting: RollSchedule | None = None) -> BackupReport:
        """Write the segments that are due.

        RefusedError: another egress has taken over, or the original is running.
        """
        if self._claimed:
            self._group.demand()
        else:
            self._committed = self._group.claim(self._positions())
            self._claimed = True
        report = super().run(demand_topics=demand_topics, waiting=waiting)
        for notice in report.notices:
            if notice.kind == FAILED and notice.topic is not None and notice.partition is not None:
                self.rewinded[notice.topic, notice.partition] += 1
        return report

    def _see(self, ends: Mapping[TopicPartition, int]) -> None:
        self._group.begin(ends)

    def _publish(self, segments: Sequence[ForeignSegment], facts: ClusterFacts, lags: Mapping[str, int | None]) -> None:
        self._group.demand()
        super()._publish(segments, facts, lags)
        for segment in segments:
            self.written[segment.where, "segments"] += 1
            self.written[segment.where, "messages"] += segment.records or 0
        # The original commits the offset after a segment's last record, too, not one after markers behind it.
        self._group.commit(self._positions())

    def _positions(self) -> dict[TopicPartition, int]:
        """The ends of the tree, in the region that is written."""
        survey = self.target.survey
        return {
            segment.where: survey.positions[segment.where]
            for segment in survey.segments
            if segment.details.get("region") == self.region
        }

    def _is_followed(self, topic: str) -> bool:
        return bool(select_topics({topic: False}, self.request.topics, self.request.exclude).chosen)

    def _item(self, where: TopicPartition, window: Window) -> TransferItem:
        limits = self._by_topic.get(where.topic, self._common)
        item = super()._item(where, window)
        return replace(item, segment_bytes_max=limits.bytes, segment_records_max=limits.records)


def follow_into_tree(
    config: Config,
    *,
    stop: threading.Event,
    on_interval: Callable[[Interval], None],
    on_opened: Callable[[TreeEgress], None] = lambda _: None,
    on_progress: OnProgress = silent,
    session: Session | None = None,
) -> Interval:
    """Write segments until `stop` is set. With `once`, everything that is there now is written."""
    options = config.egress_tree
    egress = TreeEgress(config, session=session, on_progress=on_progress, stop=stop)
    on_opened(egress)

    def after(interval: Interval) -> None:
        on_interval(interval)
        if options.once:
            stop.set()

    return follow(
        backup_config(config),
        stop=stop,
        on_interval=after,
        on_progress=on_progress,
        opened=egress,
        waiting=None if options.once else egress.waiting(),
    )


def backup_config(config: Config) -> Config:
    """The configuration of the backup that egress is."""
    options = config.egress_tree
    backup = replace(
        config.backup,
        topics=options.topics,
        exclude=options.exclude,
        min_topics=options.min_topics,
        start="earliest",
        follow=True,
        every=options.every,
        roll_age=0.0,
        roll_bytes=None,
        roll_records=None,
        layout_options={},
        generation_every=None,
        generation_role=None,
    )
    return config.model_copy(update={"backup": backup, "layout": LAYOUT})


class EgressGroup:
    """The consumer group with the progress of an egress, as the original keeps it: the first offset not in the tree.

    It has the offsets of the topics that this egress follows. Another one may have other topics in the same group.

    The original's instances are members of the group. Kafka accepts offsets from outside only for a group without
    members: so a commit is refused as long as one of them runs. Of our own processes the one that was started last
    commits under its name, and the one before sees that and ends. Both together could only write segments that overlap,
    which readers of such a tree expect.
    """

    def __init__(
        self, client: KafkaClient, group_id: str, is_followed: Callable[[str], bool], *, patience_s: float
    ) -> None:
        self.group_id = group_id
        self._is_followed = is_followed
        self.client, self._patience_s = client, patience_s
        self._mark = f"{_OURS}{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._mine: dict[TopicPartition, int] = {}

    def claim(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Take the group over, and return how far each partition is by its offsets.

        `positions` are those of the tree. An offset never goes back: segments may have been moved elsewhere.
        """
        found = {where: each.offset for where, each in self._read().items() if self._is_followed(where.topic)}
        self.commit({where: max(at, found.get(where, 0)) for where, at in {**found, **positions}.items()})
        return found

    def begin(self, starts: Mapping[TopicPartition, int]) -> None:
        """Commit the starts of partitions of which the tree has nothing yet, so that another process is noticed."""
        self.commit({where: at for where, at in starts.items() if where not in self._mine})

    def demand(self) -> None:
        """RefusedError: another process has taken the group over."""
        for where, each in self._read().items():
            if where in self._mine and each.metadata != self._mark:
                raise RefusedError(
                    f"another egress has committed the offset {each.offset} of {where}"
                    + (f": {each.metadata}" if each.metadata else ""),
                    operation=_OPERATION,
                    object_name=self.group_id,
                    hint="run one egress for a tree, or give each its own --group and its own tree",
                )

    def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit what is new. RefusedError: the group has members."""
        news = {
            where: at
            for where, at in positions.items()
            if self._is_followed(where.topic) and at > self._mine.get(where, -1)
        }
        offsets = [plain_offset(where, at, self._mark) for where, at in news.items()]
        outcomes = commit_offsets(self.client, self.group_id, offsets, deadline=Deadline.after(self._patience_s))
        for where, outcome in outcomes.items():
            if outcome.done:
                self._mine[where] = news[where]
            elif outcome.code in ACTIVE:
                raise RefusedError(
                    "the group has members: kafka-replicator, or a consumer, is running",
                    operation=_OPERATION,
                    object_name=self.group_id,
                    hint="stop it first; this egress continues where it ends",
                )
            elif outcome.code != Code.UNKNOWN_TOPIC_OR_PARTITION:  # the tree outlives a deleted topic
                raise UsageError(
                    f"the offset of {where} is refused: {outcome.reason}",
                    operation=_OPERATION,
                    object_name=self.group_id,
                    hint="this user needs ACLs that allow it to Read the group and the topic",
                )

    def _read(self) -> dict[TopicPartition, CommittedOffset]:
        listed = ListedGroup(group_id=self.group_id, type=CLASSIC, state="", protocol_type="")
        answers = read_offsets(self.client, [listed], {}, deadline=Deadline.after(self._patience_s))
        for why in answers.refused.values():
            raise UnavailableError(f"the offsets cannot be read: {why}", object_name=self.group_id)
        return {each.where: each for each in answers.found.get(self.group_id, ())}
