"""Appends to mirrors, which have the source's offsets: the steps of an interval with `--offsets exact`.

The log end of a mirror is the next source offset. Marks only explain what ingress was doing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from maxbrod.archive.archive import Archive
from maxbrod.errors import MisplacedBatchError
from maxbrod.kafka.groups import commit_offsets
from maxbrod.kafka.produce.producer_ids import ProducerIdentity
from maxbrod.kafka.state.access import may_write_markers
from maxbrod.model import TopicPartition, now_ms
from maxbrod.replicate.ingress.groups import carry_groups
from maxbrod.replicate.ingress.mode import Mode, judge_failure
from maxbrod.replicate.ingress.plan import MirrorPortion, why_longer, why_other_source
from maxbrod.replicate.ingress.topics import tell_unled
from maxbrod.replicate.link import LinkMark, Offsets, PositionKey, State
from maxbrod.replicate.newest import Newest
from maxbrod.replicate.view import LinkView, MirroredPartition, Orders
from maxbrod.restore.items import Restored, RestoreItem, RestoreSettings, restore_items
from maxbrod.restore.plan.targets import MESSAGE_BYTES_DEFAULT
from maxbrod.work.executor import Workers
from maxbrod.work.progress import OnProgress

_MARK_AGAIN_MS: Final = 60_000
"""Marks are renewed, so that others see that ingress is alive, and brokers do not expire them."""


class ExactMode(Mode):
    """One link of an ingress that mirrors."""

    offsets = Offsets.EXACT

    def __init__(self, view: LinkView, workers: Workers, on_progress: OnProgress) -> None:
        super().__init__(view, workers, on_progress)
        self._markers = may_write_markers(view.client, deadline=view.deadline())
        self._unread: dict[TopicPartition, LinkMark] | None = None
        """Marks of partitions that were not there yet; None: all marks must be read."""
        self._faults: dict[tuple[TopicPartition, str], str] = {}
        """Partitions, with the ids of their topics, in which the log is not where it belongs, and why. Nothing more is
        appended to them. A topic that was deleted and created again is another one."""

    def read_marks(self, partitions: Sequence[MirroredPartition]) -> None:
        if self._unread is None:  # nobody else writes them while this instance has its share
            self._unread, self.marks = self._view.marks(), {}
        for each in partitions:
            if each.where in self._unread:
                self.marks[each.key] = self._unread.pop(each.where)

    def forget(self) -> None:
        self._unread = None
        self._faults.clear()

    def ends(self, partitions: Iterable[MirroredPartition]) -> dict[PositionKey, int]:
        logs = self.topics.extents
        return {partition.key: logs[partition.where].end for partition in partitions if partition.where in logs}

    def append(
        self,
        newest: Newest,
        partitions: Sequence[MirroredPartition],
        orders: Orders,  # noqa: ARG002 - a mirror begins where its log ends, whatever an operator says
        producer: ProducerIdentity | None,
    ) -> tuple[int, int]:
        topics = self.topics
        active = [partition for partition in partitions if partition.state is State.IN_STEP]
        for each in active:
            if each.adopted_end is not None and each.adopted_end == topics.extents[each.where].end:
                self._faults.pop((each.where, topics.ids[each.where.topic]), None)  # it was proven since
            if (why := self._faults.get((each.where, topics.ids[each.where.topic]))) is not None:
                each.state, each.why = State.FAULTED, why
        behind = [each for each in active if topics.extents[each.where].end != each.extent.end]
        behind = tell_unled(behind, topics)
        topics.ends([each.where for each in behind])  # another instance may have written meanwhile
        self._view.grow(behind, self.ends(behind))
        for each in behind:
            if (why := why_longer(topics.extents[each.where].end, each.extent.end)) is not None:
                each.state, each.why = State.FAULTED, why
        behind = [each for each in behind if each.state is State.IN_STEP]
        behind = [each for each in behind if topics.extents[each.where].end < each.extent.end]
        portions = self.portions(newest, self.ends(behind), behind)
        items = [(portion.bytes, self._item(each, portion)) for each, portion in portions]
        begun = {each.where: (topics.extents[each.where].end, portion) for each, portion in portions}
        settings = partial(self._settings, newest.archive, producer)
        restored = self.do(items, settings, restore_items, alone=True)
        size = sum(begun[each.where][1].bytes_between(begun[each.where][0], each.end) for each in restored)
        return self._settle(restored, behind), size

    def _item(self, each: MirroredPartition, portion: MirrorPortion) -> RestoreItem:
        extent = self.topics.extents[each.where]
        # A log without records begins where it ends, which may be within a batch of the source.
        base = extent.end if extent.start == extent.end else 0
        configs = each.mirror.source.effective or {}
        return RestoreItem(
            where=each.where,
            topic_id=self.topics.ids[each.where.topic],
            exact=True,
            base=base,
            first_offset=base,
            end_offset=portion.end,
            batch_bytes_max=max(int(configs.get("max.message.bytes", 0)), MESSAGE_BYTES_DEFAULT),
            slices=portion.slices,
            adopted=each.adopted_end == extent.end,
        )

    def _settings(self, archive: Archive, producer: ProducerIdentity | None, rate: float | None) -> RestoreSettings:
        return RestoreSettings(
            restore_id=f"replicate-{self._link.name}",
            archive_url=archive.url,
            kafka=self._view.kafka,
            storage=self._config.storage,
            producer_id=self._link.producer_id,
            markers=self._markers,
            marker_producer=producer,
            rate_bytes_per_s=rate,
            patience_s=self._config.patience,
        )

    def _settle(self, restored: Iterable[Restored], behind: Iterable[MirroredPartition]) -> int:
        topics = self.topics
        known = {each.where: each for each in behind}
        records = 0
        for outcome in restored:
            each = known[outcome.where]
            before = topics.extents[each.where].end
            if outcome.end > before:
                topics.reached(each.where, outcome.end)
                records += outcome.end - before
            if outcome.failure is not None:
                each.state, each.why = judge_failure(outcome.failure)
                if isinstance(outcome.failure, MisplacedBatchError):
                    self._faults[outcome.where, topics.ids[outcome.where.topic]] = each.why
            elif each.state is State.CATCHING_UP and outcome.end == each.extent.end:
                each.state = State.IN_STEP
        return records

    # After appending

    def finish(self, newest: Newest, partitions: Sequence[MirroredPartition]) -> None:
        self._follow_starts(newest, partitions)
        self._mark(partitions)

    def _follow_starts(self, newest: Newest, partitions: Sequence[MirroredPartition]) -> None:
        starts = newest.snapshot.log_starts
        wanted = {
            partition.where: starts[partition.id]
            for partition in partitions
            if partition.id in starts
            and partition.state in {State.IN_STEP, State.CATCHING_UP}
            and "delete" in (partition.mirror.source.effective or {}).get("cleanup.policy", "delete").split(",")
        }
        for where, error in self.topics.move_starts(wanted).items():
            if not error.retryable:
                each = next(partition for partition in partitions if partition.where == where)
                each.state, each.why = State.FAULTED, f"its log start does not follow: {error}"

    def carry_groups(
        self, newest: Newest, partitions: Iterable[MirroredPartition], others: Sequence[MirroredPartition]
    ) -> tuple[int, bool]:
        topics = self.topics
        # One that is not ready is not looked at: a log that was looked at before is not begun any more.
        ready = [other for other in others if other.where in topics.extents]
        topics.ends(topics.led(each.where for each in ready))
        for each in ready:
            if topics.extents[each.where].end < each.extent.end:
                each.state = State.CATCHING_UP
        logs = {
            partition.where: (partition.mirror, topics.extents[partition.where])
            for partition in partitions
            if partition.where in topics.extents
        }
        groups, patience_s = self._config.replicate.groups, self._config.patience
        return carry_groups(self._client, newest.cluster.groups, groups, logs, patience_s=patience_s), True

    # Marks

    def mark_begun(self, partitions: Iterable[MirroredPartition]) -> None:
        """Mark new mirrors: a topic that has marks is known to be a mirror of this very source topic."""
        fresh = [
            partition
            for partition in partitions
            if partition.state is State.IN_STEP and partition.key not in self.marks
        ]
        self._put_marks({each.key: self._mark_of(each) for each in fresh})

    def _mark(self, partitions: Iterable[MirroredPartition]) -> None:
        marks = {}
        for partition in partitions:
            known = self.marks.get(partition.key)
            if known is None and (partition.where not in self.topics.extents or partition.state is State.PROMOTED):
                continue
            if partition.where in self.topics.refused:
                continue  # a mark would say that it is the link's
            if known is not None and known.append is not None:
                continue  # it says how far the link has appended
            mark = self._mark_of(partition)
            if known is None or not mark.same_as(known) or mark.at_ms - known.at_ms > _MARK_AGAIN_MS:
                marks[partition.key] = mark
        self._put_marks(marks)

    def _mark_of(self, each: MirroredPartition) -> LinkMark:
        known = self.marks.get(each.key)
        # A topic that was promoted grows by what others write to it.
        extent = None if each.state is State.PROMOTED else self.topics.extents.get(each.where)
        end = extent.end if extent is not None else known.next_offset if known is not None else 0
        topic_id = each.id.topic_id
        if known is not None and each.adopted_end is None and why_other_source(known, each.id, end) is not None:
            topic_id = known.topic_id  # keep naming the incarnation that is there
        return LinkMark(
            topic_id=topic_id,
            next_offset=end,
            version=self._view.version,
            at_ms=now_ms(),
            state=each.state,
            why=each.why,
            origins=each.origins,
        )

    def _put_marks(self, marks: Mapping[PositionKey, LinkMark]) -> None:
        if marks:
            offsets = [mark.committed(where) for (_, where), mark in marks.items()]
            outcomes = commit_offsets(self._client, self._link.group_id, offsets, deadline=self._view.deadline())
            done = {where for where, outcome in outcomes.items() if outcome.done}
            self.marks |= {key: mark for key, mark in marks.items() if key[1] in done}
