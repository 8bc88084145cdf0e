"""`maxbrod drill`: proves that an archive can be restored, by restoring a part of it, and signs a report."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from maxbrod.cli.commands import Call, command
from maxbrod.cli.metrics import report_figures
from maxbrod.cli.output import err, out, print_json, print_line, print_marked
from maxbrod.cli.traces import trace_report
from maxbrod.cli.verbs import at_work, load
from maxbrod.drill.options import KEY_VARIABLE, DrillOptions
from maxbrod.errors import MaxbrodError, UsageError
from maxbrod.options import PLACE, ClusterOptions, JsonOption, QuietOption, SparkOptions, declared
from maxbrod.text import counted, human_count

if TYPE_CHECKING:
    from maxbrod.archive.archive import Proof
    from maxbrod.config import Config, StorageConfig
    from maxbrod.drill.report import DrilledSchemas, DrillReport
    from maxbrod.signature import SigningKey


app = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=True,
    help="Restore a sample of an archive into temporary topics, compare it, clean up, and sign a report.",
)

_SHOWN_MAX: Final = 10
_VERDICTS: Final = {
    "proven": "every sampled record was restored and equals the archive's",
    "differs": "the restored records differ from the archive",
    "failed": "the drill could not be carried out",
    "stopped": "the drill was stopped and proves nothing",
}
_SCHEMAS_LACK: Final = "every sampled record equals the archive's, but schemas that they need were not captured"
UNFRAMED_HINT: Final = "if these are no schema ids, say --unframed TOPIC:key or TOPIC:value"


@app.callback()
@command(
    "drill",
    DrillOptions,
    before=(ClusterOptions, *PLACE),
    after=(SparkOptions, QuietOption, JsonOption),
    has_commands=True,
)
def drill(call: Call[DrillOptions], context: typer.Context) -> None:
    """Restore a sample of an archive into temporary topics, compare it, clean up, and sign a report.

    Without --bootstrap, it starts a cluster of its own. The exit code is 0 only if every record of the sample was
    restored and is equal to the archive's; 3 if anything differs or the drill was stopped; else the code of the error.

    For example:

      maxbrod drill -a s3://backups/kafka --sample 5% --report-dir /var/lib/drills --key-file /etc/maxbrod/drill.key

      maxbrod drill -a s3://backups/kafka --bootstrap staging1:9092 --topic 'orders-*'

      maxbrod drill verify /var/lib/drills/drill-20260131T120000Z-0123456789abcdef.json --key-file drill.pub
    """
    if context.invoked_subcommand is not None:
        return
    options = call.options
    # Only the command line decides: a drill must not write to the cluster of a file that a backup uses.
    named = "bootstrap" in call.given or "command_config" in call.given
    if options.sandbox and named:
        raise UsageError("a drill uses either a sandbox or a cluster", hint="give --sandbox or --bootstrap")
    request = load("drill.plan:drill_request_of")(options, sandbox=not named)
    key, archive_url = _key(options.key_file), call.config.archive_url
    with ExitStack() as undo:
        work = undo.enter_context(at_work(call, meanwhile="everything that the drill has made is removed first"))
        if not named:
            work.tell("starting a cluster")
            work.config = _with_sandbox(work.config, undo)
        report: DrillReport = load("drill.run:Drill")(work, request).run()
    report_figures(
        last_recovery_seconds=report.durations_s.get("restore"),
        last_records=report.records,
        last_partitions=len(report.covered),
    )
    trace_report(report)
    proofs = _proofs(archive_url, call.config.storage)
    _print(report, options.report_dir, key, proofs, quiet=call.quiet, as_json=call.as_json)
    raise typer.Exit(report.exit_code)


@app.command()
@command(
    "drill",
    DrillOptions,
    after=(JsonOption,),
    without=[declaration.name for declaration in declared(DrillOptions) if declaration.name != "key_file"],
)
def verify(
    call: Call[DrillOptions],
    report: Annotated[Path, typer.Argument(metavar="REPORT", help="The JSON file.", show_default=False)],
) -> None:
    """Verify that a report is unchanged since a drill wrote it, and that this key signed it. If not, exit with 4.

    The public half of an Ed25519 key is sufficient.
    """
    # cryptography: not for `--help`
    from maxbrod.drill.report import read_report  # noqa: PLC0415
    from maxbrod.signature import UNSIGNED, verify_document  # noqa: PLC0415

    document = read_report(report)
    algorithm = verify_document(document, _key(call.options.key_file), object_name=str(report))
    signature, verdict = document["signature"], document["report"].get("verdict")
    if call.as_json:
        print_json({"verified": True, "signature": signature, "verdict": verdict})
    elif algorithm == UNSIGNED:
        print_line(f"unsigned, and unchanged: anybody may have written it. It says: {verdict}")
    else:
        print_line(f"signed ({algorithm}, key {signature['key']}) and unchanged. It says: {verdict}")


def _key(path: Path | None) -> SigningKey | None:
    from maxbrod.signature import parse_key, read_key  # noqa: PLC0415

    if path is not None:
        return read_key(path)
    text = os.environ.get(KEY_VARIABLE)
    return parse_key(text.encode(), name=f"${KEY_VARIABLE}") if text else None


def _with_sandbox(settings: Config, undo: ExitStack) -> Config:
    from maxbrod.config import KafkaConfig  # noqa: PLC0415
    from maxbrod.sandbox.cluster import Cluster  # noqa: PLC0415

    folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="maxbrod-drill-"))
    cluster = undo.enter_context(Cluster.start(Path(folder) / "cluster"))
    return settings.model_copy(update={"kafka": KafkaConfig(bootstrap=cluster.bootstrap)})


def _proofs(archive_url: str, storage: StorageConfig) -> list[Proof]:
    """The drills of the archive, this one among them. Without them the page has no trend."""
    from maxbrod.archive.archive import read_proofs  # noqa: PLC0415
    from maxbrod.storage.stores import open_storage  # noqa: PLC0415

    with suppress(MaxbrodError):
        return read_proofs(open_storage(archive_url, storage))
    return []


def _print(
    report: DrillReport, folder: Path, key: SigningKey | None, proofs: Sequence[Proof], *, quiet: bool, as_json: bool
) -> None:
    from maxbrod.drill.report import sign_report, write_report  # noqa: PLC0415

    files = write_report(report, folder, key, proofs)
    if as_json:
        print_json({**sign_report(report, key), "files": [str(path) for path in files]})
    elif quiet:
        print_trouble(report, err)
    else:
        print_drill(report, files, signed=key is not None)


def print_drill(report: DrillReport, files: Sequence[Path], *, signed: bool) -> None:
    """Print the result of a drill. Its report files have all of it."""
    seed = "" if report.seed is None else f", drawn by --seed {report.seed}"
    print_line(
        f"{report.sample}: {len(report.covered):,} of {counted(report.partitions_known, 'partition')}{seed}, "
        f"{human_count(report.records)} records of {report.archive}"
    )
    print_line(", ".join(f"{name} {took_s:,.1f} s" for name, took_s in report.durations_s.items()))
    if report.leftovers:
        print_line(f"removed topics of an earlier drill: {', '.join(report.leftovers[:_SHOWN_MAX])}")
    if report.schemas is not None:
        for line in schema_lines(report.schemas):
            print_line(line)
    print_trouble(report, out)
    print_line(f"{'signed' if signed else 'unsigned'} report: {', '.join(map(str, files))}")
    good = report.exit_code == 0
    style = "bold green" if good else "bold red"
    lacking = (
        f", but for {counted(report.lacking, 'range')} of offsets that the archive lacks" if report.lacking else ""
    )
    words = f"{_words(report)}{lacking if report.verdict == 'proven' else ''}"
    out.print(Text.assemble((str(report.verdict), style), f": {words}"), soft_wrap=True)


def _words(report: DrillReport) -> str:
    """The verdict in words. Records may be equal, and only their schemas be missing."""
    records_equal = report.comparison is not None and report.comparison["equal"]
    return _SCHEMAS_LACK if report.verdict == "differs" and records_equal else _VERDICTS[report.verdict]


def schema_lines(schemas: DrilledSchemas) -> Iterator[str]:
    """What was tested of the captured registry, and what was not."""
    yield (
        f"schemas: {counted(schemas.versions, 'version')} of {counted(schemas.subjects, 'subject')} were captured from "
        f"{schemas.url}; {counted(schemas.found, 'id')} in {counted(schemas.records, 'restored record')} are among them"
    )
    if schemas.imported_into is not None:
        yield (
            f"imported into {schemas.imported_into}, with the same ids, and deleted again: "
            f"{counted(schemas.imported, 'version')}"
        )
    yield f"not tested: {'; '.join(schemas.untested)}"


def print_trouble(report: DrillReport, console: Console) -> None:
    if report.error is not None:
        print_marked("error", _said(report.error), report.error.get("hint"), to=console)
    others = [failure for failure in report.failures if failure is not report.error]
    for other in others[:_SHOWN_MAX]:
        print_marked("failed", _said(other), to=console)
    if len(others) > _SHOWN_MAX:
        console.print(Text(f"and {len(others) - _SHOWN_MAX:,} more; the report has all"), soft_wrap=True)
    for found in () if report.comparison is None else report.comparison["differences"][:_SHOWN_MAX]:
        where = f"{found['source_topic']}-{found['partition']} offset {found['source_offset']}: {found['field']}"
        console.print(Text.assemble((where, "bold red"), f" is {found['target']} instead of {found['source']}"))
    if report.schemas is not None:
        for unknown in report.schemas.unknown:
            print_marked("failed", f"{unknown}, which was not captured", UNFRAMED_HINT, to=console)
        for unresolved in report.schemas.unresolved:
            print_marked("failed", unresolved, to=console)
    if report.remains:
        left = ", ".join(report.remains[:_SHOWN_MAX])
        print_marked("error", f"these topics could not be removed: {left}", to=console)


def _said(error: Mapping[str, Any]) -> str:
    where = f"{error['where']}: " if error.get("where") else ""
    parts = [f"in {error['object_name']}"] if error.get("object_name") else []
    parts += [f"at offset {error['offset']}"] if error.get("offset") is not None else []
    place = f" ({', '.join(parts)})" if parts else ""
    return f"{where}{error.get('message')}{place}"
