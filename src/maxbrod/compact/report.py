"""The report of a compaction, and the tally that it is made of."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import (
    EXIT_CORRUPT,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INCOMPLETE,
    CorruptDataError,
    MaxbrodError,
    ObjectNotFoundError,
    TruncatedDataError,
    UnsupportedFormatError,
)
from maxbrod.model import now_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.work.work import Work

_DAMAGES: Final = (CorruptDataError, ObjectNotFoundError, TruncatedDataError, UnsupportedFormatError)


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
    """Otherwise the store did not answer, and trying again may help."""
    hint: str | None = None

    @classmethod
    def of(cls, error: MaxbrodError, topic: str, partition: int, base_offset: int, end_offset: int) -> CompactFault:
        return cls(
            topic=topic,
            partition=partition,
            base_offset=base_offset,
            end_offset=end_offset,
            message=error.message,
            object_name=error.object_name,
            offset=error.offset,
            damaged=isinstance(error, _DAMAGES),
            hint=error.hint,
        )


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
    """Adds up what was compacted of one topic."""

    partitions: set[tuple[str, int]] = field(default_factory=set)
    merges: int = 0
    segments: int = 0
    new_segments: int = 0
    bytes: int = 0
    new_bytes: int | None = None
    records: int | None = None
    removed: int | None = None
    left: Counter[str] = field(default_factory=Counter)

    def add(
        self,
        where: tuple[str, int],
        *,
        segments: int,
        size: int,
        merges: int = 1,
        new: int = 0,
        new_size: int | None = None,
        records: int | None = None,
        removed: int | None = None,
    ) -> None:
        """Add a change. None: it is not known before it is made."""
        self.partitions.add(where)
        self.merges += merges
        self.segments += segments
        self.new_segments += new
        self.bytes += size
        self.new_bytes = _plus(self.new_bytes, new_size)
        self.records = _plus(self.records, records)
        self.removed = _plus(self.removed, removed)


def _plus(known: int | None, more: int | None) -> int | None:
    return known if more is None else (known or 0) + more


class Tally:
    """Keeps what a compaction has done so far, and makes its report of it."""

    def __init__(self, work: Work, archive_url: str, layout: str, *, why_larger: str) -> None:
        """`why_larger` says why bytes grow though nobody asked for another compression."""
        self._work, self._options = work, work.config.compact
        self._archive_url, self._layout, self._why_larger = archive_url, layout, why_larger
        self._topics: dict[str, TopicFigures] = {}
        self.faults: list[CompactFault] = []
        self.overtaken = self.commits = 0
        self.run_id: str | None = None
        """The last run that was committed."""

    def of(self, topic: str) -> TopicFigures:
        return self._topics.setdefault(topic, TopicFigures())

    def committed(self, run_id: str) -> None:
        self.commits += 1
        self.run_id = run_id

    def report(self, *, cut: str | None = None) -> CompactReport:
        return CompactReport(
            archive=self._archive_url,
            layout=self._layout,
            run_id=self.run_id,
            dry_run=self._options.dry_run,
            started_at_ms=self._work.started_at_ms,
            finished_at_ms=now_ms(),
            topics=tuple(self._topic(topic, figures) for topic, figures in sorted(self._topics.items())),
            faults=tuple(self.faults),
            overtaken=self.overtaken,
            commits=self.commits,
            interrupted=self._work.is_stopped(),
            cut=cut,
        )

    def _topic(self, topic: str, figures: TopicFigures) -> CompactedTopic:
        larger = None
        if figures.new_bytes is not None and figures.new_bytes > figures.bytes:
            # Only what `--recompress auto` stores is meant to be the smaller choice.
            asked = self._options.recompress
            larger = self._why_larger if asked == "auto" else f"--recompress {asked} was asked for"
        return CompactedTopic(
            topic=topic,
            partitions=len(figures.partitions),
            merges=figures.merges,
            segments=figures.segments,
            new_segments=figures.new_segments,
            bytes=figures.bytes,
            new_bytes=figures.new_bytes,
            records=figures.records,
            left=dict(figures.left),
            removed=figures.removed,
            larger=larger,
        )
