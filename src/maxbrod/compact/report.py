"""The report of a compaction, and the tally that it is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
from maxbrod.storage.interface import HeldObject
from maxbrod.work.report import Report

if TYPE_CHECKING:
    from maxbrod.work.work import Work

_DAMAGES: Final = (CorruptDataError, ObjectNotFoundError, TruncatedDataError, UnsupportedFormatError)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactFault:
    """The reason why segments [base_offset, end_offset) of a partition stay as they are."""

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
    partitions: int = 0
    merges: int = 0
    """The number of new objects."""
    segments: int = 0
    new_segments: int = 0
    bytes: int = 0
    new_bytes: int | None = None
    """None: nothing was written."""
    records: int | None = None
    left: Mapping[str, int] = field(default_factory=dict)
    """The number of segments that stay as they are, by reason."""
    removed: int | None = None
    """The records, of `records`, that a compaction by key removed. None: it was none, or nothing was written."""
    larger: str | None = None
    """The reason why the topic takes more bytes than before. None: it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport(Report):
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
    held_objects: tuple[HeldObject, ...] = ()
    """Objects that were to be deleted, and that a lock or a missing right keeps."""

    @property
    def exit_code(self) -> int:
        if any(fault.damaged for fault in self.faults):
            return EXIT_CORRUPT
        if self.faults:
            return EXIT_FAILED
        return EXIT_INCOMPLETE if self.interrupted else EXIT_DONE

    def total(self, name: str) -> int:
        return sum(getattr(topic, name) or 0 for topic in self.topics)


class Tally:
    """Keeps what a compaction has done so far, and makes its report of it."""

    def __init__(self, work: Work, archive_url: str, layout: str, *, why_larger: str, cut: str | None = None) -> None:
        """`why_larger` says why bytes grow though nobody asked for another compression."""
        self._work, self._options = work, work.config.compact
        self._archive_url, self._layout, self._why_larger, self._cut = archive_url, layout, why_larger, cut
        self._topics: dict[str, CompactedTopic] = {}
        self._partitions: dict[str, set[tuple[str, int]]] = {}
        self.faults: list[CompactFault] = []
        self.overtaken = self.commits = 0
        self.held_objects: tuple[HeldObject, ...] = ()
        self.run_id: str | None = None
        """The last run that was committed."""

    def begin(self, topic: CompactedTopic) -> None:
        """Report this topic also if nothing of it changes."""
        self._topics[topic.topic] = topic

    def leave(self, topic: str, reasons: Mapping[str, int]) -> None:
        """Count segments that stay as they are."""
        if reasons:
            known = self._topics.get(topic) or CompactedTopic(topic=topic)
            left = Counter(known.left)
            left.update(reasons)
            self._topics[topic] = replace(known, left=dict(left))

    def add(self, topic: str, where: tuple[str, int], **figures: int | None) -> None:
        """Add figures of `CompactedTopic`, of one partition of a topic. None: it is not known before it is made."""
        known = self._topics.get(topic) or CompactedTopic(topic=topic)
        self._partitions.setdefault(topic, set()).add(where)
        sums: dict[str, Any] = {
            name: (getattr(known, name) or 0) + figure for name, figure in figures.items() if figure is not None
        }
        self._topics[topic] = replace(known, partitions=len(self._partitions[topic]), **sums)

    def committed(self, run_id: str) -> None:
        self.commits += 1
        self.run_id = run_id

    def report(self) -> CompactReport:
        return CompactReport(
            archive=self._archive_url,
            layout=self._layout,
            run_id=self.run_id,
            dry_run=self._options.dry_run,
            started_at_ms=self._work.started_at_ms,
            finished_at_ms=now_ms(),
            topics=tuple(replace(figures, larger=self._larger(figures)) for _, figures in sorted(self._topics.items())),
            faults=tuple(self.faults),
            overtaken=self.overtaken,
            commits=self.commits,
            interrupted=self._work.is_stopped(),
            cut=self._cut,
            held_objects=self.held_objects,
        )

    def _larger(self, topic: CompactedTopic) -> str | None:
        if topic.new_bytes is None or topic.new_bytes <= topic.bytes:
            return None
        # Only what `--recompress auto` stores is meant to be the smaller choice.
        asked = self._options.recompress
        return self._why_larger if asked == "auto" else f"--recompress {asked} was asked for"
