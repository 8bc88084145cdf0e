"""The report of a restore."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import EXIT_DONE, EXIT_INCOMPLETE, EXIT_REFUSED, IncompleteError, UnavailableError, gravest
from maxbrod.model import GapReason, TopicPartition, now_ms
from maxbrod.restore.plan.obstacles import GAPS, ObstacleKind
from maxbrod.restore.plan.request import OffsetsMode
from maxbrod.text import counted
from maxbrod.transform.plan import TransformPlan
from maxbrod.work.report import Report

if TYPE_CHECKING:
    from maxbrod.groups.plan import GroupPosition, MissingGroup
    from maxbrod.restore.items import Restored
    from maxbrod.restore.plan.access import AccessPlan
    from maxbrod.restore.plan.plan import LeftOut, RestorePlan, SchemasPlan, TopicPlan
    from maxbrod.work.work import Work
AGAIN: Final = "run the same command again, which resumes the restore"


@contextmanager
def ended_by_stop(work: Work, plan: RestorePlan, state: str = "") -> Iterator[None]:
    """Within the block, what fails because of a stop is an IncompleteError: the same command resumes."""
    try:
        yield
    except UnavailableError as error:
        if not work.is_stopped():
            raise
        what = f"stopped before everything was restored{state}"
        raise IncompleteError(what, operation="restore", object_name=plan.restore_id, hint=AGAIN) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    source: str
    target: str
    partition: int
    """The partition of the target."""
    offsets: str
    """exact or append."""
    records: int
    end: int
    """The log end of the target."""
    map: Mapping[str, Any]
    """The target offsets of records: ranges, or the shares of a repartitioned topic."""
    failure: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport(Report):
    """`complete`: every requested committed record is in the target, once.

    A restore that left out ranges that the archive has lost, because the user accepted gaps, exits with 0 and is not
    complete.
    """

    published = ("complete", "exit_code", "records", "seen_twice_max")

    restore_id: str
    archive: str
    cluster_id: str
    started_at_ms: int
    finished_at_ms: int
    resumed: bool
    partitions: tuple[PartitionReport, ...]
    warnings: tuple[str, ...]
    run_id: str | None = None
    """The run whose snapshot describes topics and groups."""
    groups: tuple[GroupPosition, ...] = ()
    """The new offsets of groups, or why they were not moved. Groups are moved when all records are restored."""
    groups_missing: tuple[MissingGroup, ...] = ()
    """Requested groups that could not be moved anywhere. With any of them a restore is not complete."""
    retention: tuple[str, ...] = ()
    """Topics whose records the brokers delete as soon as retention is no longer paused, and why."""
    known_from: Mapping[str, str] = field(default_factory=dict)
    """For topics that the cluster had lost, the run that last saw them, whose configuration they get."""
    left_out: tuple[LeftOut, ...] = ()
    """Internal topics of the archive, which are restored only by name."""
    pruned: tuple[str, ...] = ()
    """Partitions of which the archive has given up records on purpose, and where each begins."""
    access: AccessPlan | None = None
    """The restored ACLs and quotas, once all records are restored."""
    transform: TransformPlan | None = None
    """The transformation of records, with the counts of its changes."""
    usable_at_ms: Mapping[str, int] = field(default_factory=dict)
    """Target topics that are complete and have their final configuration, and since when."""
    schemas: SchemasPlan | None = None
    """The schemas that were brought back into a registry."""
    accepted_gaps: tuple[str, ...] = ()
    """Requested ranges that the archive lacks, and that `--accept-gaps` allows to leave out."""

    @property
    def records(self) -> int:
        return sum(partition.records for partition in self.partitions)

    @property
    def exit_code(self) -> int:
        codes = [partition.failure["exit_code"] for partition in self.partitions if partition.failure is not None]
        codes += [EXIT_REFUSED for group in self.groups if group.refused is not None]
        codes += [EXIT_INCOMPLETE for _ in self.groups_missing]
        return gravest(codes)

    @property
    def seen_twice_max(self) -> int:
        """An upper bound of the records that moved groups see twice."""
        return sum(group.seen_twice_max for group in self.groups if group.refused is None)

    @property
    def complete(self) -> bool:
        return self.exit_code == EXIT_DONE and not self.accepted_gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdReport(RestoreReport):
    """The report of a restore into log directories, with what was written there."""

    directories: tuple[str, ...]
    bytes: int
    """The size of the logs, over all replicas."""
    segments: int
    batches_lowered: int
    """Batches whose leader epoch was lowered to the target's."""
    remembered: bool
    """True if the archive holds plan and report, so that 'maxbrod groups' and 'maxbrod compare' find them."""


def _written(topic: TopicPlan) -> dict[int, OffsetsMode]:
    """The target partitions that records go to, with their offsets mode."""
    if topic.target.repartitioned:
        return dict.fromkeys(range(topic.target.partition_count), OffsetsMode.APPEND)
    return {partition.source.partition: partition.offsets.mode for partition in topic.partitions}


def pruned_in(plan: RestorePlan) -> tuple[str, ...]:
    """A line for each partition of which requested offsets were pruned."""
    sources = (partition.source for topic in plan.topics for partition in topic.partitions)
    return tuple(
        f"{source.topic}-{source.partition}: {counted(source.gaps[GapReason.PRUNED], 'offset', 'was', 'were')} pruned "
        "from the archive; "
        f"the first one left is {source.first_offset:,}"
        for source in sources
        if GapReason.PRUNED in source.gaps
    )


def report_of(
    plan: RestorePlan,
    restored: Sequence[Restored],
    *,
    started_at_ms: int,
    resumed: bool,
    usable_at_ms: Mapping[str, int] | None = None,
) -> RestoreReport:
    found = {outcome.where: outcome for outcome in restored}
    partitions = []
    for topic in plan.topics:
        for partition, mode in _written(topic).items():
            where = TopicPartition(topic=topic.target.name, partition=partition)
            partitions.append(
                PartitionReport(
                    source=topic.target.source_topic,
                    target=topic.target.name,
                    partition=partition,
                    offsets=str(mode),
                    records=found[where].records,
                    end=found[where].end,
                    map=found[where].map,
                    failure=None if (failure := found[where].failure) is None else failure.as_dict(),
                )
            )
    return RestoreReport(
        restore_id=plan.restore_id,
        archive=plan.archive.url,
        cluster_id=plan.cluster_id,
        started_at_ms=started_at_ms,
        finished_at_ms=now_ms(),
        resumed=resumed,
        transform=plan.transform,
        partitions=tuple(partitions),
        access=None if any(outcome.failure is not None for outcome in restored) else plan.access,
        warnings=tuple(map(str, plan.obstacles)),
        # Repeated from the plan, so that the report can be read without it.
        run_id=plan.archive.run_id,
        retention=tuple(str(obstacle) for obstacle in plan.obstacles if obstacle.kind is ObstacleKind.RETENTION),
        known_from=plan.known_from,
        left_out=plan.left_out,
        schemas=plan.schemas,
        pruned=pruned_in(plan),
        usable_at_ms=usable_at_ms or {},
        accepted_gaps=tuple(str(obstacle) for obstacle in plan.obstacles if obstacle.kind in GAPS),
    )
