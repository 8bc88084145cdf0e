"""What a use case tells when it is done: frozen values that print as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_FAILED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_VERDICTS: Final = {EXIT_DONE: "complete", EXIT_FAILED: "failed", EXIT_CORRUPT: "corrupt data found"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReport:
    """What a run has archived of one incarnation of a topic."""

    topic: str
    topic_id: str
    partitions: int
    records: int
    bytes: int
    """As stored."""
    raw_bytes: int
    """As read."""
    gaps: Mapping[str, int] = field(default_factory=dict)
    """Offsets without data, by reason."""
    waiting: int | None = 0
    """Offsets that are in the log and not in the archive: not read, of open transactions, or written since the run
    began. None where not every partition could be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that a person should know. `exit_code` is what it makes of the command's."""

    kind: str
    message: str
    topic: str | None = None
    partition: int | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    hint: str | None = None
    exit_code: int = EXIT_DONE

    def __str__(self) -> str:
        where = "" if self.topic is None else self.topic
        where += "" if self.partition is None else f"-{self.partition}"
        offsets = "" if self.first_offset is None else f" offsets {self.first_offset} to {self.end_offset}"
        return f"{where}{offsets}: {self.message}" if where else self.message


def worst_exit_code(notices: Iterable[Notice]) -> int:
    """Of the gravest notice: the archive could not be written, then damage, then what is missing."""
    codes = {notice.exit_code for notice in notices}
    return EXIT_FAILED if EXIT_FAILED in codes else max(codes, default=EXIT_DONE)


def verdict_of(exit_code: int) -> str:
    """What a backup that ends with this code is called."""
    return _VERDICTS.get(exit_code, "incomplete")


def add_up(counts: Iterable[int | None]) -> int | None:
    """The sum; None where one of them is unknown."""
    known = list(counts)
    return None if None in known else sum(each or 0 for each in known)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupReport:
    """One run of a backup. `complete`: every offset up to the planned end is archived or explained."""

    run_id: str
    archive: str
    started_at_ms: int
    finished_at_ms: int
    topics: tuple[TopicReport, ...]
    notices: tuple[Notice, ...]
    objects: int
    version: int
    """Of the catalog, which has everything that is reported here."""
    committed: bool
    """False if nothing was: there was nothing new, or it could not be stored."""
    recovery_point_ms: int | None
    """What was written before this moment to the topics of this run can be brought back; None: there is none yet."""
    planned: bool = True
    """False if the run ended before the cluster was asked what it has."""

    @property
    def complete(self) -> bool:
        return self.exit_code == EXIT_DONE

    @property
    def exit_code(self) -> int:
        """Of the gravest notice: the archive could not be written, then damage, then what is missing."""
        return worst_exit_code(self.notices)

    @property
    def verdict(self) -> str:
        """In a word, from the exit code: whoever prints one prints the other."""
        return verdict_of(self.exit_code)

    @property
    def records(self) -> int:
        return sum(topic.records for topic in self.topics)

    @property
    def bytes(self) -> int:
        return sum(topic.bytes for topic in self.topics)

    @property
    def raw_bytes(self) -> int:
        return sum(topic.raw_bytes for topic in self.topics)

    @property
    def waiting(self) -> int | None:
        """Offsets that the cluster has and the archive has not; None where not everything could be asked."""
        return add_up(topic.waiting for topic in self.topics) if self.planned else None

    def as_dict(self) -> dict[str, Any]:
        """For `--json`, and for the run's row in the catalog."""
        totals = {"records": self.records, "bytes": self.bytes, "raw_bytes": self.raw_bytes}
        verdict = {"complete": self.complete, "verdict": self.verdict, "exit_code": self.exit_code}
        return {**asdict(self), **totals, "waiting": self.waiting, **verdict}
