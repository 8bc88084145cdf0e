"""Copies an archive, or chosen topics of it, to another store: once, or again and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from maxbrod.archive.archive import Archive, Proof, ProofKind, open_archive, record_proof
from maxbrod.archive.copies import Origin, claim, demand_same, read_origin
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.copies import demand_descent, version_of_copy
from maxbrod.catalog.empty_places import refuse_foreign_objects
from maxbrod.config import EncryptionConfig, StorageConfig
from maxbrod.copy.chosen import ChosenCopy
from maxbrod.copy.report import CopyReport
from maxbrod.copy.sender import Sender
from maxbrod.copy.whole import WholeCopy
from maxbrod.errors import EXIT_FAILED, MaxbrodError, RefusedError, StorageFullError, UsageError
from maxbrod.model import now_ms
from maxbrod.notices import Notice
from maxbrod.storage.sides import sides_of
from maxbrod.storage.stores import encrypted, open_storage, probe_conditional_puts
from maxbrod.work.intervals import Intervals
from maxbrod.work.reach import Place
from maxbrod.work.work import Work

_RECORD_EVERY_MS: Final = 3600 * 1000
"""Without anything new, a copy that follows tells the source this often that it is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyInterval:
    """One copy of many: its report, or the error that it failed with."""

    number: int
    report: CopyReport | None
    error: MaxbrodError | None
    failures: int
    """Failures in a row, including this one."""

    @property
    def exit_code(self) -> int:
        if self.error is not None:
            return self.error.exit_code
        return 0 if self.report is None else self.report.exit_code

    def as_dict(self) -> dict[str, Any]:
        return {
            "interval": self.number,
            "exit_code": self.exit_code,
            "failures": self.failures,
            "report": None if self.report is None else self.report.as_dict(),
            "error": None if self.error is None else self.error.as_dict(),
        }


def copy_archive(work: Work) -> CopyReport:
    """Copy what the target lacks of the newest version of the source."""
    return Copying(work).run()


def follow_source(work: Work, on_interval: Callable[[CopyInterval], None]) -> CopyInterval:
    """Copy once per interval until the work is stopped; the last interval. Errors that no retry can fix are raised."""
    intervals = Intervals(work.config.copies.every, work.stop, work.on_progress)
    copying: Copying | None = None
    number = failures = 0
    while True:
        number += 1
        report: CopyReport | None = None
        failed: MaxbrodError | None = None
        try:
            copying = copying or Copying(work)
            report = copying.run()
        except MaxbrodError as error:
            # Someone may free space meanwhile; a copy of another archive stays one.
            if not error.retryable and not isinstance(error, StorageFullError):
                raise
            failed = error
        ended_well = failed is None and report is not None and report.exit_code != EXIT_FAILED
        failures = 0 if ended_well else failures + 1
        last = CopyInterval(number=number, report=report, error=failed, failures=failures)
        on_interval(last)
        if not intervals.wait(failures):
            return last


class Copying:
    """One source and one target. Opens both; `run` copies, and may be called again."""

    def __init__(self, work: Work) -> None:
        options = work.config.copies
        if options.source is None or options.target is None:
            raise UsageError("a copy needs SRC and DST", hint="see 'maxbrod copy --help'")
        urls = options.source, options.target
        storages = sides_of(work.config.storage, urls, (options.from_storage, options.to_storage))
        self._work, self._options = work, options
        with work.looking("reading the source"):
            self._source = _open_source(options.source, storages[0])
            self._target = open_storage(options.target, storages[1])
            self._refuse_same_place()
        places = (
            Place(url=self._source.url, storage=storages[0]),
            Place(url=self._target.url, storage=storages[1], writes=True),
        )
        self._claim(storages[1].encryption)
        self._sender = Sender(work, *places)
        self._copy: WholeCopy | ChosenCopy
        if self.is_whole:
            self._copy = WholeCopy(work, self._source, self._target, self._sender)
        else:
            self._copy = ChosenCopy(work, self._source, self._target, self._sender)
        self._recorded_at_ms = 0

    @property
    def is_whole(self) -> bool:
        return not self._options.topics and not self._options.exclude

    def run(self) -> CopyReport:
        """Copy once."""
        started_at_ms = now_ms()
        self._sender.begin()
        options, tally = self._options, self._sender.tally
        notices: list[Notice] = []
        if options.dry_run:
            plan = self._copy.look()
        else:
            plan, notices = self._copy.run()
        report = CopyReport(
            source=self._source.url,
            target=self._target.url,
            dry_run=options.dry_run,
            topics=None if self.is_whole else plan.topics,
            started_at_ms=started_at_ms,
            finished_at_ms=now_ms(),
            source_version=plan.table.log.version,
            version_before=self._copy.version_before,
            version=self._copy.version,
            objects=len(plan.objects) if options.dry_run else tally.objects,
            bytes=sum(item.bytes for item in plan.objects) if options.dry_run else tally.bytes,
            documents=sum(map(len, plan.documents)) if options.dry_run else tally.documents,
            objects_there=plan.there,
            slices_verified=tally.slices,
            read_back=options.read_back,
            notices=tuple(notices),
        )
        return self._record(report)

    def _refuse_same_place(self) -> None:
        source, target = (url.rstrip("/") + "/" for url in (self._source.url, self._target.url))
        if source.startswith(target) or target.startswith(source):
            raise UsageError("SRC and DST are the same place, or one is within the other", hint="name another DST")

    def _claim(self, keys: EncryptionConfig) -> None:
        """Demand that the target is empty or a copy of this source, and say there whose copy it is."""
        table_id = _own(self._source).table.table_id
        mine = Origin(table_id=table_id, topics=self._options.topics, exclude=self._options.exclude)
        copied, found = Catalog.find(self._target), read_origin(self._target)
        encrypts = keys.given and not self._target.encrypted
        if found is None:
            if copied is None:
                refuse_foreign_objects(self._target)
            elif not self.is_whole:
                raise RefusedError(
                    "there is an archive already, and it is no copy of chosen topics",
                    operation="copy",
                    object_name=self._target.url,
                    hint="name another DST",
                )
            else:
                # Somebody has copied the files: it may go on from there, if the histories agree.
                demand_descent(
                    self._source.storage,
                    _own(self._source),
                    version_of_copy(self._target, copied),
                    name=self._target.url,
                )
            if self._options.dry_run:
                return
            if not probe_conditional_puts(self._target) and not self._options.single_writer:
                raise RefusedError(
                    "the store ignores conditional puts: two copies would overwrite each other's objects",
                    operation="copy",
                    object_name=self._target.url,
                    hint="use another store, or make sure that nobody else writes there and pass --single-writer",
                )
            if encrypts and copied is None:
                self._target = encrypted(self._target, keys)
            elif encrypts:
                raise self._not_encrypted()
            found = claim(self._target, mine)
        elif encrypts:
            raise self._not_encrypted()
        demand_same(found, mine, name=self._target.url, is_empty=copied is None)

    def _not_encrypted(self) -> RefusedError:
        return RefusedError(
            "a key is given for DST, and the copy there is not encrypted",
            operation="copy",
            object_name=self._target.url,
            hint="name another DST; or give the key for SRC alone: --from-storage encryption.key_file=FILE",
        )

    def _record(self, report: CopyReport) -> CopyReport:
        """Tell the source of a copy that has come to its end."""
        stands = report.version == report.source_version
        new = report.objects or report.documents or report.version != report.version_before
        due = new or now_ms() - self._recorded_at_ms >= _RECORD_EVERY_MS
        if report.dry_run or not stands or not due:
            return report
        proof = Proof(
            kind=ProofKind.COPY,
            verdict=report.verdict,
            sound=report.exit_code == 0,
            started_at_ms=report.started_at_ms,
            finished_at_ms=report.finished_at_ms,
            details={
                "target": report.target,
                "version": report.source_version,
                "objects": report.objects,
                "bytes": report.bytes,
                "topics": None if report.topics is None else list(report.topics),
            },
        )
        self._recorded_at_ms = now_ms()
        return replace(report, not_recorded=record_proof(self._source.storage, proof))


def _own(archive: Archive) -> Catalog:
    assert isinstance(archive.catalog, Catalog)  # noqa: S101 - archives of other layouts are refused
    return archive.catalog


def _open_source(url: str, storage: StorageConfig) -> Archive:
    archive = open_archive(url, storage, groups=False)
    if not archive.is_native:
        raise UsageError(
            f"an archive in the layout {archive.layout} cannot be copied",
            object_name=archive.url,
            hint="copy its files with any tool, or make one of maxbrod's own layout of it with 'maxbrod convert'",
        )
    return archive
