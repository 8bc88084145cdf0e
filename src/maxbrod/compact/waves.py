"""The steps that compactions share: limits of each topic, work spread over tasks, and waves that are committed whole.

Nothing is visible before a commit, and nothing is deleted: rows that were replaced leave the catalog, readers of older
versions go on with the old objects, and `gc` deletes those after its grace time. If another writer commits in between,
the rows that were read are looked up again. What still applies is committed without being made again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from pydantic import ValidationError

from maxbrod.archive.archive import Archive
from maxbrod.archive.runs import STOPPED
from maxbrod.archive.selection import select_names, select_topics
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.commits import commit_with_retries
from maxbrod.catalog.rows import Gap, Run, Segment, new_run_id
from maxbrod.compact.options import CompactOptions, TopicLimits
from maxbrod.compact.plan import REPLACED_COLUMNS
from maxbrod.compact.report import CompactReport, Tally
from maxbrod.config import complaints, lay_over
from maxbrod.errors import UnavailableError, UsageError, naming
from maxbrod.layouts.foreign import CompactionLimits
from maxbrod.layouts.kafka.format import Compression
from maxbrod.layouts.registry import NATIVE
from maxbrod.model import now_ms
from maxbrod.work.held import find_held
from maxbrod.work.preflight import needs_storage
from maxbrod.work.windows import cut_waves, spread

if TYPE_CHECKING:
    from maxbrod.work.work import Work

_WAVE_ROWS: Final = 100_000
"""Rows of one commit, which are held in memory and travel to workers."""
_TASKS_PER_CORE: Final = 4
_TASK_BYTES: Final = 256 << 20
"""A task of less is worth its cost only while cores have nothing to do. Each costs Spark 10 to 30 ms."""
_IDENTITY: Final = ("topic_id", "partition", "base_offset", "end_offset", "path", "position")


class Planned(Protocol):
    """Rows that are compacted together, in one wave."""

    @property
    def bytes(self) -> int: ...

    @property
    def row_count(self) -> int: ...


Item = TypeVar("Item")
Plan = TypeVar("Plan", bound=Planned)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """Rows of one partition that go, and those that take their place. Not committed yet."""

    topic: str
    read: Sequence[Segment]
    """The rows that it was made of: it applies as long as the catalog has all of them."""
    gone: Sequence[Segment]
    new: Sequence[Segment | Gap]
    joints: frozenset[int] = frozenset()
    """Offsets at which rows were joined: it does not apply if rows were replaced there meanwhile."""
    removed: int | None = None
    """The number of records that go; None: none may."""


class Compaction(ABC, Generic[Plan]):
    """A compaction of an archive in our own layout. Subclasses plan, compact one wave, and say how it is committed."""

    def __init__(
        self, work: Work, archive: Archive, *, why_larger: str, cut: str | None = None, jvm_works: bool = False
    ) -> None:
        assert isinstance(archive.catalog, Catalog)  # noqa: S101 - of our own layout
        self.work, self.options = work, work.config.compact
        self.archive, self.catalog = archive, archive.catalog
        self.compression = Compression.parse(self.options.recompress)
        self.tally = Tally(work, archive.url, NATIVE, why_larger=why_larger, cut=cut)
        self.workers = work.workers(needs_storage(archive.url, archive.options, writes=True), jvm_works=jvm_works)
        self.run_id = new_run_id()
        self._recorded = False
        """Whether the last commit has recorded its run."""

    def run(self) -> CompactReport:
        with self.work.looking("planning"):
            plans = self.plan()
        if self.options.dry_run:
            for plan in plans:
                self.count(plan)
            return self.tally.report()
        waves = cut_waves(
            plans,
            bytes_of=lambda plan: plan.bytes,
            bytes_max=self.options.commit_bytes,
            rows_of=lambda plan: plan.row_count,
            rows_max=_WAVE_ROWS,
        )
        for wave in waves:
            if self.work.is_stopped():
                break
            try:
                changes = self.compact(wave)
            except UnavailableError:
                if self.work.is_stopped():
                    break
                raise
            self.work.tell("committing")
            self._commit(wave, changes)
        if self.work.is_stopped() and not self._recorded:
            self._commit((), [])
        self.tally.held_objects = find_held(self.archive.storage, self.archive.url, self.archive.options)
        return self.tally.report()

    @abstractmethod
    def plan(self) -> Iterable[Plan]:
        """Return what to compact, and tell the tally what stays as it is."""

    @abstractmethod
    def count(self, plan: Plan) -> None:
        """Tell the tally what a run that is not dry would do."""

    @abstractmethod
    def compact(self, wave: Sequence[Plan]) -> list[RowChange]:
        """Compact a wave. What cannot be read is told to the tally and left out."""

    @abstractmethod
    def records_run(self, wave: Sequence[Plan], changes: Sequence[RowChange]) -> bool:
        """Return True if the commit of this wave, with these changes, also has the run's own row.

        A run that was stopped ends with a wave of nothing, if the one before has not recorded it.
        """

    @abstractmethod
    def commit(self, rows: Sequence[Segment | Gap | Run], changes: Sequence[RowChange], *, again: bool) -> None:
        """Commit once: `rows` and what `changes` replace. `again`: another writer has committed meanwhile."""

    @abstractmethod
    def statistics(self, changes: Sequence[RowChange]) -> dict[str, Any]:
        """Return the details of the run's row, which is committed with these changes."""

    def may_go(self, changes: Sequence[RowChange]) -> list[RowChange]:
        """Return the changes that nothing protects from."""
        return list(changes)

    def topic_names(self) -> tuple[dict[str, str], set[str]]:
        """Return the names of all topics, by id, and those that are chosen."""
        stored = self.catalog.topics()
        names = dict(zip(stored["topic_id"].to_pylist(), stored["topic"].to_pylist(), strict=True))
        return names, set(select_names(set(names.values()), self.options.topics, self.options.exclude))

    def _commit(self, wave: Sequence[Plan], changes: Sequence[RowChange]) -> None:
        def commit(attempt: int) -> None:
            nonlocal changes
            # Rows that a backup has added meanwhile are no concern of ours, unless it replaced some of these.
            kept = self.may_go(self._still_there(changes) if attempt else changes)
            self.tally.overtaken += len(changes) - len(kept)
            changes = kept
            records_run = self.records_run(wave, changes)
            if not changes and not records_run:
                return
            rows: list[Segment | Gap | Run] = [row for change in changes for row in change.new]
            self.commit([*rows, self._run_row(changes)] if records_run else rows, changes, again=attempt > 0)
            self._recorded = records_run
            self.tally.committed(self.run_id)
            for change in changes:
                self._count(change)

        commit_with_retries(self.catalog, commit)

    def _run_row(self, changes: Sequence[RowChange]) -> Run:
        now = now_ms()
        return Run(
            run_id=self.run_id,
            started_at=self.work.started_at_ms,
            finished_at=now,
            snapshot=None,
            statistics={
                "command": "compact",
                "exit_code": self.tally.report().exit_code,
                **({STOPPED: True} if self.work.is_stopped() else {}),
                **self.statistics(changes),
            },
            written_at=now,
        )

    def _still_there(self, changes: Sequence[RowChange]) -> list[RowChange]:
        """Return the changes whose rows no other writer has touched."""
        live: set[tuple[object, ...]] = set()
        for topic_id in {change.gone[0].topic_id for change in changes}:
            rows = self.catalog.rows(topic_id=topic_id, columns=_IDENTITY)
            live.update(zip(*(rows[name].to_pylist() for name in _IDENTITY), strict=True))
        replaced = self.catalog.replaced().select(list(REPLACED_COLUMNS))
        edges: dict[tuple[str, int], set[int]] = {}
        columns = (replaced[name].to_pylist() for name in REPLACED_COLUMNS)
        for topic_id, partition, base, end in zip(*columns, strict=True):
            edges.setdefault((topic_id, partition), set()).update((base, end))

        def applies(change: RowChange) -> bool:
            first = change.gone[0]
            return change.joints.isdisjoint(edges.get((first.topic_id, first.partition), ())) and all(
                tuple(getattr(row, name) for name in _IDENTITY) in live for row in change.read
            )

        return [change for change in changes if applies(change)]

    def _count(self, change: RowChange) -> None:
        new = [row for row in change.new if isinstance(row, Segment)]
        self.tally.add(
            change.topic,
            (change.gone[0].topic_id, change.gone[0].partition),
            merges=len({row.path for row in new}),
            segments=len(change.gone),
            new_segments=len(new),
            bytes=sum(row.bytes for row in change.gone),
            new_bytes=sum(row.bytes for row in new),
            records=sum(row.records for row in change.gone),
            removed=change.removed,
        )


def limits_by_topic(options: CompactOptions, topics: Iterable[str]) -> dict[str, TopicLimits]:
    """Return the limits of each topic. UsageError: a section or a limit is wrong, also one that no topic uses now."""
    names = sorted(set(topics))
    base = TopicLimits(**{field.name: getattr(options, field.name) for field in fields(TopicLimits)})
    compaction_limits(base)
    found = dict.fromkeys(names, base)
    for pattern, section in reversed(options.per_topic.items()):
        with naming(f"compact.per_topic.{pattern}"):
            try:
                limits = lay_over(base, section)
            except ValidationError as error:
                raise UsageError(f"the settings are wrong: {complaints(error, TopicLimits)}") from None
            compaction_limits(limits)
        # A pattern may match topics that come later.
        found |= dict.fromkeys(select_topics(dict.fromkeys(names, False), [pattern], (), internal=True).chosen, limits)
    return found


def compaction_limits(limits: TopicLimits) -> CompactionLimits:
    """Return the limits as a layout takes them. UsageError: they contradict each other."""
    return CompactionLimits(
        level_min=limits.min_level,
        level_max=limits.max_level,
        age_ms_min=round(limits.min_segment_age * 1000),
        segments_min=limits.min_segment_count,
        bytes_min=limits.min_segment_size,
        segments_max=limits.max_segment_count,
        bytes_max=limits.max_segment_size,
        delete=limits.delete,
        step_over=limits.step_over,
    )


def spread_over_tasks(
    items: Iterable[tuple[str, int, Item]], limits: Mapping[str, TopicLimits], parallelism: int
) -> list[list[Item]]:
    """Spread items, each with its topic and size, over tasks.

    Those of a topic share as many tasks as its setting allows to run at once, all others one to four for each core.
    """
    pools: dict[tuple[str, int] | None, list[tuple[int, Item]]] = {}
    for topic, size, item in items:
        most = limits[topic].parallelism
        pools.setdefault(None if most is None else (topic, most), []).append((size, item))
    tasks: list[list[Item]] = []
    for pool, sized in pools.items():
        large = sum(size for size, _ in sized) // _TASK_BYTES
        count = min(max(large, parallelism), _TASKS_PER_CORE * parallelism) if pool is None else pool[1]
        tasks += spread(sized, count)
    return tasks
