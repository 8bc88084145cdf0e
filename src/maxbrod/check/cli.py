"""`maxbrod check`: whether an archive is whole."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, replace
from functools import partial
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final, NoReturn, TextIO

import typer

from maxbrod.check.options import CheckOptions
from maxbrod.check.problems import Problem, Verdict
from maxbrod.cli.commands import Call, command
from maxbrod.cli.metrics import report_figures
from maxbrod.cli.output import agreed, ending, print_first, print_json_with, print_line
from maxbrod.cli.verbs import at_work, end, load, looking
from maxbrod.errors import RefusedError, UsageError
from maxbrod.model import now_ms
from maxbrod.options import PLACE, JsonOption, LookOptions, SparkOptions
from maxbrod.text import counted, human_bytes, human_time

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive
    from maxbrod.check.deep import DeepCheckReport
    from maxbrod.check.foreign import ForeignCheckReport
    from maxbrod.check.run import CheckReport
    from maxbrod.check.signatures import SignatureReport

_PROBLEMS_SHOWN: Final = 100
_RUNS_SHOWN: Final = 10
_FIELDS: Final = tuple(field.name for field in fields(Problem))
_EXPLAINED: Final = "every offset up to the end of the archive is archived or explained"
_NOT_READ: Final = "objects were not read (--deep reads them)"
_NOT_ASKED: Final = "no cluster was asked for newer records"


@command(
    "check",
    CheckOptions,
    before=PLACE,
    after=(LookOptions, SparkOptions, JsonOption),
    looks=lambda given: given.keys().isdisjoint({"deep", "sample", "repair"}),
)
def check(call: Call[CheckOptions]) -> None:
    """Check that an archive is whole, and with --deep that every byte is what was written.

    Every offset of every partition must be archived or explained, every object must exist and be long enough, and the
    snapshot of the last backup must agree. With --deep, Spark reads every object and verifies digests, batch checksums,
    and the counts and timestamps of records. A deep check that was interrupted resumes if the same command runs again.
    No cluster is contacted: records that the cluster has beyond the archive are reported only if the last backup could
    not archive them. With --signature, the catalog must be signed by the key that you give, and continue the newest
    version that was seen before. The exit code is 3 if offsets are missing, and 4 if objects are missing or damaged.

    For example:

      maxbrod check -a /backups/kafka

      maxbrod check -a s3://backups/kafka 'orders-*' --json

      maxbrod check -a s3://backups/kafka --deep --sample 5%

      maxbrod check -a s3://backups/kafka --deep --signature catalog.key.pub

      maxbrod check -a s3://backups/kafka --repair
    """
    options, config = call.options, call.config
    open_archive = load("archive.archive:open_archive")
    part = None if options.sample is None else _part(options.sample)
    deep = options.deep or part is not None
    with looking(call):
        opened: Archive = open_archive(call.archive, config.storage, layout=config.layout, records=deep)
    if options.repair:
        _repair(opened, yes=options.yes, quiet=call.as_json)
        opened = open_archive(call.archive, config.storage, layout=config.layout, records=deep)
    if not options.signature and (options.since_version is not None or options.pin is not None):
        raise UsageError("--since-version and --pin are about signatures", hint="give --signature KEY")
    if not opened.is_native and not options.signature:
        _check_foreign(call, opened, deep=deep)
    started_at = now_ms()
    with TemporaryFile("w+", encoding="utf-8") as problems:
        signature, unsigned = _check_signatures(call, opened, problems, deep=deep)
        with looking(call, "listing objects"):
            quick: CheckReport = load("check.run:check_archive")(
                opened,
                options.topics,
                kept_max=0 if call.as_json else _PROBLEMS_SHOWN,
                # As lines: there may be millions, and an error later must be the only document.
                on_problem=partial(_write, problems) if call.as_json else None,
            )
        quick = load("check.signatures:with_signature")(quick, signature, unsigned, kept_max=_PROBLEMS_SHOWN)
        found = _check_deep(call, opened, part=part or 1.0) if deep else None
        verdict = quick.verdict if found is None else found.verdict_with(quick.problem_counts)
        whole = not options.topics and verdict is not Verdict.STOPPED
        unrecorded = _record(opened, verdict, found, started_at) if whole else None
        report_figures(last_problems=_wrong(quick, found), last_deep=int(deep and part is None))
        if verdict is Verdict.DAMAGED:
            quick = replace(quick, recovery_point=None)
        if call.as_json:
            deep_part = found and found.as_dict()
            document = {**quick.as_dict(), "deep": deep_part, "verdict": verdict, "exit_code": verdict.exit_code}
            problems.seek(0)
            print_json_with(document, "problems", (line.rstrip("\n") for line in problems))
    if not call.as_json:
        _print(quick, found)
        print_line(_words(verdict, quick, found))
        if unrecorded is not None:
            print_line(f"not recorded for 'maxbrod status': {unrecorded}")
    if verdict.exit_code:
        raise typer.Exit(verdict.exit_code)


def _check_signatures(
    call: Call[CheckOptions], archive: Archive, file: TextIO, *, deep: bool
) -> tuple[SignatureReport | None, list[Problem]]:
    """What signatures prove, if that is asked for, and the problems. Where JSON is printed, they go to the file."""
    options = call.options
    if not options.signature:
        return None, []
    from maxbrod.check.signatures import accepted_keys, check_signatures  # noqa: PLC0415 - as above

    keys = accepted_keys(options.signature)
    with looking(call, "verifying signatures"):
        report, found = check_signatures(
            archive, keys, since_version=options.since_version, pin=options.pin, every_snapshot=deep
        )
    for problem in found if call.as_json else ():
        _write(file, problem)
    return report, found


def _check_deep(call: Call[CheckOptions], archive: Archive, *, part: float) -> DeepCheckReport:
    options = call.options
    with at_work(call, meanwhile="a check changes nothing") as work:
        report: DeepCheckReport = load("check.deep:deep_check")(
            work, archive, options.topics, sample=part, seed=options.seed, restart=options.restart
        )
    return report


def _record(archive: Archive, verdict: Verdict, deep: DeepCheckReport | None, started_at: int) -> str | None:
    """Keep the outcome for `maxbrod status`. Returns why it could not be kept."""
    from maxbrod.archive.archive import Proof, ProofKind, record_proof  # noqa: PLC0415 - as above

    details = {} if deep is None else {"share": deep.chosen / max(deep.slices, 1), "records": deep.records_checked}
    proof = Proof(
        kind=ProofKind.QUICK_CHECK if deep is None else ProofKind.DEEP_CHECK,
        verdict=str(verdict),
        sound=not verdict.exit_code,
        started_at_ms=started_at,
        finished_at_ms=now_ms(),
        details=details,
    )
    return record_proof(archive.storage, proof)


def _write(file: TextIO, problem: Problem) -> None:
    print(json.dumps({name: getattr(problem, name) for name in _FIELDS}), file=file)


def _repair(opened: Archive, *, yes: bool, quiet: bool) -> None:
    if opened.is_native:
        _accept_missing(opened, yes=yes, quiet=quiet)
        return
    for fault in load("check.foreign:repair_foreign")(opened):
        print_line(f"{'lost' if fault.fatal else 'repaired'}: {fault.path}: {fault.message}")


def _accept_missing(opened: Archive, *, yes: bool, quiet: bool) -> None:
    """Objects that are gone become gaps, if the user agrees: their records are lost."""
    from maxbrod.archive.archive import open_for_writing  # noqa: PLC0415 - as above
    from maxbrod.check.objects import accept_missing, find_missing  # noqa: PLC0415

    missing = find_missing(opened)
    objects = missing.objects
    if not objects:
        return
    if not quiet:
        print_first([f"missing: {path}" for path in objects], _PROBLEMS_SHOWN, "more")
    what = (
        f"{counted(missing.rows.num_rows, 'segment')} with {counted(missing.records, 'record')} and "
        f"{counted(missing.runs.num_rows, 'snapshot')}"
    )
    if not yes and (quiet or not sys.stdin.isatty() or not agreed(f"Give up {what}?")):
        raise RefusedError(
            f"{what} are missing, and --repair was not confirmed",
            object_name=opened.url,
            hint="restore the objects from a copy or from older object versions; or say --repair --yes: their offsets "
            "become gaps 'pruned', and everything else can be used as before",
        )
    run_id = accept_missing(open_for_writing(opened.url, opened.options))
    if not quiet:
        print_line(f"{what} are gaps 'pruned' now; if the objects come back: 'maxbrod prune --undo {run_id} --apply'")


def _check_foreign(call: Call[CheckOptions], archive: Archive, *, deep: bool) -> NoReturn:
    if call.options.topics:
        raise UsageError("an archive in another layout is checked as a whole", hint="name no topics")
    check_foreign = load("check.foreign:check_foreign")
    if deep:
        with at_work(call, meanwhile="a check changes nothing") as work:
            report: ForeignCheckReport = check_foreign(archive, work)
    else:
        with looking(call):
            report = check_foreign(archive)
    report_figures(last_problems=sum(fault.fatal for fault in report.faults), last_deep=int(deep))
    end(call, report, _print_foreign)


def _print_foreign(report: ForeignCheckReport, *, quiet: bool) -> None:
    del quiet
    for fault in report.faults[:_PROBLEMS_SHOWN]:
        at = "" if fault.offset is None else f" at offset {fault.offset:,}"
        print_line(f"{'damaged' if fault.fatal else 'made good'}: {fault.path}{at}: {fault.message}")
    for gap in report.unexplained[:_PROBLEMS_SHOWN]:
        reach = f"{gap.base_offset:,} to {gap.end_offset - 1:,}"
        print_line(f"unexplained: {gap.where}: no segment has the offsets {reach}, and nothing says why")
    for doubt in report.doubts[:_PROBLEMS_SHOWN]:
        print_line(f"not known: {doubt}")
    print_line(
        f"layout {report.layout}: {counted(report.topics, 'topic')}, {counted(report.partitions, 'partition')}"
        f"{_without_records(report.partitions_without_records)}, "
        f"{counted(report.segments, 'segment')} with {counted(report.records, 'record')} and "
        f"{human_bytes(report.bytes)}"
    )
    print_line(_foreign_words(report))


def _without_records(partitions: int) -> str:
    return f" ({partitions:,} without any record)" if partitions else ""


def _part(text: str) -> float:
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        return float(number) / (100 if percent else 1)
    except ValueError:
        raise UsageError(f"{text!r} is no part of an archive", hint="say --sample 5% or --sample 0.05") from None


def _print(report: CheckReport, found: DeepCheckReport | None) -> None:
    problems = (*report.problems, *(found.problems if found else ()))
    for problem in problems[:_PROBLEMS_SHOWN]:
        print_line(str(problem))
        if problem.hint:
            print_line(f"  {problem.hint}")
    total = sum(report.problem_counts.values()) + (len(found.problems) if found else 0)
    if total > _PROBLEMS_SHOWN:
        print_line(f"and {total - _PROBLEMS_SHOWN:,} more: see --json")
    for run in report.unfinished_runs[-_RUNS_SHOWN:]:
        if run.exit_code is None:
            print_line(f"run {run.run_id} has not ended: it was killed, or is under way; what it committed counts")
            continue
        print_line(f"run {run.run_id} ended {ending(run.exit_code)}")
        for finding in run.findings:
            print_line(f"  {finding}")
    without = _without_records(report.partitions_without_rows)
    print_line(
        f"{counted(report.topics, 'topic')}, {counted(report.partitions, 'partition')}{without}, "
        f"{counted(report.objects, 'object')} with "
        f"{human_bytes(report.bytes)}, {counted(report.snapshots, 'snapshot')} ({report.snapshots_read:,} read)"
    )
    if found:
        drawn = "" if found.seed is None else f" of {found.slices:,}, drawn by --seed {found.seed}"
        before = f", {found.skipped:,} were read before" if found.skipped else ""
        print_line(
            f"read {counted(found.checked, 'slice')}{drawn} with {counted(found.records_checked, 'record')} and "
            f"{human_bytes(found.bytes_checked)}{before}"
        )
    for line in () if report.signature is None else load("check.signatures:signature_lines")(report.signature):
        print_line(line)
    print_line(f"recovery point: {human_time(report.recovery_point) or 'none'}")


def _words(verdict: Verdict, quick: CheckReport, found: DeepCheckReport | None) -> str:
    """One verdict for everything that was checked, and what was not checked."""
    match verdict:
        case Verdict.WHOLE:
            return f"{verdict}: {_EXPLAINED}; {_NOT_READ}, {_NOT_ASKED}"
        case Verdict.SOUND:
            read = "every byte" if found and found.seed is None else "every byte that was read"
            return f"{verdict}: {_EXPLAINED}, and {read} is what was written; {_NOT_ASKED}"
        case Verdict.STOPPED:
            return f"{verdict} on request, with nothing found so far: the same command goes on from here"
    wrong = _wrong(quick, found)
    return f"{verdict}: {wrong:,} problem{'s'[: wrong != 1]}, see above"


def _wrong(quick: CheckReport, found: DeepCheckReport | None) -> int:
    """The number of problems. A limit of the check itself is said, and is none."""
    return sum(quick.problem_counts.values()) + sum(
        bool(problem.exit_code) for problem in (found.problems if found else ())
    )


def _foreign_words(report: ForeignCheckReport) -> str:
    fatal = sum(fault.fatal for fault in report.faults)
    good, lost = len(report.faults) - fatal, len(report.unexplained)
    gaps = f"; {lost:,} unexplained gap{'s'[: lost != 1]}, see above" if lost else ""
    made_good = f"; {good:,} fault{'s'[: good != 1]} made good" if good else ""
    known = ", as far as can be known" if report.doubts else ""
    match report.verdict:
        case Verdict.DAMAGED:
            return f"{report.verdict}: {fatal:,} fault{'s'[: fatal != 1]}, see above{gaps}{made_good}"
        case Verdict.INCOMPLETE:
            return f"{report.verdict}: {gaps.removeprefix('; ')}{made_good}"
        case Verdict.STOPPED:
            return f"{report.verdict} on request, with nothing found so far: not every segment was read{made_good}"
        case Verdict.SOUND:
            return f"{report.verdict}: every record was read{known}; {_NOT_ASKED}{made_good}"
    return f"{report.verdict}: objects and metadata agree{known}; {_NOT_READ}, {_NOT_ASKED}{made_good}"
