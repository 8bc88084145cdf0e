"""Appends to topics that others may write to: the steps of an interval with `--offsets append`.

The position of each partition is its mark, which is only ever committed in a transaction of the partition's own
transactional id, together with the records that it vouches for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from maxbrod.errors import MaxbrodError
from maxbrod.kafka.fetch.offsets import LATEST, list_offsets
from maxbrod.kafka.produce.producer_ids import ProducerIdentity
from maxbrod.model import now_ms
from maxbrod.replicate.ingress.append_task import Appended, AppendItem, AppendSettings, run_append_task
from maxbrod.replicate.ingress.groups import carry_appended_groups
from maxbrod.replicate.ingress.mode import Mode, judge_failure
from maxbrod.replicate.ingress.plan import MirrorPortion, why_not_append
from maxbrod.replicate.ingress.positions import put_mark, take_position
from maxbrod.replicate.ingress.topics import tell_unled
from maxbrod.replicate.link import LinkMark, Offsets, Order, Ordered, PositionKey, State
from maxbrod.replicate.newest import Newest
from maxbrod.replicate.view import MirroredPartition, Orders

RENEW_MS: Final = 3_600_000
"""A mark costs a transaction. One is renewed at each look, to show that ingress is alive; the others before brokers
forget them."""
_RENEW_ONE_MS: Final = 60_000


class AppendMode(Mode):
    """One link of an ingress that appends."""

    offsets = Offsets.APPEND

    def read_marks(self, partitions: Sequence[MirroredPartition]) -> None:
        self.marks = self._view.positions(partitions)

    def append(
        self,
        newest: Newest,
        partitions: Sequence[MirroredPartition],
        orders: Orders,
        producer: ProducerIdentity | None,  # noqa: ARG002 - each partition has a producer of its own
    ) -> tuple[int, int]:
        items = self._plan(newest, partitions, orders)
        settings = partial(self._settings, newest)
        # A task that Spark repeats fences its earlier attempt.
        appended = self.do(items, settings, run_append_task, alone=False)
        begun = {item.partition.key: item for _, item in items}
        size = sum(_finished_bytes(begun[outcome.key], outcome) for outcome in appended)
        return self._settle(appended, partitions), size

    def _plan(
        self, newest: Newest, partitions: Sequence[MirroredPartition], orders: Orders
    ) -> list[tuple[int, AppendItem]]:
        """Return the items, each with its size in bytes. States tell why a partition has none."""
        active = [partition for partition in partitions if partition.state is State.IN_STEP]
        active = tell_unled(active, self.topics)
        self._view.grow(active, self.ends(active))
        logs = list_offsets(self._client, dict.fromkeys([each.where for each in active], LATEST)) if active else {}
        behind: dict[PositionKey, int] = {}
        for each in active:
            mark = self._mark_of(each)
            why = None
            if mark is not None:
                why = why_not_append(mark, each.id, each.extent.end, logs[each.where].offset)
            if not each.origins[0]:
                why = "the archive does not know its cluster's id, so records could come back to where they come from"
            if why is not None:
                each.state, each.why = State.FAULTED, why
            elif (position := each.extent.start if mark is None else mark.next_offset) < each.extent.end:
                behind[each.key] = position
        return [
            (portion.bytes, self._item(partition, portion, orders))
            for partition, portion in self.portions(newest, behind, active)
        ]

    def _settings(self, newest: Newest, rate: float | None) -> AppendSettings:
        return AppendSettings(
            link=self._link.name,
            archive_url=newest.archive.url,
            kafka=self._view.kafka,
            storage=self._config.storage,
            destination_id=self._view.here(),
            version=newest.version,
            rate_bytes_per_s=rate,
            patience_s=self._config.patience,
        )

    def _settle(self, appended: Iterable[Appended], partitions: Iterable[MirroredPartition]) -> int:
        """Take over the marks, and the states that follow. Returns the number of records."""
        known = {partition.key: partition for partition in partitions}
        records = 0
        for outcome in appended:
            each = known[outcome.key]
            records += outcome.records
            if outcome.mark is not None:
                self.marks[outcome.key] = outcome.mark
            if outcome.failure is not None:
                each.state, each.why = judge_failure(outcome.failure)
            elif each.state is State.CATCHING_UP and outcome.mark is not None:
                each.state = State.IN_STEP if outcome.mark.next_offset == each.extent.end else State.CATCHING_UP
        return records

    def carry_groups(
        self, newest: Newest, partitions: Iterable[MirroredPartition], others: Sequence[MirroredPartition]
    ) -> tuple[int, bool]:
        positions = self.ends(others)
        for other in others:
            if positions[other.key] < other.extent.end:
                other.state = State.CATCHING_UP
        begun = [(partition, self.marks[partition.key]) for partition in partitions if partition.key in self.marks]
        options, patience_s = self._config.replicate, self._config.patience
        return carry_appended_groups(
            self._client, self._link, newest.cluster.groups, options.groups, begun, patience_s=patience_s
        )

    def finish(self, newest: Newest, partitions: Sequence[MirroredPartition]) -> None:  # noqa: ARG002 - logs are others'
        """Commit what has changed since the last mark without a record; and renew marks before they are forgotten."""
        now = now_ms()
        changed, old = [], []
        for partition in partitions:
            mark = self.marks.get(partition.key)
            if mark is None or mark.append is None:
                continue
            if (mark.state, mark.why, mark.origins) != (
                partition.state,
                partition.why,
                partition.origins,
            ) or now - mark.at_ms > RENEW_MS:
                changed.append(partition)
            elif now - mark.at_ms > _RENEW_ONE_MS:
                old.append(partition)
        if not changed and old:
            changed = [min(old, key=lambda each: self.marks[each.key].at_ms)]
        for each in changed:
            self._put(each)

    def ends(self, partitions: Iterable[MirroredPartition]) -> dict[PositionKey, int]:
        return {
            partition.key: self.marks[partition.key].next_offset
            if partition.key in self.marks
            else partition.extent.start
            for partition in partitions
        }

    def _mark_of(self, each: MirroredPartition) -> LinkMark | None:
        """Its mark, unless the destination topic was deleted since."""
        mark = self.marks.get(each.key)
        if mark is None or mark.append is None or mark.append.topic_id != self.topics.ids[each.where.topic]:
            return None
        return mark

    def _item(self, each: MirroredPartition, portion: MirrorPortion, orders: Orders) -> AppendItem:
        mark = self._mark_of(each)
        return AppendItem(
            partition=each,
            portion=portion,
            topic_id=self.topics.ids[each.where.topic],
            position=None if mark is None else mark.next_offset,
            begins=orders.get(replace(each.where, partition=0), Ordered(Order.RUN)).order is Order.BEGIN,
            batch_bytes_max=self.topics.batch_bytes[each.where.topic],
        )

    def _put(self, each: MirroredPartition) -> None:
        """Say the state of a partition in its mark. If that fails, the next interval tries again."""
        patience_s = self._config.patience
        try:
            joined = each.mirror.joined
            position = take_position(self._client, self._link, each.key, joined=joined, patience_s=patience_s)
            if (mark := position.mark) is None or mark.state is State.PROMOTED:
                return
            following = replace(
                mark,
                state=each.state,
                why=each.why,
                origins=each.origins,
                version=self._view.version,
                at_ms=now_ms(),
            )
            put_mark(self._client, position, following, patience_s=patience_s)
        except MaxbrodError:
            return
        self.marks[each.key] = following


def _finished_bytes(item: AppendItem, outcome: Appended) -> int:
    """The archived bytes of the slices that were appended to their end."""
    begun = item.partition.extent.start if item.position is None else item.position
    return item.portion.bytes_between(begun, begun if outcome.mark is None else outcome.mark.next_offset)
