"""The report of one run of a backup, as values that print as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from maxbrod.archive.runs import PARTIAL
from maxbrod.backup.notices import is_partial
from maxbrod.errors import EXIT_DONE
from maxbrod.notices import Notice, verdict_of, worst_exit_code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_FINDINGS_MAX: Final = 1000
_HINTS_MAX: Final = 10
_KEPT: Final = frozenset({"truncated", "generation"})
"""Notices that say how the archive has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReport:
    """The figures of one incarnation of a topic in one run."""

    topic: str
    topic_id: str
    partitions: int
    records: int
    bytes: int
    """Bytes stored."""
    raw_bytes: int
    """Bytes read."""
    gaps: Mapping[str, int] = field(default_factory=dict)
    """Offsets without data, by reason."""
    waiting: int | None = 0
    """Offsets that are in the log and not in the archive: not read, of open transactions, or written since the run
    began. None if not every partition answered."""


def add_up(counts: Iterable[int | None]) -> int | None:
    """The sum; None if one of them is unknown."""
    known = list(counts)
    return None if None in known else sum(each or 0 for each in known)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupReport:
    """One run of a backup. It is `complete` if every offset up to the planned end is archived or explained."""

    run_id: str
    archive: str
    started_at_ms: int
    finished_at_ms: int
    topics: tuple[TopicReport, ...]
    notices: tuple[Notice, ...]
    objects: int
    version: int
    """The version of the catalog that contains everything reported here."""
    committed: bool
    """False if there was nothing new, or if it could not be stored."""
    recovery_point_ms: int | None
    """Everything written before this moment to the topics of this run can be restored; None: there is none yet."""
    planned: bool = True
    """False if the run ended before it knew what the cluster has."""
    of_partitions: int | None = None
    """If several instances divide the partitions: how many all of them have. Everything else here is about the
    partitions of this run. None: they are all."""

    @property
    def complete(self) -> bool:
        return self.exit_code == EXIT_DONE

    @property
    def exit_code(self) -> int:
        """The code of the most severe notice: archive not written, then damage, then missing records."""
        return worst_exit_code(self.notices)

    @property
    def partial(self) -> bool:
        """Whether topics that were asked for may be hidden from this user."""
        return is_partial(self.notices)

    @property
    def verdict(self) -> str:
        """The exit code in a word. A run that found no topic is not called complete: it has archived nothing."""
        return verdict_of(self.exit_code, nothing_selected=self.nothing_selected)

    @property
    def nothing_selected(self) -> bool:
        """Whether no topic is there of those that were asked for."""
        return not self.topics and any(notice.kind == "missing" for notice in self.notices)

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
        """Offsets that the cluster has and the archive lacks; None if not every partition answered, or is known."""
        return add_up(topic.waiting for topic in self.topics) if self.planned and not self.partial else None

    def statistics(self) -> dict[str, Any]:
        """The details of the run's row in the catalog."""
        return {
            "command": "backup",
            "topics": len(self.topics),
            "partitions": sum(topic.partitions for topic in self.topics),
            **({} if self.of_partitions is None else {"of_partitions": self.of_partitions}),
            "records": self.records,
            "bytes": self.bytes,
            "raw_bytes": self.raw_bytes,
            "objects": self.objects,
            "recovery_point_ms": self.recovery_point_ms,
            "complete": self.complete,
            "exit_code": self.exit_code,
            **({PARTIAL: True} if self.partial else {}),
            "notices": dict(Counter(notice.kind for notice in self.notices)),
            # Few, and worth keeping: each names offsets that need attention.
            "findings": [str(notice) for notice in self.notices if notice.exit_code or notice.kind in _KEPT][
                :_FINDINGS_MAX
            ],
            "hints": list(dict.fromkeys(one.hint for one in self.notices if one.exit_code and one.hint))[:_HINTS_MAX],
        }

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        totals = {"records": self.records, "bytes": self.bytes, "raw_bytes": self.raw_bytes}
        verdict = {"complete": self.complete, "verdict": self.verdict, "exit_code": self.exit_code}
        return {**asdict(self), **totals, "waiting": self.waiting, **verdict}
