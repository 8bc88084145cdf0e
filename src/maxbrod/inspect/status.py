"""Gathers the facts about an archive, and judges them. Asks no cluster and starts no JVM.

The facts come from the catalog, the newest snapshot, a listing of the objects, and the proofs that checks and drills
have left. An archive that cannot be read is itself a finding: the other archives are still looked at.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.archive import Archive, ProofKind, last_proof, open_archive, read_proofs
from maxbrod.archive.erasures import not_erased
from maxbrod.archive.runs import ending_of, is_partial
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import Run
from maxbrod.catalog.schema import FORMAT_VERSION, Kind
from maxbrod.check.foreign import check_foreign
from maxbrod.check.problems import exit_code_of as problem_exit_code
from maxbrod.check.run import CheckReport, check_archive
from maxbrod.config import StorageConfig
from maxbrod.errors import EXIT_CORRUPT, EXIT_INCOMPLETE, MaxbrodError, UsageError
from maxbrod.inspect.options import StatusOptions
from maxbrod.inspect.promises import ArchiveFacts, CompactionBacklog, FoundProblems, LastBackup, exit_code_of, judge
from maxbrod.layouts.foreign import CompactionLimits
from maxbrod.layouts.registry import NATIVE
from maxbrod.model import now_ms
from maxbrod.notices import Promise, PromiseState
from maxbrod.storage.composed import is_joined
from maxbrod.storage.urls import parse_url

_BACKUP: Final = "backup"
_COLUMNS: Final = ("topic_id", "partition", "kind", "bytes", "records", "level", "written_at")
_KEPT: Final = 1000
"""Problems that are looked at one by one; the others are only counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveStatus:
    archive: str
    promises: tuple[Promise, ...]
    exit_code: int


def price_of(options: StatusOptions) -> float | None:
    """UsageError: the price is no number."""
    try:
        return None if options.price is None else float(options.price)
    except ValueError:
        raise UsageError(f"{options.price!r} is no price", hint="give a number such as --price 0.023") from None


def status_of(
    url: str,
    storage: StorageConfig,
    options: StatusOptions,
    price: float | None = None,
    *,
    layout: str | None = None,
) -> ArchiveStatus:
    """The promises of one archive. One that cannot be opened or read has a single promise, which has failed."""
    try:
        archive = open_archive(url, storage, layout=layout, groups=False)
        promises = judge(gather(archive, now_ms()), options, price)
    except MaxbrodError as error:
        return ArchiveStatus(archive=url, promises=(unreadable(error),), exit_code=error.exit_code)
    return ArchiveStatus(
        archive=archive.url, promises=tuple(promises), exit_code=exit_code_of(promises, strict=options.strict)
    )


def unreadable(error: MaxbrodError) -> Promise:
    """The only promise of an archive that cannot be read."""
    return Promise(
        name="archive",
        state=PromiseState.FAILED,
        text=f"it cannot be read: {error.message}",
        hint=error.hint,
        exit_code=error.exit_code,
    )


def gather(archive: Archive, clock_ms: int) -> ArchiveFacts:
    """The facts about an opened archive."""
    proofs = read_proofs(archive.storage)
    totals: Counter[str] = Counter()

    def add(rows: pa.Table) -> None:
        data = rows.select(_COLUMNS).filter(pc.equal(rows["kind"], str(Kind.DATA)))
        totals["segments"] += data.num_rows
        totals.update({name: pc.sum(data[name]).as_py() or 0 for name in ("bytes", "records")})
        waiting = _waiting(data, clock_ms)
        totals.update(to_compact=waiting.segments, compact_partitions=waiting.partitions)

    def shared() -> dict[str, Any]:
        return {
            "now_ms": clock_ms,
            "deep_check": last_proof(proofs, ProofKind.DEEP_CHECK),
            "drill": last_proof(proofs, ProofKind.DRILL),
            "copy": last_proof(proofs, ProofKind.COPY),
            **{name: totals[name] for name in ("bytes", "records", "segments")},
            "to_compact": CompactionBacklog(segments=totals["to_compact"], partitions=totals["compact_partitions"]),
            "release_format": FORMAT_VERSION,
            "free_bytes": free_bytes(archive.url),
            "keys": archive.storage.recipients(),
        }

    if not archive.is_native:
        for rows in archive.catalog.portions(_COLUMNS):
            add(rows)
        return _foreign(archive, shared())
    runs = archive.catalog.runs()
    # The check reads all rows anyway.
    report = check_archive(archive, runs=runs, kept_max=_KEPT, on_rows=add)
    backups = [run for run in runs if run.statistics.get("command") == _BACKUP]
    assert isinstance(archive.catalog, Catalog)  # noqa: S101 - of our own layout
    return ArchiveFacts(
        **shared(),
        backup=_last(backups),
        unfinished=tuple(unfinished.run_id for unfinished in report.unfinished_runs if unfinished.exit_code is None),
        recovery_point_ms=report.recovery_point,
        missing=_first(report, EXIT_INCOMPLETE),
        damaged=_first(report, EXIT_CORRUPT),
        partitions=report.partitions,
        grown=[(run.finished_at, size if type(size := run.statistics.get("bytes")) is int else 0) for run in runs],
        format_version=archive.catalog.format_version,
        newest_run_ms=max((run.finished_at for run in runs), default=None),
        layout=NATIVE,
        erasures=len(archive.erasures().documents),
        not_erased=not_erased(archive.storage, archive.erasures()),
    )


def _waiting(data: pa.Table, clock_ms: int) -> CompactionBacklog:
    """The segments that `compact` may merge by its default limits, in whole partitions; stretches are not examined."""
    limits = CompactionLimits()
    level = pc.field("level")
    old = pc.field("written_at") <= clock_ms - limits.age_ms_min
    rows = data.filter(old & (level >= limits.level_min) & (level <= limits.level_max))
    found = rows.group_by(["topic_id", "partition"]).aggregate([("bytes", "sum"), ("bytes", "count")])
    enough = found.filter(
        pc.and_(
            pc.greater_equal(found["bytes_count"], limits.segments_min),
            pc.greater_equal(found["bytes_sum"], limits.bytes_min),
        )
    )
    return CompactionBacklog(segments=pc.sum(enough["bytes_count"]).as_py() or 0, partitions=enough.num_rows)


def free_bytes(url: str) -> int | None:
    """The bytes that are free for this user where a directory is; None for a store."""
    if is_joined(url) or (location := parse_url(url)).scheme != "file":
        return None
    try:
        return shutil.disk_usage(location.prefix).free
    except OSError:
        return None


def _foreign(archive: Archive, shared: dict[str, Any]) -> ArchiveFacts:
    report = check_foreign(archive)
    fatal = [fault for fault in report.faults if fault.fatal]
    lost = report.unexplained
    return ArchiveFacts(
        **shared,
        backup=None,
        unfinished=(),
        recovery_point_ms=None,
        missing=FoundProblems(
            count=len(lost), first=f"{lost[0].where}: offsets from {lost[0].base_offset:,} are missing"
        )
        if lost
        else None,
        damaged=FoundProblems(count=len(fatal), first=f"{fatal[0].path}: {fatal[0].message}") if fatal else None,
        partitions=report.partitions,
        format_version="",
        newest_run_ms=None,
        layout=archive.layout,
        doubts=tuple(doubt.what for doubt in report.doubts),
        own_layout=False,
    )


def _last(backups: Sequence[Run]) -> LastBackup | None:
    if not backups:
        return None
    run = backups[-1]
    findings, hints = run.statistics.get("findings"), run.statistics.get("hints")
    return LastBackup(
        run_id=run.run_id,
        finished_at_ms=run.finished_at,
        exit_code=ending_of(run),
        findings=tuple(map(str, findings)) if isinstance(findings, list) else (),
        hints=tuple(map(str, hints)) if isinstance(hints, list) else (),
        partial=is_partial(backups),
    )


def _first(report: CheckReport, exit_code: int) -> FoundProblems | None:
    counts = {
        kind: count for kind, count in report.problem_counts.items() if count and problem_exit_code(kind) == exit_code
    }
    if not counts:
        return None
    first = next((problem for problem in report.problems if problem.exit_code == exit_code), None)
    if first is None:
        # There are more problems than were kept.
        return FoundProblems(count=sum(counts.values()), first=f"{next(iter(counts))}: see 'maxbrod check'")
    return FoundProblems(count=sum(counts.values()), first=str(first))
