"""The list of topics: what is archived of each, and how far its groups were behind when it was backed up. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from maxbrod.inspect.topic import HOLE
from maxbrod.model import GapReason
from maxbrod.serve.pages.charts import Rect
from maxbrod.serve.pages.frame import Listed, link, listed

if TYPE_CHECKING:
    from maxbrod.archive.snapshots import Moment
    from maxbrod.inspect.listing import TopicListing, TopicSummary

PAGE_SIZE: Final = 100
ALARMING: Final = frozenset({GapReason.CORRUPT, GapReason.UNEXPLAINED, HOLE})
SORTS: Final[Mapping[str, Callable[[TopicLine], Any]]] = {
    "name": lambda line: line.summary.topic,
    "records": lambda line: -line.summary.records,
    "bytes": lambda line: -line.summary.bytes,
    "gaps": lambda line: -line.missing,
    "lag": lambda line: -(line.lag.most if line.lag is not None else -1),
    "newest": lambda line: -(line.summary.max_timestamp or 0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """The groups of one topic at the last backup."""

    groups: int
    most: int
    """The lag of the group that was furthest behind, over all partitions."""
    slowest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLine:
    summary: TopicSummary
    lag: GroupLag | None
    href: str
    cover: tuple[Rect, ...]
    missing: int
    """Offsets without data."""
    alarming: bool

    @property
    def covered(self) -> str:
        """The part of the offsets that has data, never rounded up to all of them."""
        offsets = self.summary.offsets
        if not offsets:
            return "empty"
        if not self.missing:
            return "100%"
        return f"{min(100 * (offsets - self.missing) / offsets, 99.9):.1f}%"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsView:
    lines: Listed[TopicLine]
    filter: str
    sort: str
    every: bool
    past: int
    """Topics that were deleted and created again since."""
    records: int
    bytes: int


def group_lags(moment: Moment) -> dict[str, GroupLag]:
    """By topic id: the lag of its groups behind the end of the archive, as of the snapshot."""
    snapshot, cluster = moment.snapshot, moment.cluster
    if snapshot is None or cluster is None:
        return {}
    ends: dict[str, dict[int, int]] = {}
    for place, end in snapshot.ends.items():
        ends.setdefault(place.topic_id, {})[place.partition] = end
    lags: dict[str, dict[str, int]] = {}
    for group in cluster.groups:
        for committed in group.offsets or ():
            topic_id = committed.topic_id or ""
            archived = ends.get(topic_id, {}).get(committed.partition)
            if archived is not None:
                mine = lags.setdefault(topic_id, {})
                mine[group.group_id] = mine.get(group.group_id, 0) + max(archived - committed.offset, 0)
    return {topic_id: _lag(groups) for topic_id, groups in lags.items()}


def _lag(groups: Mapping[str, int]) -> GroupLag:
    slowest = max(groups, key=lambda name: groups[name])
    return GroupLag(groups=len(groups), most=groups[slowest], slowest=slowest)


def topic_lines(slug: str, listing: TopicListing, lags: Mapping[str, GroupLag]) -> list[TopicLine]:
    """A line for each topic, older ones of the same name included."""
    return [_line(slug, summary, lags.get(summary.topic_id)) for summary in listing.topics]


def _line(slug: str, summary: TopicSummary, lag: GroupLag | None) -> TopicLine:
    missing = sum(summary.gaps.values())
    topic_id = None if summary.newest else summary.topic_id
    return TopicLine(
        summary=summary,
        lag=lag,
        href=link(slug, "topic", name=summary.topic, id=topic_id),
        cover=tuple(_cover(summary)),
        missing=missing,
        alarming=not ALARMING.isdisjoint(summary.gaps),
    )


def _cover(summary: TopicSummary) -> Iterable[Rect]:
    """How much of the topic's offsets is archived, and why the rest is not: shares, not places."""
    if not summary.offsets:
        return
    shares = [("data", summary.offsets - sum(summary.gaps.values())), *summary.gaps.items()]
    # A single lost offset must be seen.
    shown = [(cover, count, max(1000 * count / summary.offsets, 12.0)) for cover, count in shares if count > 0]
    scale = 1000 / sum(width for _, _, width in shown)
    x = 0.0
    for cover, count, width in shown:
        size = round(width * scale, 2)
        yield Rect(x=round(x, 2), width=size, cover=str(cover), title=f"{count:,} offsets: {cover}")
        x += size


def topics_view(
    lines: Sequence[TopicLine], *, words: str = "", sort: str = "name", first: int = 0, every: bool = False
) -> TopicsView:
    """One page of the list. `words`: only topics whose name has all of these."""
    wanted = words.casefold().split()
    chosen = [line for line in lines if every or line.summary.newest]
    chosen = [line for line in chosen if all(word in line.summary.topic.casefold() for word in wanted)]
    sort = sort if sort in SORTS else "name"
    chosen.sort(key=SORTS[sort])
    return TopicsView(
        lines=listed(chosen, first, PAGE_SIZE),
        filter=words,
        sort=sort,
        every=every,
        past=sum(not line.summary.newest for line in lines),
        records=sum(line.summary.records for line in chosen),
        bytes=sum(line.summary.bytes for line in chosen),
    )
