"""What a compaction did, or would do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_FAILED, EXIT_INCOMPLETE

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactFault:
    """Why segments [base_offset, end_offset) of a partition stay as they are."""

    topic: str
    partition: int
    base_offset: int
    end_offset: int
    message: str
    object_name: str | None
    offset: int | None
    damaged: bool
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedTopic:
    """`segments` and `bytes` are those before, `new_segments` and `new_bytes` those that replaced them."""

    topic: str
    partitions: int
    merges: int
    """The number of new objects."""
    segments: int
    new_segments: int
    bytes: int
    new_bytes: int | None
    """None: nothing was written."""
    records: int | None
    left: Mapping[str, int]
    """The number of segments that stay as they are, by reason."""
    removed: int | None = None
    """The records, of `records`, that a compaction by key removed. None: it was none, or nothing was written."""
    larger: str | None = None
    """Why the topic takes more bytes than before. None: it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport:
    archive: str
    layout: str
    run_id: str | None
    """None: nothing was changed."""
    dry_run: bool
    started_at_ms: int
    finished_at_ms: int
    topics: tuple[CompactedTopic, ...]
    faults: tuple[CompactFault, ...] = ()
    overtaken: int = 0
    """Merges that were dropped because another writer replaced their segments meanwhile."""
    commits: int = 0
    interrupted: bool = False
    cut: str | None = None
    """The run up to which records were compacted by key. None: segments were merged."""

    @property
    def exit_code(self) -> int:
        if any(fault.damaged for fault in self.faults):
            return EXIT_CORRUPT
        if self.faults:
            return EXIT_FAILED
        return EXIT_INCOMPLETE if self.interrupted else EXIT_DONE

    def total(self, name: str) -> int:
        return sum(getattr(topic, name) or 0 for topic in self.topics)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "exit_code": self.exit_code}


@dataclass(slots=True, kw_only=True)
class TopicFigures:
    """Adds up what was merged of one topic."""

    topic: str
    partitions: set[tuple[str, int]]
    merges: int = 0
    segments: int = 0
    new_segments: int = 0
    bytes: int = 0
    new_bytes: int | None = None
    records: int | None = None

    def add(
        self, where: tuple[str, int], *, segments: int, new: int, size: int, new_size: int | None, records: int | None
    ) -> None:
        self.partitions.add(where)
        self.merges += 1
        self.segments += segments
        self.new_segments += new
        self.bytes += size
        if new_size is not None:
            self.new_bytes = (self.new_bytes or 0) + new_size
        if records is not None:
            self.records = (self.records or 0) + records


def why_larger(before: int, after: int | None, recompress: str, otherwise: str) -> str | None:
    """Why bytes grew; None if they did not. Only what `--recompress auto` stores is meant to be the smaller choice."""
    if after is None or after <= before:
        return None
    return otherwise if recompress == "auto" else f"--recompress {recompress} was asked for"


class Figures:
    def __init__(self, recompress: str, otherwise: str = "segments that do not shrink share objects in frames") -> None:
        """`otherwise` says why bytes grow though nobody asked for another compression."""
        self._topics: dict[str, TopicFigures] = {}
        self._why = recompress, otherwise

    def of(self, topic: str) -> TopicFigures:
        return self._topics.setdefault(topic, TopicFigures(topic=topic, partitions=set()))

    def topics(self, left: Mapping[str, Mapping[str, int]]) -> tuple[CompactedTopic, ...]:
        for topic in left:
            self.of(topic)
        return tuple(self._topic(each, left.get(topic, {})) for topic, each in sorted(self._topics.items()))

    def _topic(self, each: TopicFigures, left: Mapping[str, int]) -> CompactedTopic:
        return CompactedTopic(
            topic=each.topic,
            partitions=len(each.partitions),
            merges=each.merges,
            segments=each.segments,
            new_segments=each.new_segments,
            bytes=each.bytes,
            new_bytes=each.new_bytes,
            records=each.records,
            left=dict(left),
            larger=why_larger(each.bytes, each.new_bytes, *self._why),
        )
