"""One topic: what is archived of its offsets and of its time, what is missing and why, its configuration. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.archive.selection import exact_word
from maxbrod.inspect.topic import DATA, HOLE
from maxbrod.model import GapReason
from maxbrod.serve.pages.charts import OverTime, Rect, Tick, histogram_rects, offset_rects, time_ticks
from maxbrod.serve.pages.frame import Listed, link, listed
from maxbrod.serve.pages.topics import ALARMING

if TYPE_CHECKING:
    from maxbrod.inspect.listing import TopicSummary
    from maxbrod.inspect.topic import PartitionExtent, TopicDetails, TopicGroupOffset

PARTITIONS_SHOWN: Final = 50
_GAPS_SHOWN: Final = 200
_GROUPS_SHOWN: Final = 100
REASONS: Final = {
    DATA: "archived",
    GapReason.COMPACTED: "the broker had removed these by compaction, because newer records of the same keys exist",
    GapReason.RETENTION: "retention had deleted these before a backup could read them",
    GapReason.TRUNCATED: "the log was truncated: these were lost by the cluster",
    GapReason.PRUNED: "pruned from the archive on purpose",
    GapReason.DELETED: "a client had deleted these",
    GapReason.ERASED: "erased from the archive, because a person asked for it",
    GapReason.UNRECORDED: "the tool that wrote the archive records nothing about these",
    GapReason.CORRUPT: "damaged at the source, or an object of the archive is lost",
    GapReason.UNEXPLAINED: "missing, and nothing explains why",
    HOLE: "no row of the catalog covers these: this must not happen",
}
"""What each cover means, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLine:
    extent: PartitionExtent
    offsets: tuple[Rect, ...]
    times: tuple[Rect, ...]
    missing: int
    href: str
    """Its first records."""
    newest_href: str | None
    """Its last ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapLine:
    partition: int
    first_offset: int
    end_offset: int
    reason: str
    meaning: str
    alarming: bool

    @property
    def count(self) -> int:
        return self.end_offset - self.first_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLine:
    """A group on this topic, all partitions together."""

    group_id: str
    type: str
    state: str
    partitions: int
    lag: int
    last_known: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherTopic:
    """Another topic that had the same name."""

    topic_id: str
    newest: bool
    records: int
    min_timestamp: int | None
    max_timestamp: int | None
    href: str
    current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPage:
    details: TopicDetails
    partitions: Listed[PartitionLine]
    records: int
    bytes: int
    raw_bytes: int
    covers: tuple[tuple[str, str], ...]
    """Those that occur, for the legend, with what they mean."""
    gaps: tuple[GapLine, ...]
    gaps_total: int
    bars: tuple[Rect, ...]
    time: OverTime | None
    ticks: tuple[Tick, ...]
    groups: tuple[GroupLine, ...]
    groups_total: int
    others: tuple[OtherTopic, ...]
    configs: tuple[tuple[str, str | None], ...] | None
    restore_href: str
    history_href: str


def topic_view(
    slug: str,
    details: TopicDetails,
    time: OverTime | None,
    summaries: Sequence[TopicSummary],
    *,
    first: int = 0,
) -> TopicPage:
    """`summaries` are all topics that ever had this name; `first` is the first partition to show."""
    given = {"name": details.topic, "id": None if details.newest else details.topic_id}
    gaps = [gap for extent in details.partitions for gap in _gaps(extent)]
    # What needs attention must not be beyond the end of the list.
    gaps.sort(key=lambda gap: (not gap.alarming, gap.partition, gap.first_offset))
    covers = {span.cover for extent in details.partitions for span in extent.spans}
    shown = listed(details.partitions, first, PARTITIONS_SHOWN)
    lines = [_partition(slug, given, extent, time) for extent in shown.items]
    hrefs = [
        None
        if time is None or step.busiest is None
        else link(slug, "records", **given, partition=step.busiest, time=step.first_ms)
        for step in (() if time is None else time.steps)
    ]
    groups = group_lines(details.groups)
    return TopicPage(
        details=details,
        partitions=Listed(items=lines, total=shown.total, first=shown.first, size=shown.size),
        records=sum(extent.records for extent in details.partitions),
        bytes=sum(extent.bytes for extent in details.partitions),
        raw_bytes=sum(extent.raw_bytes for extent in details.partitions),
        covers=tuple((str(cover), meaning) for cover, meaning in REASONS.items() if cover in covers),
        gaps=tuple(gaps[:_GAPS_SHOWN]),
        gaps_total=len(gaps),
        bars=() if time is None else tuple(histogram_rects(time.steps, hrefs)),
        time=time,
        ticks=() if time is None else time_ticks(time.first_ms, time.end_ms),
        groups=tuple(groups[:_GROUPS_SHOWN]),
        groups_total=len(groups),
        others=tuple(_other(slug, summary, details.topic_id) for summary in summaries),
        configs=None if details.configs is None else tuple(sorted(details.configs.items())),
        restore_href=link(slug, "restore", topics=exact_word(details.topic), topic_ids=given["id"]),
        history_href=link(slug, "history", **given),
    )


def _partition(
    slug: str, given: Mapping[str, str | None], extent: PartitionExtent, time: OverTime | None
) -> PartitionLine:
    number = extent.partition
    newest = None if extent.max_timestamp is None else max(extent.end_offset - 50, extent.first_offset)
    return PartitionLine(
        extent=extent,
        offsets=offset_rects(extent.spans),
        times=() if time is None else time.partitions.get(number, ()),
        missing=sum(span.end_offset - span.first_offset for span in extent.spans if span.cover != DATA),
        href=link(slug, "records", **given, partition=number, offset=extent.first_offset),
        newest_href=None if newest is None else link(slug, "records", **given, partition=number, offset=newest),
    )


def _gaps(extent: PartitionExtent) -> list[GapLine]:
    return [
        GapLine(
            partition=extent.partition,
            first_offset=span.first_offset,
            end_offset=span.end_offset,
            reason=str(span.cover),
            meaning=REASONS.get(span.cover, "a reason that this release does not know"),
            alarming=span.cover in ALARMING,
        )
        for span in extent.spans
        if span.cover != DATA
    ]


def group_lines(offsets: Sequence[TopicGroupOffset]) -> list[GroupLine]:
    """A line for each group, the one that was furthest behind first."""
    by_group: dict[str, list[TopicGroupOffset]] = {}
    for offset in offsets:
        by_group.setdefault(offset.group_id, []).append(offset)
    lines = [
        GroupLine(
            group_id=group_id,
            type=mine[0].type,
            state=mine[0].state,
            partitions=len(mine),
            lag=sum(max(offset.lag, 0) for offset in mine),
            last_known=next((offset.last_known for offset in mine if offset.last_known is not None), None),
        )
        for group_id, mine in by_group.items()
    ]
    return sorted(lines, key=lambda line: (-line.lag, line.group_id))


def _other(slug: str, summary: TopicSummary, current: str) -> OtherTopic:
    topic_id = None if summary.newest else summary.topic_id
    return OtherTopic(
        topic_id=summary.topic_id,
        newest=summary.newest,
        records=summary.records,
        min_timestamp=summary.min_timestamp,
        max_timestamp=summary.max_timestamp,
        href=link(slug, "topic", name=summary.topic, id=topic_id),
        current=summary.topic_id == current,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSeen:
    """The configuration of a topic as one run captured it; None: that run did not see the topic or its settings."""

    run_id: str
    at_ms: int
    configs: Mapping[str, str | None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChangeLine:
    """One setting that differs from the run before."""

    run_id: str
    at_ms: int
    name: str
    before: str | None
    after: str | None
    kind: str
    """set, removed or changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryView:
    topic: str
    changes: tuple[ConfigChangeLine, ...]
    """Newest first."""
    looked: int
    """Runs that were looked at."""
    left: int
    """Older runs that were not."""
    first_ms: int | None
    unreadable: int


def history_view(topic: str, seen: Sequence[ConfigSeen], *, left: int, unreadable: int) -> HistoryView:
    """What changed from run to run. `seen` is oldest first."""
    changes: list[ConfigChangeLine] = []
    known: Mapping[str, str | None] | None = None
    for look in seen:
        if look.configs is None:
            continue
        if known is not None:
            changes += _config_changes(known, look)
        known = look.configs
    return HistoryView(
        topic=topic,
        changes=tuple(reversed(changes)),
        looked=len(seen),
        left=left,
        first_ms=seen[0].at_ms if seen else None,
        unreadable=unreadable,
    )


def _config_changes(before: Mapping[str, str | None], look: ConfigSeen) -> list[ConfigChangeLine]:
    after = look.configs or {}
    return [
        ConfigChangeLine(
            run_id=look.run_id,
            at_ms=look.at_ms,
            name=name,
            before=before.get(name),
            after=after.get(name),
            kind="set" if name not in before else "removed" if name not in after else "changed",
        )
        for name in sorted(before.keys() | after.keys())
        if (name in before) != (name in after) or before.get(name) != after.get(name)
    ]
