"""Appends to topics that others may write to: what an interval does in the mode `--offsets append`.

The position of each partition is its mark, which is only ever committed in a transaction of the partition's own
transactional id, together with the records that it vouches for.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from maxbrod.errors import MaxbrodError
from maxbrod.kafka.fetch.offsets import LATEST, list_offsets
from maxbrod.model import now_ms
from maxbrod.replicate.ingress.append_job import run_append_job
from maxbrod.replicate.ingress.append_task import (
    AppendItem,
    AppendSettings,
    put_mark,
    run_append_task,
    take_position,
)
from maxbrod.replicate.ingress.groups import carry_appended_groups
from maxbrod.replicate.ingress.plan import plan_portions, why_not_append
from maxbrod.replicate.link import Order, State

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from maxbrod.config import Config
    from maxbrod.engine.session import Session
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.model import TopicPartition
    from maxbrod.replicate.ingress.append_task import Appended
    from maxbrod.replicate.ingress.plan import Portion
    from maxbrod.replicate.ingress.topics import MirrorTopics
    from maxbrod.replicate.link import Link, Mark
    from maxbrod.replicate.view import LinkView, MirroredPartition, Newest, Orders

RENEW_MS: Final = 3_600_000
"""A mark costs a transaction. One is renewed at each look, to show that ingress is alive; the others before brokers
forget them."""
_RENEW_ONE_MS: Final = 60_000


class Appending:
    """One link of an ingress that appends."""

    def __init__(self, config: Config, client: KafkaClient, view: LinkView, link: Link) -> None:
        self._config, self._client, self._view, self._link = config, client, view, link
        self.marks: dict[TopicPartition, Mark] = {}

    def plan(
        self, newest: Newest, topics: MirrorTopics, partitions: Sequence[MirroredPartition], orders: Orders
    ) -> list[tuple[int, AppendItem]]:
        """What to append to each partition, with its size in bytes. States tell why something is not."""
        active = [each for each in partitions if each.state is State.IN_STEP]
        logs = list_offsets(self._client, dict.fromkeys([each.where for each in active], LATEST)) if active else {}
        behind: dict[TopicPartition, int] = {}
        for each in active:
            mark = self._mark_of(each, topics)
            why = None
            if mark is not None:
                why = why_not_append(mark, each.id, each.extent.end, logs[each.where].offset)
            if not each.origins[0]:
                why = "the archive does not know its cluster's id, so records could come back to where they come from"
            if why is not None:
                each.state, each.why = State.FAULTED, why
            elif (position := each.extent.start if mark is None else mark.next_offset) < each.extent.end:
                behind[each.where] = position
        lacking = [each for each in active if each.where in behind]
        if not lacking:
            return []
        rows = newest.archive.catalog.rows(topic_ids={each.id.topic_id for each in lacking})
        wanted = {each.id: (behind[each.where], each.extent.end) for each in lacking}
        portions = plan_portions(rows, wanted, accept_gaps=self._config.replicate.accept_gaps)
        items = []
        for each in lacking:
            portion = portions[each.id]
            each.bytes, each.state = portion.bytes, State.CATCHING_UP
            if portion.lost is not None:
                each.state, each.why = State.LOST_RANGE, portion.why_lost
            if portion.end > behind[each.where]:
                items.append((portion.bytes, self._item(each, portion, topics, orders)))
        return items

    def write(
        self,
        newest: Newest,
        tasks: Sequence[Sequence[AppendItem]],
        session: Callable[[], Session] | None,
        *,
        stop: threading.Event,
    ) -> list[Appended]:
        """Append, on Spark or in this process if `session` is None."""
        rate = self._config.replicate.rate_bytes_per_s
        settings = AppendSettings(
            link=self._link.name,
            archive_url=newest.archive.url,
            kafka=self._view.kafka,
            storage=self._config.storage,
            destination_id=self._view.here(),
            version=newest.version,
            rate_bytes_per_s=None if rate is None else rate / len(tasks),
            patience_s=self._config.patience,
        )
        if session is None:
            with ThreadPoolExecutor(len(tasks)) as pool:
                answers = pool.map(partial(run_append_task, settings), tasks)
                return [each for answer in answers for each in answer]
        return run_append_job(session(), settings, tasks, stop=stop)

    def settle(
        self,
        appended: Iterable[Appended],
        partitions: Iterable[MirroredPartition],
        judge: Callable[[TopicPartition, Mapping[str, object]], tuple[State, str]],
    ) -> int:
        """Take over the marks, and the states that follow. Returns the number of records."""
        known = {each.where: each for each in partitions}
        records = 0
        for outcome in appended:
            each = known[outcome.where]
            records += outcome.records
            if outcome.mark is not None:
                self.marks[outcome.where] = outcome.mark
            if outcome.failure is not None:
                each.state, each.why = judge(outcome.where, outcome.failure)
            elif each.state is State.CATCHING_UP and outcome.mark is not None:
                each.state = State.IN_STEP if outcome.mark.next_offset == each.extent.end else State.CATCHING_UP
        return records

    def carry_groups(
        self, newest: Newest, partitions: Iterable[MirroredPartition], others: Sequence[MirroredPartition]
    ) -> int:
        """Returns how many offsets were committed. `others` are the partitions that other instances work on."""
        positions = self.positions(others)
        for each in others:
            if positions[each.where] < each.extent.end:
                each.state = State.CATCHING_UP
        marks = {each.where: (each.mirror, self.marks[each.where]) for each in partitions if each.where in self.marks}
        options, patience_s = self._config.replicate, self._config.patience
        return carry_appended_groups(
            self._client, self._link, newest.cluster.groups, options.groups, marks, patience_s=patience_s
        )

    def mark(self, partitions: Iterable[MirroredPartition]) -> None:
        """Commit what has changed since the last mark without a record; and renew marks before they are forgotten."""
        now = now_ms()
        changed, old = [], []
        for each in partitions:
            mark = self.marks.get(each.where)
            if mark is None or mark.append is None:
                continue
            if (mark.state, mark.why, mark.origins) != (
                each.state,
                each.why,
                each.origins,
            ) or now - mark.at_ms > RENEW_MS:
                changed.append(each)
            elif now - mark.at_ms > _RENEW_ONE_MS:
                old.append(each)
        if not changed and old:
            changed = [min(old, key=lambda each: self.marks[each.where].at_ms)]
        for each in changed:
            self._put(each)

    def positions(self, partitions: Iterable[MirroredPartition]) -> dict[TopicPartition, int]:
        """The first source offset that each partition lacks."""
        return {
            each.where: self.marks[each.where].next_offset if each.where in self.marks else each.extent.start
            for each in partitions
        }

    def _mark_of(self, each: MirroredPartition, topics: MirrorTopics) -> Mark | None:
        """Its mark, unless the destination topic was deleted since."""
        mark = self.marks.get(each.where)
        if mark is None or mark.append is None or mark.append.topic_id != topics.ids[each.where.topic]:
            return None
        return mark

    def _item(self, each: MirroredPartition, portion: Portion, topics: MirrorTopics, orders: Orders) -> AppendItem:
        mark = self._mark_of(each, topics)
        order, _ = orders.get(replace(each.where, partition=0), (Order.RUN, None))
        return AppendItem(
            where=each.where,
            topic_id=topics.ids[each.where.topic],
            source_topic=each.mirror.source.name,
            source_id=each.id.topic_id,
            origins=each.origins,
            start=each.extent.start,
            position=None if mark is None else mark.next_offset,
            begins=order is Order.BEGIN,
            end=portion.end,
            archive_end=each.extent.end,
            batch_bytes_max=topics.batch_bytes[each.where.topic],
            slices=portion.slices,
        )

    def _put(self, each: MirroredPartition) -> None:
        """Say the state of a partition in its mark. If that fails, the next interval tries again."""
        patience_s = self._config.patience
        try:
            transaction, mark = take_position(self._client, self._link, each.where, patience_s=patience_s)
            if mark is None or mark.state is State.PROMOTED:
                return
            following = replace(
                mark,
                state=each.state,
                why=each.why,
                origins=each.origins,
                version=self._view.version,
                at_ms=now_ms(),
            )
            put_mark(self._client, self._link, transaction, each.where, following, patience_s=patience_s)
        except MaxbrodError:
            return
        self.marks[each.where] = following


def finished_bytes(items: Mapping[TopicPartition, AppendItem], outcome: Appended) -> int:
    """The archived bytes of the slices that were appended to their end."""
    item = items[outcome.where]
    begun = item.start if item.position is None else item.position
    reached = begun if outcome.mark is None else outcome.mark.next_offset
    return sum(each.bytes for each in item.slices if begun < each.end_offset <= reached)
