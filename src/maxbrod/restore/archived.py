"""An archive as seen by a request: the moment that it is read at, its rows, and the topics that the request means.

Also what is damaged in another tool's archive, or unknown, as obstacles of a restore. A segment that cannot be read is
in no row there: between rows it would look like offsets that never had a record.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from maxbrod.archive.pruned import PointInTime, had
from maxbrod.archive.selection import Incarnation, incarnations_in, newest_ids
from maxbrod.archive.snapshots import Moment, find_moment
from maxbrod.restore.plan.columns import SOURCE_COLUMNS
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind
from maxbrod.restore.plan.plan import SourceArchive
from maxbrod.restore.plan.request import Chosen, choose_incarnations

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from maxbrod.archive.archive import AnyCatalog, Archive
    from maxbrod.catalog.replaced import Revisions
    from maxbrod.catalog.rows import Run
    from maxbrod.layouts.foreign import Fault, Survey
    from maxbrod.model import PartitionId
    from maxbrod.restore.plan.request import RestoreRequest

_HINT: Final = "see 'maxbrod check'; or restore without what is lost: say --accept-gaps"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedRows:
    """Rows of some topics, read from the catalog when they are needed: see `SourceRows`."""

    catalog: AnyCatalog
    columns: Sequence[str]
    topic_ids: Collection[str] | None
    revisions: Revisions | None

    def portions(self) -> Iterator[pa.Table]:
        return self.catalog.portions(self.columns, topic_ids=self.topic_ids, revisions=self.revisions)

    def of_topic(self, topic_id: str) -> pa.Table:
        return self.catalog.rows(columns=self.columns, topic_ids=[topic_id], revisions=self.revisions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedState:
    """An archive as one request sees it."""

    archive: Archive
    moment: Moment
    revisions: Revisions
    rows: ArchivedRows
    """Only those of the chosen topics."""
    chosen: Chosen
    had: Callable[[pa.Table], pa.ChunkedArray] | None = None
    """See `looking_back`."""

    @property
    def source(self) -> SourceArchive:
        run = self.moment.run
        return SourceArchive(
            url=self.archive.url,
            version=self.archive.catalog.version,
            run_id=None if run is None or self.moment.snapshot is None else run.run_id,
        )

    @property
    def ends(self) -> Mapping[PartitionId, int]:
        return {} if self.moment.snapshot is None else self.moment.snapshot.ends

    def obstacles(self, *, accepted: bool) -> Iterator[Obstacle]:
        """Yield what is damaged or unknown in the archive. `accepted`: gaps are no reason to stop."""
        if self.archive.survey is not None:
            yield from _damage(self.archive.survey, self.chosen.topics.values(), accepted=accepted)
        if self.moment.run is not None and self.moment.snapshot is None:
            yield Obstacle(
                kind=ObstacleKind.INCOMPLETE,
                where=self.moment.run.run_id,
                what="its snapshot cannot be read: new topics get the target's defaults, and no groups are restored",
                hint=None,
                fatal=False,
            )


def look_at_archive(archive: Archive, request: RestoreRequest, *, columns: Collection[str] = ()) -> ArchivedState:
    """Choose topics; their rows are read later, with the columns that planning needs, and these."""
    # Without a snapshot topics would get the defaults of the target, and groups would not be restored. That must not
    # come as a surprise after all records are written.
    runs = archive.catalog.runs()
    moment = find_moment(archive.storage, runs, request.as_of, needed=not request.accept_gaps)
    revisions = moment.revisions_in(archive.catalog)
    topics, newest = known_topics(archive.catalog, moment, revisions)
    chosen = choose_incarnations(request, topics, newest)
    had = looking_back(request, moment, runs)
    needed = (*SOURCE_COLUMNS, *columns, *(() if had is None else ("run_id",)))
    rows = ArchivedRows(
        catalog=archive.catalog,
        columns=tuple(dict.fromkeys(needed)),
        topic_ids=chosen.topics,
        revisions=revisions,
    )
    return ArchivedState(archive=archive, moment=moment, revisions=revisions, rows=rows, chosen=chosen, had=had)


def looking_back(
    request: RestoreRequest, moment: Moment, runs: Sequence[Run]
) -> Callable[[pa.Table], pa.ChunkedArray] | None:
    """A function that marks gaps `pruned` since the point in the past that a request chooses: see `had`.

    It needs `run_id` too. None: the request asks for the present, and names no offsets.
    """
    point = PointInTime(run_id=moment.as_of, until_ms=request.until_ms, since_ms=request.since_ms)
    return partial(had, runs=runs, point=point) if point.chosen or request.ranges else None


def known_topics(catalog: AnyCatalog, moment: Moment, revisions: Revisions) -> tuple[dict[str, str], set[str]]:
    """The name of every topic id in rows or in the snapshot, and the ids that names without an id stand for."""
    found = incarnations_in(catalog.topics(revisions=revisions))
    named = {} if moment.snapshot is None else dict(moment.snapshot.topics)
    with_rows = {each.topic_id for each in found}
    # A topic without rows is older than one of the same name with rows.
    empty = [
        Incarnation(topic=name, topic_id=topic_id, first_written_at=0)
        for topic_id, name in named.items()
        if topic_id not in with_rows
    ]
    topics = {**named, **{each.topic_id: each.topic for each in found}}
    return topics, newest_ids([*found, *empty], moment.ranks)


def _damage(survey: Survey, chosen: Collection[str], *, accepted: bool) -> Iterator[Obstacle]:
    """Every fault that loses records, and every doubt, without those about topics that are not restored."""
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
