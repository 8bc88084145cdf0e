"""Repairs an archive: rebuilds its catalog if that is lost or damaged, else takes out lost and damaged objects.

With a cluster, the offsets that are gaps afterwards are read again, as any later backup does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from maxbrod.archive.archive import open_archive
from maxbrod.archive.unlisted import FOLDERS, HINT, UnlistedRange, find_lost_end, find_unlisted, not_young
from maxbrod.backup.run import Backup
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.empty_places import no_archive
from maxbrod.catalog.replaced import revive
from maxbrod.catalog.rows import new_run_id
from maxbrod.catalog.schema import SCHEMA
from maxbrod.catalog.tiling import TILING_COLUMNS, Overlap, UncoveredRange, find_tiling_faults
from maxbrod.errors import EXIT_CORRUPT, EXIT_INCOMPLETE, CorruptDataError, RefusedError, UsageError
from maxbrod.layouts.registry import detect_layout
from maxbrod.model import MENDABLE
from maxbrod.notices import Notice
from maxbrod.repair.examine import RepairContext, RepairWork
from maxbrod.repair.older_versions import bring_back
from maxbrod.repair.rebuilt_catalog import rebuild_catalog
from maxbrod.repair.removal import Notices, SliceSums, take_out
from maxbrod.repair.report import Action, RepairReport
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import is_locked, locked, open_storage, probe_conditional_puts
from maxbrod.text import counted
from maxbrod.work.held import find_held
from maxbrod.work.preflight import needs_storage
from maxbrod.work.reach import Place
from maxbrod.work.session import Session
from maxbrod.work.work import Work


def repair_archive(
    work: Work, *, notices_max: int | None = None, on_notice: Callable[[Notice], None] | None = None
) -> RepairReport:
    """Repair what `work.config.archive` names, as its options of `repair` say.

    If nothing is applied, the report has the first `notices_max` notices of lost objects, or all: an archive may have
    lost millions. `on_notice` is called for every one of these.
    UsageError: there is no archive of our own layout. RefusedError: another writer committed meanwhile.
    """
    if work.config.repair.versions_before is not None:
        return _bring_back(work, work.config.repair.versions_before, notices_max=notices_max, on_notice=on_notice)
    config, options = work.config, work.config.repair
    storage = open_storage(config.archive_url, config.storage)
    if is_locked(storage):
        raise locked(storage)
    needed = SliceSums()
    with work.looking("reading the catalog"):
        catalog, problem = diagnose(storage, needed)
    unlisted: list[UnlistedRange] = []
    if catalog is not None and problem is None:
        # Records that objects hold and the catalog lacks, as `check` and `gc` find them.
        with work.looking("listing objects"):
            named = catalog.path_set()
            unnamed = [info for folder in FOLDERS for info in storage.list(folder) if info.path not in named]
            unlisted = find_unlisted(storage, catalog, not_young(unnamed))
    problem = problem or _reason_to_rebuild(unlisted, asked=options.rebuild)
    if options.apply and not probe_conditional_puts(storage) and not options.single_writer:
        raise RefusedError(
            "the store ignores conditional puts: a backup at the same time would be overwritten",
            operation="repair",
            object_name=storage.url,
            hint="make sure that nobody else writes to this archive and pass --single-writer",
        )
    workers = work.workers(needs_storage(storage.url, config.storage))
    context = RepairContext(place=Place(url=storage.url, storage=config.storage), run_id=new_run_id())
    repair = RepairWork(work=work, storage=storage, workers=workers, context=context)
    if problem is not None or catalog is None:
        report = rebuild_catalog(repair, problem=problem or "there is no catalog")
    else:
        lost = _lost_snapshots(storage, catalog)
        # What is applied is reported whole: its notices are also recorded with the run.
        notices = Notices() if options.apply else Notices(notices_max, on_notice)
        report = take_out(repair, catalog, needed, notices)
        others = (*lost, *map(_unlisted_notice, unlisted))
        report = replace(report, lost_snapshots=len(lost), notices=(*report.notices, *others))
    report = replace(report, held_objects=find_held(storage, storage.url, config.storage))
    if report.applied and report.action is not Action.NONE and config.kafka is not None:
        return _read_again(work, report, workers.opened)
    return report


def _bring_back(
    work: Work, before: str, *, notices_max: int | None, on_notice: Callable[[Notice], None] | None
) -> RepairReport:
    """Bring objects back, then look at the archive as any repair does, and change nothing more."""
    if work.config.repair.rebuild:
        raise UsageError("--versions-before and --rebuild exclude each other", hint="rebuild afterwards, if it must be")
    found = bring_back(work, before)
    applied = work.config.repair.apply
    if found.is_needed and not applied:
        return RepairReport(
            archive=work.config.archive_url,
            run_id=new_run_id(),
            action=Action.BROUGHT_BACK,
            applied=False,
            problem=None,
            version=None,
            older_versions=found,
        )
    looks = replace(work.config.repair, apply=False, versions_before=None)
    config = work.config.model_copy(update={"repair": looks, "kafka": None})
    with Work(config, session=work.session, on_progress=work.on_progress, stop=work.stop) as looking:
        report = repair_archive(looking, notices_max=notices_max, on_notice=on_notice)
    if report.action is Action.NONE and found.is_needed:
        report = replace(report, action=Action.BROUGHT_BACK, applied=True)
    return replace(report, older_versions=found)


def _reason_to_rebuild(unlisted: Sequence[UnlistedRange], *, asked: bool) -> str | None:
    """The reason why a catalog that is sound in itself is rebuilt; None if it is not."""
    if continuing := [found for found in unlisted if found.continues]:
        more = f", and {counted(len(continuing) - 1, 'other')}" if len(continuing) > 1 else ""
        return f"it lacks records that objects hold: {continuing[0]}{more}"
    return "it is rebuilt on request" if asked else None


def diagnose(storage: Storage, needed: SliceSums) -> tuple[Catalog | None, str | None]:
    """The catalog, and what is wrong with it; adds its rows to `needed`. UsageError: there is no archive."""
    try:
        catalog = Catalog.find(storage)
        if catalog is None:
            error = no_archive(storage)
            if isinstance(error, CorruptDataError):
                return None, str(error)
            layout = detect_layout(storage)
            if layout is not None:
                raise UsageError(
                    f"the archive is in the layout {layout}, which has no catalog",
                    object_name=storage.url,
                    hint="'maxbrod check --repair' repairs what that layout allows",
                )
            raise error
        runs, misfit = catalog.runs(), _misfit(catalog, needed)
    except CorruptDataError as error:
        return None, str(error)
    if misfit is not None:
        what = (
            f"offsets {misfit.first_offset} to {misfit.end_offset} of {misfit.partition} are not covered exactly once"
        )
        return catalog, f"the rows of the catalog do not fit together: {what}"
    return catalog, find_lost_end(storage, catalog, {run.snapshot for run in runs})


def _unlisted_notice(unlisted: UnlistedRange) -> Notice:
    """The notice of an object that no rebuild takes in: it begins behind the end of the archive."""
    return Notice(
        kind="unlisted",
        message=f"{unlisted.path} holds records that the catalog lacks, and that do not continue the archive",
        topic=unlisted.topic,
        partition=unlisted.partition,
        first_offset=unlisted.first_offset,
        end_offset=unlisted.end_offset,
        hint=HINT,
        exit_code=EXIT_INCOMPLETE,
    )


def _lost_snapshots(storage: Storage, catalog: Catalog) -> list[Notice]:
    """One notice for each snapshot that runs name and that is not there. Nothing else has what it said."""
    present = {info.path for info in storage.list("snapshots")}
    runs = Counter(run.snapshot for run in catalog.runs() if run.snapshot is not None)
    return [
        Notice(
            kind="snapshot",
            message=f"{path} is lost: --as-of cannot name {counted(count, 'run')}",
            hint="restore it from a copy or an older object version; if it is lost for good, run 'maxbrod backup', "
            "then 'maxbrod check --repair', which takes such runs off the list",
            exit_code=EXIT_CORRUPT,
        )
        for path, count in runs.items()
        if path not in present
    ]


def _misfit(catalog: Catalog, needed: SliceSums) -> UncoveredRange | Overlap | None:
    """The first offsets that rows do not cover exactly once.

    Reads all rows and all columns, because reading refuses invalid rows. That takes most of the time of a repair, so
    whoever looks for the objects of the rows gets them here.
    """
    found: UncoveredRange | Overlap | None = None
    for rows, replaced in catalog.portions_with_replaced(SCHEMA.names):
        needed.add(rows, revive(replaced))
        faults = find_tiling_faults(rows.select(TILING_COLUMNS))
        found = found or next(iter(faults.holes), None) or next(iter(faults.overlaps), None)
    return found


def _read_again(work: Work, report: RepairReport, session: Session | None) -> RepairReport:
    """Back up the topics with gaps that may still be read, which reads those gaps once more."""
    config = work.config
    archive = open_archive(config.archive_url, config.storage)
    topics = {row.topic for row in archive.catalog.gaps(MENDABLE)}
    if not topics:
        return report
    chosen = replace(config.backup, topics=tuple(sorted(topics)), exclude=())
    chosen_config = config.model_copy(update={"backup": chosen})
    with Backup(chosen_config, session=session, on_progress=work.on_progress, stop=work.stop) as backup:
        done = backup.run(demand_topics=False)
    archive.catalog.refresh()
    left = archive.catalog.gaps(MENDABLE)
    return replace(
        report,
        version=archive.catalog.version,
        mended=not left and done.complete,
        notices=(*report.notices, *done.notices),
    )
