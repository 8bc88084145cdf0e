"""The report of an erasure, and the certificate that is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final

from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_FAILED, EXIT_INCOMPLETE, MaxbrodError
from maxbrod.work.report import Report

CERTIFICATE_FIELD: Final = "maxbrod.erasure.certificate"
CERTIFICATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseFault:
    """The reason why a slice was not looked at, or stays as it is. The ledger still keeps readers from its records."""

    topic: str
    partition: int
    base_offset: int
    end_offset: int
    message: str
    object_name: str | None
    damaged: bool
    """Otherwise the store did not answer, and trying again may help."""

    @classmethod
    def of(cls, error: MaxbrodError, topic: str, partition: int, base_offset: int, end_offset: int) -> EraseFault:
        return cls(
            topic=topic,
            partition=partition,
            base_offset=base_offset,
            end_offset=end_offset,
            message=error.message,
            object_name=error.object_name,
            damaged=error.exit_code == EXIT_CORRUPT,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptObject:
    """An object that still holds erased records, or may hold some, and what keeps it."""

    path: str
    bytes: int
    why: str
    until_ms: int | None = None
    """The end of what keeps it, if it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedTopicReport:
    topic: str
    topic_id: str
    slices: int
    """Slices that were looked at, of live and of retired rows."""
    holding: int
    """Those of them that held records to erase."""
    records: int
    """Records to erase, each counted once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseReport(Report):
    archive: str
    run_id: str | None
    """The run, and the document of the ledger. None: nothing was changed."""
    dry_run: bool
    how: str
    hashes: tuple[str, ...]
    """The keyed hashes of the keys, as the ledger has them. In a dry run of an archive without a ledger: none."""
    started_at_ms: int
    finished_at_ms: int
    topics: tuple[ErasedTopicReport, ...]
    rewritten: int = 0
    """Slices that were written without the records."""
    carried: int = 0
    """Slices without such records that were copied, because they shared an object."""
    objects: int = 0
    """New objects."""
    bytes: int = 0
    """Their size."""
    deleted: int = 0
    """Objects that were deleted."""
    deleted_bytes: int = 0
    kept: tuple[KeptObject, ...] = ()
    suppressed: int = 0
    """Records that are still in the archive, and that no reader returns."""
    looked_again: int = 0
    """Slices that were read afterwards."""
    found_again: int | None = None
    """Records that a reader found afterwards. None: it was not looked."""
    commits: int = 0
    faults: tuple[EraseFault, ...] = ()
    interrupted: bool = False
    certificate: str | None = None
    """The object in the archive."""

    published: ClassVar[tuple[str, ...]] = ("exit_code", "records", "holding")

    @property
    def records(self) -> int:
        return sum(topic.records for topic in self.topics)

    @property
    def holding(self) -> int:
        return sum(topic.holding for topic in self.topics)

    @property
    def exit_code(self) -> int:
        if self.found_again or any(fault.damaged for fault in self.faults):
            return EXIT_CORRUPT
        if self.faults:
            return EXIT_FAILED
        return EXIT_INCOMPLETE if self.interrupted or self.kept else EXIT_DONE


def certificate_of(report: EraseReport, *, cluster_id: str | None) -> dict[str, Any]:
    """Return the certificate, before it is signed: JSON values only, and no plain key."""
    document: Mapping[str, Any] = {
        CERTIFICATE_FIELD: CERTIFICATE_VERSION,
        "archive": report.archive,
        "cluster_id": cluster_id,
        "run_id": report.run_id,
        "started_at_ms": report.started_at_ms,
        "finished_at_ms": report.finished_at_ms,
        "how": report.how,
        "key_hashes": list(report.hashes),
        "topics": [asdict(topic) for topic in report.topics],
        "records": report.records,
        "erased_now": report.records - report.suppressed,
        "suppressed": report.suppressed,
        "kept_objects": [asdict(kept) for kept in report.kept],
        "slices_rewritten": report.rewritten,
        "objects_deleted": report.deleted,
        "looked_again_at_slices": report.looked_again,
        "found_again": report.found_again,
        "faults": [asdict(fault) for fault in report.faults],
        "complete": report.exit_code == EXIT_DONE,
    }
    return dict(document)
