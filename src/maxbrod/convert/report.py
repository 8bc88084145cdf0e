"""The report of a conversion."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from maxbrod.errors import EXIT_FAILED
from maxbrod.notices import Notice, verdict_of, worst_exit_code

if TYPE_CHECKING:
    from maxbrod.errors import MaxbrodError
    from maxbrod.transfer.task import Transferred
    from maxbrod.transform.plan import Changes


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedTopic:
    topic: str
    partitions: int
    records: int
    """Those that this run has written; the target may have held others before."""
    bytes: int
    source_records: int | None = None
    target_records: int | None = None
    """Both sides as they were read again afterwards; None if they were not."""
    source_digest: str | None = None
    target_digest: str | None = None

    @property
    def equal(self) -> bool | None:
        if self.source_digest is None:
            return None
        return (self.source_digest, self.source_records) == (self.target_digest, self.target_records)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertReport:
    run_id: str
    source: str
    source_layout: str
    target: str
    target_layout: str
    started_at_ms: int
    finished_at_ms: int
    topics: tuple[ConvertedTopic, ...]
    losses: tuple[str, ...]
    """What the target's layout cannot hold."""
    notices: tuple[Notice, ...]
    changes: tuple[Changes, ...] = ()
    """What the expressions changed in the records that this run has written."""

    @property
    def exit_code(self) -> int:
        return worst_exit_code(self.notices)

    @property
    def verdict(self) -> str:
        return verdict_of(self.exit_code)

    def as_dict(self) -> dict[str, Any]:
        topics = [{**asdict(topic), "equal": topic.equal} for topic in self.topics]
        return {**asdict(self), "topics": topics, "verdict": self.verdict, "exit_code": self.exit_code}


@dataclass(slots=True)
class TopicCounts:
    """The counts of one topic during a conversion."""

    partitions: int = 0
    records: int = 0
    bytes: int = 0
    verified: dict[str, Any] = field(default_factory=dict)

    def report(self, name: str) -> ConvertedTopic:
        return ConvertedTopic(
            topic=name, partitions=self.partitions, records=self.records, bytes=self.bytes, **self.verified
        )


def failed(done: Transferred, error: MaxbrodError) -> Notice:
    """The notice for a partition that was not converted, or not to its end."""
    return Notice(
        kind="failed",
        message=error.told_of(str(done.where)),
        topic=done.where.topic,
        partition=done.where.partition,
        first_offset=done.start if error.offset is None else error.offset,
        end_offset=done.end if error.offset is None else error.offset + 1,
        hint=error.hint,
        exit_code=error.exit_code or EXIT_FAILED,
    )
