"""Where a restore goes on after a crash: from the stored plan and what the target's logs say now.

The order of records in a partition is a pure function of the plan, so the end of its log tells how many are there. What
is there in the end must still be compared, which needs the records: these functions refuse only what cannot be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.errors import RefusedError, TopicGoneError
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind
from maxbrod.restore.plan.request import OffsetsMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from maxbrod.kafka.state.cluster_state import TopicState
    from maxbrod.restore.plan.mapping import OffsetMap
    from maxbrod.restore.plan.plan import PartitionRestore, RestorePlan
    from maxbrod.restore.plan.targets import LogExtent, TargetTopic


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """What to do next in one partition, in this order: fill, delete fillers, skip records, restore."""

    fill_to: int | None
    """Offsets before the first record that fillers have yet to pass."""
    delete_before: int | None
    """Fillers that have yet to be deleted once that is done."""
    source_offset: int
    """Read on from here …"""
    skip_records: int
    """… and leave out this many records, which are there already."""
    target_offset: int
    """Where the next record will stand."""


def check_topic(target: TargetTopic, present: TopicState | None, created_id: str | None, *, empty: bool) -> bool:
    """Whether the topic is there, and can be gone on with; `created_id` is what was noted when this restore made it.

    One that this restore made and that is gone is made again, as if nothing had been restored to it. TopicGoneError: it
    is another one now, or is gone and was there before. RefusedError: somebody else made it, or changed its partitions.
    """
    known = target.target_id or created_id
    if present is None and target.target_id is None:
        return False
    if present is None or (known is not None and present.topic_id != known):
        raise TopicGoneError(
            "the topic that is restored to was deleted" + (", and is another one now" if present else ""),
            operation="go on with a restore",
            object_name=target.name,
            hint="delete the topic of this name and run the same command again: it is made anew"
            if target.target_id is None
            else "restore with another command, under another name",
        )
    if known is None and not empty:
        raise _refused("somebody else has created the topic, and written to it", target.name)
    if present.partition_count != target.partition_count:
        what = f"it has {present.partition_count} partitions now, not {target.partition_count}"
        raise _refused(what, target.name)
    return True


def done_before(
    plan: RestorePlan, created: Mapping[str, str], present: Callable[[str], TopicState | None]
) -> Iterator[Obstacle]:
    """Topics to which this very command has restored everything, so that once more would be twice.

    Whoever sees a command die cannot know whether that was before its end or after.
    """
    for target in (topic.target for topic in plan.topics):
        found, known = present(target.name), target.target_id or created.get(target.name)
        if found is not None and found.topic_id == known:
            yield Obstacle(
                kind=ObstacleKind.DONE_BEFORE,
                where=target.name,
                what="the same command has restored all of it already",
                hint=f"restores/{plan.restore_id}/ in the archive has its report; say --again to restore it once more: "
                "into an empty topic, or with --offsets append behind what is there",
                fatal=True,
            )


def held_by(
    plan: RestorePlan, created: Mapping[str, str], present: Callable[[str], TopicState | None]
) -> Iterator[Obstacle]:
    """Topics that another command's interrupted restore works on.

    Their configuration is what that one needs while it lasts, and whoever took it for theirs would leave it so.
    """
    for target in (topic.target for topic in plan.topics):
        found, known = present(target.name), target.target_id or created.get(target.name)
        if found is not None and found.topic_id == known:
            yield Obstacle(
                kind=ObstacleKind.HELD,
                where=target.name,
                what=f"the restore {plan.restore_id} into it, by another command, has not come to its end",
                hint="run that command again; or delete the topic, if it shall be given up",
                fatal=True,
            )


def resume_partition(
    plan: PartitionRestore,
    target: TargetTopic,
    extent: LogExtent,
    *,
    done: OffsetMap | None = None,
    acknowledged: int = 0,
) -> Next:
    """`extent` is the target partition's log now. `acknowledged` is the log end that was noted last, if it was.

    `done` is the map of what was noted as restored in append mode: it saves reading from the beginning.
    RefusedError: the log is not what this restore can have left.
    """
    partition, base = plan.source.partition, target.bases[plan.source.partition]
    name = f"{target.name}-{partition}"
    _check_not_shorter(extent, max(base, acknowledged), name)
    if plan.offsets.mode is OffsetsMode.EXACT:
        return _resume_exact(plan, base, extent, name)
    return _resume_append(plan, base, extent, done, name)


def resume_shared(name: str, base: int, extent: LogExtent) -> int:
    """Of a partition of a repartitioned topic: how many of the records that belong there are there already."""
    _check_not_shorter(extent, base, name)
    _check_start(extent, base, name)
    return extent.end - base


def check_finished(target: TargetTopic, partition: int, extent: LogExtent, *, target_end: int) -> None:
    """After the last record: the log must end where this restore has ended it."""
    name = f"{target.name}-{partition}"
    _check_not_shorter(extent, target_end, name)
    if extent.end > target_end:
        raise _foreign(extent, target_end, name)


def _resume_exact(plan: PartitionRestore, base: int, extent: LogExtent, name: str) -> Next:
    source = plan.source
    first = max(source.first_offset, base)
    if extent.end > max(source.asked_end, base):
        raise _foreign(extent, source.asked_end, name)
    _check_start(extent, first, name)
    filling = extent.end < first
    fillers = plan.offsets.cost.leading > 0 and extent.start < first
    return Next(
        fill_to=first if filling else None,
        delete_before=first if fillers else None,
        source_offset=max(extent.end, first),
        skip_records=0,
        target_offset=max(extent.end, first),
    )


def _resume_append(plan: PartitionRestore, base: int, extent: LogExtent, done: OffsetMap | None, name: str) -> Next:
    source = plan.source
    records, most = extent.end - base, source.asked_end - source.first_offset
    _check_start(extent, base, name)
    if records > most:
        raise _foreign(extent, base + most, name)
    noted = 0 if done is None else done.records
    if records < noted:
        raise _shorter(extent, base + noted, name)
    return Next(
        fill_to=None,
        delete_before=None,
        source_offset=source.first_offset if done is None or not noted else done.source_end,
        skip_records=records - noted,
        target_offset=extent.end,
    )


def _check_not_shorter(extent: LogExtent, least: int, name: str) -> None:
    if extent.end < least:
        raise _shorter(extent, least, name)


def _check_start(extent: LogExtent, first: int, name: str) -> None:
    if extent.start > first:
        what = f"its log begins at {extent.start}: what was restored from {first} on is deleted"
        raise _refused(what, name, offset=first)


def _shorter(extent: LogExtent, least: int, name: str) -> RefusedError:
    what = f"its log ends at {extent.end}, though {least} was reached: the cluster has lost records"
    return _refused(what, name, offset=extent.end)


def _foreign(extent: LogExtent, most: int, name: str) -> RefusedError:
    what = f"its log ends at {extent.end}, though this restore ends at {most} at most: somebody else writes to it"
    return _refused(what, name, offset=most)


def _refused(what: str, name: str, *, offset: int | None = None) -> RefusedError:
    return RefusedError(
        f"the restore cannot go on: {what}",
        operation="go on with a restore",
        object_name=name,
        offset=offset,
        hint="nothing was changed; delete the topic and restore it anew, or restore under another name",
    )
