"""What is damaged in another tool's archive, and what it cannot tell, as obstacles of a restore.

A segment that cannot be made out is in no row, and between rows it would look like offsets that never had a record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from maxbrod.archive.snapshots import Moment
    from maxbrod.layouts.foreign import Fault, Survey

_HINT: Final = "see 'maxbrod check'; restore without what is lost by --accept-gaps"


def damage(survey: Survey | None, chosen: Collection[str], *, accepted: bool) -> Iterator[Obstacle]:
    """Every fault by which records are lost, and every doubt, but those of topics that are not restored."""
    if survey is None:
        return
    others = set(survey.topics) - set(chosen)
    for fault in survey.faults:
        if fault.fatal and not _is_about(fault, others):
            yield Obstacle(
                kind=ObstacleKind.CORRUPT,
                where=fault.path,
                what=fault.message,
                hint=_HINT,
                fatal=not accepted,
                offset=fault.offset,
            )
    for doubt in survey.doubts:
        if doubt.topic not in others:
            yield Obstacle(
                kind=ObstacleKind.UNPROVED,
                where=None if doubt.partition is None else f"{doubt.topic}-{doubt.partition}",
                what=doubt.what,
                hint=doubt.hint,
                fatal=doubt.refused and not accepted,
            )


def _is_about(fault: Fault, topics: Collection[str]) -> bool:
    """By its path: in every layout the name of the topic is a folder of it."""
    return not set(topics).isdisjoint(fault.path.split("/"))


def without_snapshot(moment: Moment) -> Iterator[Obstacle]:
    """What is accepted to be missing, where the run recorded one that cannot be read and the restore goes without."""
    if moment.run is not None and moment.snapshot is None:
        yield Obstacle(
            kind=ObstacleKind.INCOMPLETE,
            where=moment.run.run_id,
            what="its snapshot cannot be read: new topics get the target's defaults, and no groups are restored",
            hint=None,
            fatal=False,
        )
