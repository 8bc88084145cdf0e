"""The report of one run of a backup: frozen values that print as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from maxbrod.errors import EXIT_DONE
from maxbrod.notices import Notice, verdict_of, worst_exit_code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


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
