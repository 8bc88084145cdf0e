"""Ingress: follows an archive, and appends what it holds to the destination's topics, exactly once.

Each interval: read the newest catalog, make the destination's topics ready, append what their logs lack, follow log
starts and groups, and mark what was done. Nothing is remembered between intervals that the destination does not know:
an ingress that is killed at any point continues from the destination's logs.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from maxbrod.engine.progress import Progress, silent
from maxbrod.engine.reach import Needs, Place
from maxbrod.engine.session import open_configured, parallelism_of
from maxbrod.engine.windows import spread
from maxbrod.errors import EXIT_CORRUPT, LogTruncatedError, MisplacedBatchError, SequenceGapError
from maxbrod.kafka.admin.group_offsets import commit_offsets
from maxbrod.kafka.admin.rights import may_write_markers
from maxbrod.kafka.produce.refusals import OPERATION as PRODUCE
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import now_ms
from maxbrod.replicate.heartbeat import Heartbeats
from maxbrod.replicate.ingress.appending import Appending, finished_bytes
from maxbrod.replicate.ingress.groups import carry_groups
from maxbrod.replicate.ingress.plan import plan_portions, why_longer
from maxbrod.replicate.ingress.topics import MirrorTopics
from maxbrod.replicate.link import Mark, Offsets, State, parse_offsets
from maxbrod.replicate.report import IngressReport, standing_by, status_of
from maxbrod.replicate.shares import Shares, shares_of_link
from maxbrod.replicate.view import LinkView, places_of
from maxbrod.restore.job import run_restore_job
from maxbrod.restore.plan.configs import MESSAGE_BYTES_DEFAULT
from maxbrod.restore.task import RestoreItem, RestoreSettings, run_restore_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from maxbrod.archive.opening import Archive
    from maxbrod.config import Config
    from maxbrod.engine.progress import OnProgress
    from maxbrod.engine.session import Session
    from maxbrod.errors import MaxbrodError
    from maxbrod.model import PartitionId, TopicPartition
    from maxbrod.replicate.ingress.plan import Portion
    from maxbrod.replicate.link import Link
    from maxbrod.replicate.view import MirroredPartition, Newest, Orders
    from maxbrod.restore.task import Restored

_SPARK_FROM_BYTES: Final = 64 << 20
"""Less than this is appended by this process: a Spark job takes longer to start than to append it."""
_MARK_AGAIN_MS: Final = 60_000
"""Marks are renewed, so that others see that ingress is alive, and brokers do not expire them."""
_ENDED: Final = frozenset({State.PROMOTED, State.OWN, State.SOURCE_GONE})
_UNTOUCHED: Final = _ENDED | {State.FAULTED}
_QUIET: Final = _ENDED | {State.IN_STEP, State.PAUSED}
_LOOK_AGAIN_MS: Final = 60_000
"""How often the destination's topics are looked at although the archive has nothing new."""
_RACE: Final = frozenset({SequenceGapError.__name__, LogTruncatedError.__name__})
"""Another instance has appended the same records, or the destination has lost some: the log end tells how to go on."""


class Ingress:
    """One archive, one destination. Use it in a `with`."""

    def __init__(
        self,
        config: Config,
        *,
        session: Session | None = None,
        on_progress: OnProgress = silent,
        stop: threading.Event | None = None,
    ) -> None:
        kafka, _ = places_of(config)
        self._config, self._options = config, config.replicate
        self._session, self._on_progress = session, on_progress
        self.stop = stop or threading.Event()
        self._undo = ExitStack()
        self._client = self._undo.enter_context(KafkaClient(kafka, stop=self.stop))
        self._view = LinkView(config, self._client)
        self._topics: MirrorTopics | None = None
        self._shares: Shares | None = None
        self._generation = 0
        """The division of the partitions among instances that marks were last read in."""
        self._appending: Appending | None = None
        """None: mirrors have the source's offsets."""
        self._markers: bool | None = None
        self._marks: dict[TopicPartition, Mark] = {}
        self._groups_of: str | None = None
        """The run whose groups were carried last."""
        self._beats = Heartbeats()
        self._last: list[MirroredPartition] = []
        self._bytes = 0
        """Archived bytes whose records the last interval has finished to append."""
        self._looked: tuple[Newest, Orders, int] | None = None
        """The archive, the orders and the time of the last interval that looked at everything."""
        self._faults: dict[TopicPartition, str] = {}
        """Partitions in which a batch was appended where it does not belong. Nothing more is appended to them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._undo:
            if self._shares is not None:
                self._shares.leave()

    def run(self) -> IngressReport:
        """One interval. Errors of single partitions are in the report, those of archive and cluster are raised."""
        started_at_ms = now_ms()
        newest, link = self._view.look(), self._view.link()
        if self._shares is None:
            options = self._options
            self._shares = shares_of_link(
                self._view.kafka, link, takeover_s=options.takeover, patience_s=self._config.patience
            )
        shares = self._shares
        shares.look()
        if not shares.any:
            # What it knew may be out of date when it takes over.
            self._topics = self._groups_of = self._looked = None
            return standing_by(link.name, shares.leader, newest.version, started_at_ms, takeovers=shares.takeovers)
        if self._topics is None:
            self._begin_working(link)
        elif shares.generation != self._generation:
            self._marks, self._looked = self._view.marks(), None
        assert self._topics is not None  # noqa: S101 - made above
        self._generation = shares.generation
        topics, orders = self._topics, self._view.orders()
        if shares.settled and self._is_quiet(newest, orders):
            return self._report(newest, link, topics, self._last, started_at_ms)
        return self._work(newest, link, topics, orders, shares, started_at_ms)

    def _work(
        self, newest: Newest, link: Link, topics: MirrorTopics, orders: Orders, shares: Shares, started_at_ms: int
    ) -> IngressReport:
        appending = self._appending
        everything = self._view.partitions(orders)
        # The instance that leads makes all topics ready, before it gives partitions of them to others.
        partitions = everything if shares.leads else [each for each in everything if shares.has(each.where)]
        if appending is not None:
            self._marks = appending.marks = self._view.marks()
        self._keep_expired(partitions, orders)
        self._refuse_other_offsets(partitions)
        live = [each for each in partitions if each.state not in _UNTOUCHED]
        mirrors = {each.mirror.name: each.mirror for each in live}
        extents = {each.id: each.extent for each in live}
        adopted = {each.mirror.name for each in live if each.adopted_end is not None}
        failed = topics.prepare(list(mirrors.values()), extents, self._marks, adopted, lead=shares.leads)
        _tell_failures(failed, live)
        if appending is None:
            self._mark_begun(link, topics, partitions)
        if shares.leads:
            shares.divide(topics.leaders(each.where for each in live if each.mirror.name not in failed))
            partitions = [each for each in everything if shares.has(each.where)]
        if appending is None:
            appended = self._append(newest, link, topics, partitions)
            self._follow_starts(newest, topics, partitions)
        else:
            appended = self._append_shared(appending, newest, topics, partitions, orders)
        groups = self._carry_groups(newest, topics, everything) if shares.leads else 0
        if appending is None:
            self._mark(link, topics, partitions)
        else:
            appending.mark(partitions)
        self._last, self._looked = partitions, (newest, orders, started_at_ms)
        return self._report(newest, link, topics, partitions, started_at_ms, appended=appended, groups=groups)

    def _begin_working(self, link: Link) -> None:
        shared = parse_offsets(self._options.offsets) is Offsets.APPEND
        self._topics = MirrorTopics(
            self._client, link, self._options.configs, patience_s=self._config.patience, shared=shared
        )
        self._appending = Appending(self._config, self._client, self._view, link) if shared else None
        self._markers = None if shared else may_write_markers(self._client, deadline=self._view.deadline())
        self._marks = self._view.marks()

    def _refuse_other_offsets(self, partitions: Iterable[MirroredPartition]) -> None:
        """A link that has appended to a topic cannot mirror it, nor the other way round."""
        wanted = Offsets.EXACT if self._appending is None else Offsets.APPEND
        for each in partitions:
            mark = self._marks.get(each.where)
            if mark is not None and mark.offsets is not wanted and each.state not in _ENDED:
                each.state = State.FAULTED
                each.why = f"this link has written it with --offsets {mark.offsets}; name another --link"

    def _keep_expired(self, partitions: Iterable[MirroredPartition], orders: Orders) -> None:
        """Keep what was ordered after brokers have forgotten the order: the marks, which are renewed, still tell it.

        A topic that was promoted belongs to its producers for ever. When a topic is deleted, its marks go with it.
        """
        ordered = {where.topic for where in orders}
        kept = [
            each
            for each in partitions
            if each.where.topic not in ordered
            and (mark := self._marks.get(each.where)) is not None
            and mark.state in {State.PROMOTED, State.PAUSED}
        ]
        if not kept:
            return
        present = self._client.metadata(sorted({each.where.topic for each in kept}), deadline=self._view.deadline())
        for each in kept:
            if each.where.topic in present.topics:
                each.state = self._marks[each.where].state
            else:
                del self._marks[each.where]

    def _is_quiet(self, newest: Newest, orders: Orders) -> bool:
        """Whether nothing has changed since the last interval, and nothing was left to do."""
        if self._looked is None or not all(each.state in _QUIET for each in self._last):
            return False
        before, given, looked_ms = self._looked
        return before is newest and given == orders and now_ms() - looked_ms < _LOOK_AGAIN_MS

    def _report(
        self,
        newest: Newest,
        link: Link,
        topics: MirrorTopics,
        partitions: Sequence[MirroredPartition],
        started_at_ms: int,
        *,
        appended: int = 0,
        groups: int = 0,
    ) -> IngressReport:
        beats = self._beats.read(newest.archive.storage)
        if self._appending is not None:
            ends = self._appending.positions(partitions)
        else:
            ends = {where: extent.end for where, extent in topics.extents.items()}
        return IngressReport(
            link=link.name,
            started_at_ms=started_at_ms,
            finished_at_ms=now_ms(),
            version=newest.version,
            partitions=tuple(status_of(each, ends.get(each.where, 0), beats, now_ms()) for each in partitions),
            appended=appended,
            groups=groups,
            appended_bytes=self._bytes if appended else 0,
            heartbeat_ms=beats[0].at_ms if beats else None,
            leads=self._shares is not None and self._shares.leads,
            takeovers=0 if self._shares is None else self._shares.takeovers,
        )

    # Appending

    def _append(self, newest: Newest, link: Link, topics: MirrorTopics, partitions: Sequence[MirroredPartition]) -> int:
        """Append what the destination lacks. Returns the number of records."""
        active = [each for each in partitions if each.state is State.IN_STEP]
        for each in active:
            if each.where in self._faults:
                each.state, each.why = State.FAULTED, self._faults[each.where]
        behind = [each for each in active if topics.extents[each.where].end != each.extent.end]
        topics.ends([each.where for each in behind])  # another instance may have written meanwhile
        behind = [each for each in behind if each.state is State.IN_STEP and self._is_behind(each, topics)]
        if not behind:
            return 0
        portions = self._portions(newest.archive, topics, behind)
        items = []
        for each in behind:
            portion = portions[each.id]
            each.bytes = portion.bytes
            each.state = State.CATCHING_UP
            if portion.lost is not None:
                each.state, each.why = State.LOST_RANGE, portion.why_lost
            if portion.end > topics.extents[each.where].end:
                items.append((portion.bytes, self._item(each, portion, topics)))
        begun = {each.where: (topics.extents[each.where].end, portions[each.id]) for each in behind}
        restored = self._write(newest.archive, link, items)
        self._bytes = sum(begun[each.where][1].bytes_between(begun[each.where][0], each.end) for each in restored)
        return self._settle(restored, behind, topics)

    def _is_behind(self, each: MirroredPartition, topics: MirrorTopics) -> bool:
        end = topics.extents[each.where].end
        if (why := why_longer(end, each.extent.end)) is not None:
            each.state, each.why = State.FAULTED, why
        return end < each.extent.end

    def _portions(
        self, archive: Archive, topics: MirrorTopics, behind: Sequence[MirroredPartition]
    ) -> dict[PartitionId, Portion]:
        wanted = {each.id: (topics.extents[each.where].end, each.extent.end) for each in behind}
        rows = archive.catalog.rows(topic_ids={each.topic_id for each in wanted})
        return plan_portions(rows, wanted, accept_gaps=self._options.accept_gaps)

    def _item(self, each: MirroredPartition, portion: Portion, topics: MirrorTopics) -> RestoreItem:
        extent = topics.extents[each.where]
        # A log without records begins where it ends, which may be within a batch of the source.
        base = extent.end if extent.start == extent.end else 0
        configs = each.mirror.source.effective or {}
        return RestoreItem(
            where=each.where,
            topic_id=topics.ids[each.where.topic],
            exact=True,
            base=base,
            first_offset=base,
            end_offset=portion.end,
            batch_bytes_max=max(int(configs.get("max.message.bytes", 0)), MESSAGE_BYTES_DEFAULT),
            slices=portion.slices,
            adopted=each.adopted_end == extent.end,
        )

    def _append_shared(
        self,
        appending: Appending,
        newest: Newest,
        topics: MirrorTopics,
        partitions: Sequence[MirroredPartition],
        orders: Orders,
    ) -> int:
        """Append to topics that others may write to. Returns the number of records."""
        items = appending.plan(newest, topics, partitions, orders)
        if not items:
            return 0
        size = sum(size for size, _ in items)
        self._on_progress(Progress(phase="appending", bytes_total=size))
        tasks = spread(items, parallelism_of(self._config.spark.master, self._session))
        session = None if size < _SPARK_FROM_BYTES else partial(self._spark, newest.archive)
        appended = appending.write(newest, tasks, session, stop=self.stop)
        self._bytes = sum(map(partial(finished_bytes, {item.where: item for _, item in items}), appended))
        return appending.settle(appended, partitions, self._judge)

    def _write(self, archive: Archive, link: Link, items: Sequence[tuple[int, RestoreItem]]) -> list[Restored]:
        if not items:
            return []
        self._on_progress(Progress(phase="appending", bytes_total=sum(size for size, _ in items)))
        small = sum(size for size, _ in items) < _SPARK_FROM_BYTES
        parallelism = parallelism_of(self._config.spark.master, self._session)
        tasks = spread(items, parallelism)
        rate = self._options.rate_bytes_per_s
        settings = RestoreSettings(
            restore_id=f"replicate-{link.name}",
            archive_url=archive.url,
            kafka=self._view.kafka,
            storage=self._config.storage,
            producer_id=link.producer_id,
            markers=bool(self._markers),
            marker_producer=None if self._shares is None else self._shares.identity,
            rate_bytes_per_s=None if rate is None else rate / len(tasks),
            patience_s=self._config.patience,
        )
        if small:
            with ThreadPoolExecutor(len(tasks)) as pool:
                answers = pool.map(partial(run_restore_task, settings), tasks)
                return [each for answer in answers for each in answer]
        return run_restore_job(self._spark(archive), settings, tasks, stop=self.stop)

    def _spark(self, archive: Archive) -> Session:
        if self._session is None:
            self._on_progress(Progress(phase="starting Spark"))
            place = Place(url=archive.url, storage=self._config.storage)
            needs = Needs(clusters=(self._view.kafka,), places=(place,), patience_s=self._config.patience)
            self._session = self._undo.enter_context(open_configured(self._config.spark, needs=needs))
        return self._session

    def _settle(self, restored: Iterable[Restored], behind: Iterable[MirroredPartition], topics: MirrorTopics) -> int:
        known = {each.where: each for each in behind}
        records = 0
        for outcome in restored:
            each = known[outcome.where]
            before = topics.extents[each.where].end
            if outcome.end > before:
                topics.reached(each.where, outcome.end)
                records += outcome.end - before
            if outcome.failure is not None:
                each.state, each.why = self._judge(outcome.where, outcome.failure)
            elif each.state is State.CATCHING_UP and outcome.end == each.extent.end:
                each.state = State.IN_STEP
        return records

    def _judge(self, where: TopicPartition, failure: Mapping[str, Any]) -> tuple[State, str]:
        message, name = str(failure["message"]), str(failure["error"])
        why = f"{message} ({failure['object_name']})" if failure.get("object_name") else message
        if failure["retryable"] or name in _RACE:
            return State.CATCHING_UP, why
        if failure["exit_code"] == EXIT_CORRUPT and failure.get("operation") != PRODUCE:
            # While a bucket is copied here, an object that is missing or cut off may still arrive.
            return State.LATE_SEGMENT, why
        if name == MisplacedBatchError.__name__:
            self._faults[where] = why
        return State.FAULTED, why

    # After appending

    def _follow_starts(self, newest: Newest, topics: MirrorTopics, partitions: Sequence[MirroredPartition]) -> None:
        starts = newest.snapshot.log_starts
        wanted = {
            each.where: starts[each.id]
            for each in partitions
            if each.id in starts
            and each.state in {State.IN_STEP, State.CATCHING_UP}
            and "delete" in (each.mirror.source.effective or {}).get("cleanup.policy", "delete").split(",")
        }
        for where, error in topics.move_starts(wanted).items():
            if not error.retryable:
                each = next(each for each in partitions if each.where == where)
                each.state, each.why = State.FAULTED, f"its log start does not follow: {error}"

    def _carry_groups(self, newest: Newest, topics: MirrorTopics, partitions: Iterable[MirroredPartition]) -> int:
        """Once for each snapshot, and again as long as offsets beyond the logs' ends wait there."""
        if not self._options.groups or self._groups_of == newest.run_id:
            return 0
        live = [each for each in partitions if each.state in {State.IN_STEP, State.CATCHING_UP, State.LATE_SEGMENT}]
        others = [each for each in live if self._shares is not None and not self._shares.has(each.where)]
        if self._appending is not None:
            carried = self._appending.carry_groups(newest, live, others)
        else:
            topics.ends([each.where for each in others])
            for each in others:
                if topics.extents[each.where].end < each.extent.end:
                    each.state = State.CATCHING_UP
            logs = {each.where: (each.mirror, topics.extents[each.where]) for each in live}
            carried = carry_groups(
                self._client, newest.cluster.groups, self._options.groups, logs, patience_s=self._config.patience
            )
        self._groups_of = newest.run_id if all(each.state is State.IN_STEP for each in live) else None
        return carried

    # Marks

    def _mark_begun(self, link: Link, topics: MirrorTopics, partitions: Iterable[MirroredPartition]) -> None:
        """Before the first record: a topic that has marks is known to be a mirror of this very source topic."""
        fresh = [each for each in partitions if each.state is State.IN_STEP and each.where not in self._marks]
        self._put_marks(link, {each.where: self._mark_of(each, topics) for each in fresh})

    def _mark(self, link: Link, topics: MirrorTopics, partitions: Iterable[MirroredPartition]) -> None:
        marks = {}
        for each in partitions:
            known = self._marks.get(each.where)
            if known is None and (each.where not in topics.extents or each.state is State.PROMOTED):
                continue
            if known is not None and known.append is not None:
                continue  # it says how far the link has appended
            mark = self._mark_of(each, topics)
            if known is None or not mark.same_as(known) or mark.at_ms - known.at_ms > _MARK_AGAIN_MS:
                marks[each.where] = mark
        self._put_marks(link, marks)

    def _mark_of(self, each: MirroredPartition, topics: MirrorTopics) -> Mark:
        known = self._marks.get(each.where)
        # A topic that was promoted grows by what others write to it.
        extent = None if each.state is State.PROMOTED else topics.extents.get(each.where)
        # Keep naming the incarnation that is there.
        faulted = known is not None and known.topic_id != each.id.topic_id and each.adopted_end is None
        return Mark(
            topic_id=known.topic_id if faulted and known is not None else each.id.topic_id,
            next_offset=extent.end if extent is not None else known.next_offset if known is not None else 0,
            version=self._view.version,
            at_ms=now_ms(),
            state=each.state,
            why=each.why,
            origins=each.origins,
        )

    def _put_marks(self, link: Link, marks: Mapping[TopicPartition, Mark]) -> None:
        if not marks:
            return
        offsets = [mark.committed(where) for where, mark in marks.items()]
        outcomes = commit_offsets(self._client, link.group_id, offsets, deadline=self._view.deadline())
        self._marks |= {where: mark for where, mark in marks.items() if where in outcomes and outcomes[where].done}


def _tell_failures(failed: Mapping[str, MaxbrodError], partitions: Iterable[MirroredPartition]) -> None:
    for each in partitions:
        if (error := failed.get(each.mirror.name)) is not None:
            each.state, each.why = State.CATCHING_UP if error.retryable else State.FAULTED, str(error)
