"""The report of a drill: as a value, as a signed document, and as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from maxbrod.archive.archive import Proof
from maxbrod.drill.html import render
from maxbrod.errors import EXIT_DONE, EXIT_FAILED, EXIT_INCOMPLETE
from maxbrod.signature import SignedKind, SigningKey
from maxbrod.work.report import Report

if TYPE_CHECKING:
    from maxbrod.restore.plan.sources import Source

VERSION_FIELD: Final = "maxbrod.drill"
VERSION: Final = 1
_FILES: Final = SignedKind(
    part="report",
    version_field=VERSION_FIELD,
    version=VERSION,
    noun="report",
    called="a report",
    wrong="this is not a report of a drill",
)
NOT_COMPARED: Final = "not compared"


class DrillVerdict(StrEnum):
    PROVEN = "proven"
    """Every sampled record was restored and equals the archive's."""
    DIFFERS = "differs"
    """Restored records differ, or have schemas that were not captured."""
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """A sampled partition: the offsets that the archive covers, and those that it lacks."""

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    gaps: Mapping[str, int]
    """Offsets without data, by reason."""
    lacking: int
    """The number of ranges that the catalog knows to be damaged, or neither archived nor explained."""
    outcome: str = NOT_COMPARED
    """The outcome: equal, differs, failed, or not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownSchema:
    """A restored record whose schema was not captured: the first of its topic with this id."""

    topic: str
    partition: int
    offset: int
    part: str
    """key or value."""
    schema: str
    """The id, or the GUID."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offset {self.offset}: the {self.part} has schema {self.schema}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrilledSchemas:
    """The captured schema registry, as far as the drill has tested it."""

    url: str
    captured_run: str
    taken_at_ms: int
    subjects: int
    versions: int
    """All that were read, lost ones too."""
    unresolved: tuple[str, ...]
    """The first versions that refer to something that was not captured."""
    records: int
    """Restored records that were looked at."""
    partitions: int
    found: int
    """Schema ids of theirs that were captured."""
    unknown: tuple[UnknownSchema, ...]
    """The first ones that were not."""
    unsure: int
    """Keys and values that begin like such an id, and nothing says that they have one."""
    untested: tuple[str, ...]
    imported_into: str | None = None
    imported: int = 0
    """Versions that a scratch registry had then, with the same ids."""

    @property
    def proven(self) -> bool:
        return not self.unresolved and not self.unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillReport(Report):
    published = ("exit_code", "records", "lacking")

    drill_id: str
    verdict: DrillVerdict
    archive: str
    run_id: str | None
    """The backup as of which the archive was read."""
    cluster: str
    """The bootstrap servers, or `sandbox`."""
    cluster_id: str
    started_at_ms: int
    finished_at_ms: int
    sample: str
    seed: int | None
    """Draws the same partitions again; None if all were drawn."""
    partitions_known: int
    """The number of partitions with records."""
    covered: tuple[Covered, ...]
    durations_s: Mapping[str, float]
    versions: Mapping[str, str]
    restore: Mapping[str, Any] | None = None
    comparison: Mapping[str, Any] | None = None
    schemas: DrilledSchemas | None = None
    """None: no registry was captured, or the drill did not come that far."""
    error: Mapping[str, Any] | None = None
    """The error that ended it; of several failures the gravest."""
    failures: tuple[Mapping[str, Any], ...] = ()
    """All failures, with topic or partition, offset, object and error."""
    leftovers: tuple[str, ...] = ()
    """Topics of earlier, killed drills, which this drill removed."""
    remains: tuple[str, ...] = field(default=())
    """Topics of this drill that could not be removed."""

    @property
    def exit_code(self) -> int:
        if self.verdict is DrillVerdict.PROVEN:
            return EXIT_FAILED if self.remains else EXIT_DONE
        if self.verdict is DrillVerdict.FAILED and self.error is not None:
            return int(self.error["exit_code"])
        return EXIT_INCOMPLETE

    @property
    def lacking(self) -> int:
        """The number of ranges that the archive is known to lack in the sample."""
        return sum(range_.lacking for range_ in self.covered)

    @property
    def records(self) -> int:
        return 0 if self.comparison is None else int(self.comparison["source_records"])


def covered_of(source: Source) -> Covered:
    return Covered(
        topic=source.topic,
        partition=source.partition,
        first_offset=source.asked_first,
        end_offset=source.asked_end,
        gaps=dict(source.gaps),
        lacking=source.troubles_total,
    )


def write_report(
    report: DrillReport, folder: Path, key: SigningKey | None, proofs: Sequence[Proof] = ()
) -> tuple[Path, Path]:
    """Write signed JSON, and an HTML page with a trend over `proofs`.

    Both names contain time and id, so no file is ever replaced.
    """
    time = datetime.fromtimestamp(report.started_at_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    document = sign_report(report, key)
    return _FILES.write(folder, f"drill-{time}-{report.drill_id}", document, render(document, proofs))


def sign_report(report: DrillReport, key: SigningKey | None) -> dict[str, Any]:
    return _FILES.sign(report.as_dict(), key)


def read_report(path: Path) -> dict[str, Any]:
    """The document of a report. Its signature is not verified yet."""
    return _FILES.read(path)
