"""One topic in detail, now or as of any run: `maxbrod show`.

The offsets of a partition are also one line, with a cell for each range: a letter and a colour for what it holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from rich.text import Text

from maxbrod.archive.knowledge import Known
from maxbrod.archive.look import ArchiveLook, look_at
from maxbrod.archive.selection import Incarnation, matches_nothing, newest_ids
from maxbrod.archive.snapshots import Moment
from maxbrod.catalog.rows import Gap, Segment, decode_rows
from maxbrod.errors import UsageError
from maxbrod.inspect.listing import GenerationSummary, summarise_generations
from maxbrod.model import AbortedTransaction, GapReason, PartitionId

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive

_ROWS_DECODED: Final = 1 << 16
"""Rows take a hundred megabytes as values."""
EVERY: Final = "*"
"""Stands in place of a topic id for all incarnations."""
DATA: Final = "data"
HOLE: Final = "hole"
"""Offsets that no row covers, which must not happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Offsets [first, end) with the same cover: data, hole, or the reason of a gap."""

    first_offset: int
    end_offset: int
    cover: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionExtent:
    """The archived part of one partition. `exact` is false if the last slice reaches beyond the requested end.

    Records and bytes are then those of whole slices, and so upper bounds.
    """

    partition: int
    first_offset: int
    end_offset: int
    exact: bool
    records: int
    segments: int
    bytes: int
    raw_bytes: int
    min_timestamp: int | None
    max_timestamp: int | None
    first_leader_epoch: int | None
    last_leader_epoch: int | None
    spans: tuple[Span, ...]
    aborted: tuple[AbortedTransaction, ...]
    log_start: int | None = None
    """The start of the log at the run whose snapshot was read; None if the snapshot does not have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicGroupOffset:
    """The committed offset of a group. `lag` counts to the archive's end; it is negative if the archive is behind."""

    group_id: str
    type: str
    state: str
    partition: int
    offset: int
    lag: int
    metadata: str | None
    last_known: str | None = None
    """The run that last saw it, if the cluster no longer has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDetails:
    """One incarnation of a topic."""

    topic: str
    topic_id: str
    newest: bool
    partitions: tuple[PartitionExtent, ...]
    configs: Mapping[str, str | None] | None
    """The settings of the topic itself in the snapshot; None if the snapshot does not have them."""
    groups: tuple[TopicGroupOffset, ...]
    last_seen: str | None = None
    """The run that last saw the topic, if the cluster no longer has it."""
    described_by: str | None = None
    """The run that recorded `configs`, if it is not the snapshot's own."""
    generations: tuple[GenerationSummary, ...] = ()
    """Those of a compacted topic that is read in generations, by number; none as of an older run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    archive: str
    as_of: str | None
    snapshot: str | None
    """The run whose snapshot has configurations and groups; None if none could be read."""
    topics: tuple[TopicDetails, ...]
    """Newest first; more than one only if old incarnations were requested."""


def show_topic(
    archive: Archive,
    topic: str,
    *,
    partition: int | None = None,
    as_of: str | None = None,
    topic_id: str | None = None,
    look: ArchiveLook | None = None,
) -> TopicDescription:
    """The newest incarnation of a topic, or that of `topic_id`. UsageError: it does not exist.

    `look`: a look at the archive as of the same run, if there has been one.
    """
    look = look or look_at(archive, as_of)
    moment, archived = look.moment, look.incarnations
    snapshot = moment.snapshot
    names = {} if snapshot is None else snapshot.topics
    born = {
        incarnation.topic_id: incarnation.first_written_at for incarnation in archived if incarnation.topic == topic
    }
    # Some of these have rows.
    empty = [place for place in (() if snapshot is None else snapshot.ends) if names.get(place.topic_id) == topic]
    known = {*born, *(place.topic_id for place in empty)}
    if not known:
        raise matches_nothing(topic, {*(incarnation.topic for incarnation in archived), *names.values()})
    incarnations = [
        Incarnation(topic=topic, topic_id=topic_id, first_written_at=born.get(topic_id, 0)) for topic_id in known
    ]
    (newest,) = newest_ids(incarnations, moment.ranks)
    chosen = _chosen_ids(topic, known, newest, topic_id)
    extents = _measure(archive, sorted(place for place in empty if place.topic_id in chosen), chosen, moment)
    generations = summarise_generations(archive.catalog) if as_of is None else {}
    details = []
    for chosen_id in chosen:
        found = _details(topic, chosen_id, extents, moment, newest=chosen_id == newest)
        found = replace(found, generations=generations.get(chosen_id, ()))
        details.append(found if partition is None else _only(found, partition))
    return TopicDescription(
        archive=archive.url,
        as_of=moment.as_of,
        snapshot=None if snapshot is None else snapshot.run_id,
        topics=tuple(details),
    )


def _measure(
    archive: Archive, empty: Iterable[PartitionId], topic_ids: Collection[str], moment: Moment
) -> dict[PartitionId, PartitionExtent]:
    """The extent of each partition of these topics, measured portion by portion."""
    ends = {} if moment.snapshot is None else moment.snapshot.ends
    found = {place: measure_partition(place.partition, [], ends[place]) for place in empty}
    portions = archive.catalog.portions(
        topic_ids=topic_ids, as_of=moment.ends, revisions=moment.revisions, rows_max=_ROWS_DECODED
    )
    for portion in portions:
        rows: dict[PartitionId, list[Segment | Gap]] = {}
        for row in decode_rows(portion):
            if isinstance(row, (Segment, Gap)):  # it returns no other rows
                rows.setdefault(PartitionId(topic_id=row.topic_id, partition=row.partition), []).append(row)
        for place, mine in rows.items():
            found[place] = measure_partition(place.partition, mine, None if moment.as_of is None else ends.get(place))
    return dict(sorted(found.items()))


def _chosen_ids(topic: str, known: set[str], newest: str, topic_id: str | None) -> list[str]:
    if topic_id is None:
        return [newest]
    if topic_id == EVERY:
        return [newest, *sorted(known - {newest})]
    if topic_id not in known:
        raise UsageError(f"no topic {topic!r} has the id {topic_id}", hint=f"there are {', '.join(sorted(known))}")
    return [topic_id]


def _details(
    topic: str,
    topic_id: str,
    partitions: Mapping[PartitionId, PartitionExtent],
    moment: Moment,
    *,
    newest: bool,
) -> TopicDetails:
    log_starts = {} if moment.snapshot is None else moment.snapshot.log_starts
    extents = tuple(
        replace(extent, log_start=log_starts.get(partition))
        for partition, extent in partitions.items()
        if partition.topic_id == topic_id
    )
    described = () if moment.cluster is None else moment.cluster.topics
    return TopicDetails(
        topic=topic,
        topic_id=topic_id,
        newest=newest,
        partitions=extents,
        configs=next((state.configs for state in described if state.topic_id == topic_id), None),
        groups=() if moment.known is None else tuple(_groups(moment.known, topic, topic_id, extents)),
        last_seen=moment.lost.get(topic_id),
        described_by=moment.topic_runs.get(topic_id),
    )


def _groups(known: Known, topic: str, topic_id: str, extents: Iterable[PartitionExtent]) -> Iterator[TopicGroupOffset]:
    ends = {extent.partition: extent.end_offset for extent in extents}
    for group in known.cluster.groups:
        for committed in group.offsets or ():
            if (committed.topic, committed.topic_id) == (topic, topic_id) and committed.partition in ends:
                yield TopicGroupOffset(
                    group_id=group.group_id,
                    type=group.type,
                    state=group.state,
                    partition=committed.partition,
                    offset=committed.offset,
                    lag=ends[committed.partition] - committed.offset,
                    metadata=committed.metadata,
                    last_known=known.offset_runs.get((group.group_id, topic_id, committed.partition)),
                )


def _only(details: TopicDetails, partition: int) -> TopicDetails:
    chosen = tuple(extent for extent in details.partitions if extent.partition == partition)
    if not chosen:
        raise UsageError(
            f"the topic {details.topic!r} has no partition {partition}",
            hint=f"it has {', '.join(str(extent.partition) for extent in details.partitions)}",
        )
    groups = tuple(group for group in details.groups if group.partition == partition)
    return replace(details, partitions=chosen, groups=groups)


def measure_partition(partition: int, rows: Sequence[Segment | Gap], end: int | None) -> PartitionExtent:
    data = [row for row in rows if isinstance(row, Segment)]
    last = max((row.end_offset for row in rows), default=end or 0)
    reached = last if end is None else min(last, end)
    return PartitionExtent(
        partition=partition,
        first_offset=rows[0].base_offset if rows else reached,
        end_offset=reached,
        exact=not any(row.end_offset > reached for row in data),
        records=sum(row.records for row in data),
        segments=len(data),
        bytes=sum(row.bytes for row in data),
        raw_bytes=sum(row.raw_bytes for row in data),
        min_timestamp=min((row.min_timestamp for row in data if row.min_timestamp is not None), default=None),
        max_timestamp=max((row.max_timestamp for row in data if row.max_timestamp is not None), default=None),
        first_leader_epoch=data[0].first_leader_epoch if data else None,
        last_leader_epoch=data[-1].last_leader_epoch if data else None,
        spans=_spans(rows, reached),
        aborted=_aborted(data),
    )


def _spans(rows: Iterable[Segment | Gap], end: int) -> tuple[Span, ...]:
    """Neighbours with the same cover become one span; offsets without a row become a hole."""
    spans: list[Span] = []

    def add(first: int, last: int, cover: str) -> None:
        if spans and spans[-1].cover == cover:
            first = spans.pop().first_offset
        spans.append(Span(first_offset=first, end_offset=last, cover=cover))

    for row in rows:
        reached = spans[-1].end_offset if spans else row.base_offset
        first, last = max(row.base_offset, reached), min(row.end_offset, end)
        if first > reached:
            add(reached, first, HOLE)
        if last > first:
            add(first, last, DATA if isinstance(row, Segment) else str(row.reason))
    return tuple(spans)


def _aborted(data: Iterable[Segment]) -> tuple[AbortedTransaction, ...]:
    """Each transaction once: every slice that it touches names it, and it ends in the last of them."""
    found: dict[tuple[int, int], AbortedTransaction] = {}
    for row in data:
        for aborted in row.aborted:
            known = found.get((aborted.producer_id, aborted.first_offset))
            if known is None or known.last_offset < aborted.last_offset:
                found[aborted.producer_id, aborted.first_offset] = aborted
    return tuple(sorted(found.values(), key=lambda aborted: (aborted.first_offset, aborted.producer_id)))


MARKS: Final = {
    DATA: ("=", "green"),
    GapReason.COMPACTED: ("c", "cyan"),
    GapReason.RETENTION: ("r", "yellow"),
    GapReason.TRUNCATED: ("t", "magenta"),
    GapReason.PRUNED: ("p", "blue"),
    GapReason.DELETED: ("d", "bright_black"),
    GapReason.ERASED: ("e", "blue"),
    GapReason.UNRECORDED: ("u", "bright_black"),
    GapReason.CORRUPT: ("X", "bold red"),
    GapReason.UNEXPLAINED: ("?", "bold red"),
    HOLE: ("!", "bold white on red"),
}
"""The letter and the style of each cover. Letters differ without colour; neighbours never hide the last three."""
_ALARMING: Final = (GapReason.CORRUPT, GapReason.UNEXPLAINED, HOLE)
_UNKNOWN: Final = ("~", "red")


def coverage_bar(spans: Sequence[Span], width: int) -> Text:
    """Each cell shows what most of its offsets are; but a problem shows even if it is a single offset."""
    bar = Text(no_wrap=True)
    for cover in cells_of(spans, width):
        letter, style = MARKS.get(cover, _UNKNOWN)
        bar.append(letter, style)
    return bar


def legend(spans: Iterable[Span]) -> Text:
    """The meaning of the letters that occur."""
    covers = {span.cover for span in spans}
    line = Text()
    for cover, (letter, style) in MARKS.items():
        if cover in covers:
            line.append("  " if line else "").append(letter, style).append(f" {cover}")
    return line


def cells_of(spans: Sequence[Span], width: int) -> list[str]:
    """The cover of each of `width` ranges of the same size, or fewer: no cell has less than one offset."""
    if not spans:
        return []
    first, end = spans[0].first_offset, spans[-1].end_offset
    width = min(width, end - first)
    # Integers throughout: offsets have 63 bits, more than a float can hold.
    edges = [first + (end - first) * cell // width for cell in range(width + 1)]
    cells, place = [], 0
    for low, high in pairwise(edges):
        while spans[place].end_offset <= low:
            place += 1
        cells.append(_cover(spans, place, low, high))
    return cells


def _cover(spans: Sequence[Span], place: int, low: int, high: int) -> str:
    counts: dict[str, int] = {}
    while place < len(spans) and spans[place].first_offset < high:
        span = spans[place]
        offsets = min(span.end_offset, high) - max(span.first_offset, low)
        counts[span.cover] = counts.get(span.cover, 0) + offsets
        place += 1
    alarming = [cover for cover in _ALARMING if cover in counts]
    return str(alarming[-1]) if alarming else max(counts, key=lambda cover: counts[cover])
