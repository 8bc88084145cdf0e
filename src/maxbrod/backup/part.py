"""The part of a backup that one of several writers does, and how its run continues on what the others have committed.

Writers that divide the partitions among themselves commit to one catalog. Each commit is made on the newest version: if
another writer was faster, the run is moved onto that writer's version, as long as nobody has touched its partitions. So
the catalog itself keeps two writers from archiving the same offsets, whoever they believe has a partition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from maxbrod.catalog.rows import Run
from maxbrod.errors import RefusedError
from maxbrod.model import PartitionId, TopicPartition, topic_id_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maxbrod.backup.archive_state import ArchiveState
    from maxbrod.backup.observation import ChosenTopics
    from maxbrod.backup.plan.states import PartitionBackup
    from maxbrod.backup.run_state import BackupRun
    from maxbrod.catalog.queries import ArchivedRange
    from maxbrod.kafka.wire.metadata import Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The partitions that one writer backs up in one run."""

    claim: int
    """Commits are refused once the catalog's fence is above it."""
    has: Callable[[TopicPartition], bool]
    generation: tuple[int, bool]
    """It differs from that of the run before if the part does."""
    leads: bool
    """Whether this writer records changes of the cluster while nothing is written to its partitions."""
    whole: bool
    """Whether it is everything."""
    claim_again: Callable[[Iterable[TopicPartition]], int | None]
    """In the middle of a run: the claim by which this writer still has all of these partitions; None: it has not."""


class PartOfTopics:
    """Narrows topics to a part. For the same topic it returns the very same value: later steps compare by identity."""

    def __init__(self) -> None:
        self._narrowed: dict[str, tuple[Topic, tuple[int, bool], Topic]] = {}

    def narrow(self, chosen: ChosenTopics, part: Part) -> tuple[ChosenTopics, frozenset[PartitionId]]:
        """The topics with the partitions of this part only, and the partitions that others have."""
        if part.whole:
            return chosen, frozenset()
        self._narrowed = {name: self._of(topic, part) for name, topic in chosen.topics.items()}
        mine = {name: each for name, (_, _, each) in self._narrowed.items() if each.partitions}
        others = frozenset(
            PartitionId(topic_id=topic_id_text(topic.topic_id), partition=number)
            for name, topic in chosen.topics.items()
            for number in topic.partitions.keys() - self._narrowed[name][2].partitions.keys()
        )
        return replace(chosen, topics=mine), others

    def _of(self, topic: Topic, part: Part) -> tuple[Topic, tuple[int, bool], Topic]:
        known = self._narrowed.get(topic.name)
        if known is not None and known[0] is topic and known[1] == part.generation:
            return known
        mine = {
            number: each
            for number, each in topic.partitions.items()
            if part.has(TopicPartition(topic=topic.name, partition=number))
        }
        return topic, part.generation, replace(topic, partitions=mine)


def rebase(mine: ArchiveState, found: ArchiveState, run: BackupRun) -> ArchiveState:
    """The state of a run on top of a newer version of the archive, `found`, which others have committed.

    RefusedError: a partition of the run is not as the run has left it.
    """
    held = dict(found.held)
    for partition, plan in run.plans.items():
        held[partition] = _held(mine.held[partition], found.held.get(partition), partition, plan, run)
    own = {
        each: _newer(mine.recovery_points[each], found.recovery_points.get(each))
        for each in (*run.plans, *run.unanswered)
        if each in mine.recovery_points
    }
    return replace(
        found,
        held=held,
        names={**mine.names, **found.names},
        compacted=mine.compacted | found.compacted,
        unrecorded=mine.unrecorded,
        recovery_points={**found.recovery_points, **own},
    )


def _held(
    mine: ArchivedRange, found: ArchivedRange | None, partition: PartitionId, plan: PartitionBackup, run: BackupRun
) -> ArchivedRange:
    superseded = run.superseded.get(partition)
    end = run.ends[partition]
    if superseded is not None:
        end = max((row.end_offset for row in superseded if not isinstance(row, Run)), default=-1)
    if found is None and plan.state.held is None and end == plan.first:
        return mine  # nobody has archived anything of it yet
    if found is None or found.end_offset != end:
        there = "nothing" if found is None else f"offset {found.end_offset}"
        raise RefusedError(
            f"another writer has archived {plan.state.where} meanwhile: the catalog has {there}, this run had {end}",
            operation="commit to the catalog",
            object_name=str(plan.state.where),
            hint="nothing of what was read since is visible; the next run continues from the catalog",
        )
    if superseded is not None:
        return mine
    return found if mine.end_offset == end else replace(mine, first_offset=found.first_offset)


def _newer(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
