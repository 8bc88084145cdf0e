"""`maxbrod drill`: proves that an archive can be restored, by restoring a part of it, and signs what it found."""

from __future__ import annotations

import os
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from maxbrod.backup.cli_options import (
    BootstrapOption,
    CommandConfigOption,
    MasterOption,
    PatienceOption,
    QuietFlag,
    with_flags,
)
from maxbrod.cli.options import (
    ArchiveOption,
    ConfigOption,
    LayoutOption,
    S3EndpointOption,
    S3PathStyleOption,
    S3RegionOption,
    find_place,
)
from maxbrod.cli.output import JsonFlag, err, print_json, print_line
from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from maxbrod.config import Config
    from maxbrod.drill.plan import DrillRequest
    from maxbrod.drill.report import DrillReport
    from maxbrod.drill.signing import Key

KEY_VARIABLE: Final = "MAXBROD_DRILL_KEY"
_WHAT: Final = "What is drilled"
_REPORT: Final = "The report"

app = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=True,
    help="Restore a sample of an archive into scratch topics, compare it, clean up, and sign a report.",
)


def _option(panel: str, name: str, help_text: str, metavar: str | None = None) -> Any:  # noqa: ANN401 - typer's own
    return typer.Option(name, metavar=metavar, help=help_text, show_default=False, rich_help_panel=panel)


KeyFileOption = Annotated[
    Path | None,
    _option(_REPORT, "--key-file", f"A secret, or an Ed25519 key in PEM form; else ${KEY_VARIABLE}.", "FILE"),
]


@app.callback()
def drill(
    context: typer.Context,
    bootstrap: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    sandbox: Annotated[
        bool,
        typer.Option("--sandbox", help="Start a cluster for the drill, which dies with it; needs Java. The default."),
    ] = False,
    archive: ArchiveOption = None,
    layout: LayoutOption = None,
    config: ConfigOption = None,
    s3_endpoint: S3EndpointOption = None,
    s3_region: S3RegionOption = None,
    s3_path_style: S3PathStyleOption = None,
    topic: Annotated[
        list[str] | None,
        _option(
            _WHAT, "--topic", "A name, a glob, or /a regex/ of whole names; may be repeated. All without.", "PATTERN"
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None, _option(_WHAT, "--exclude", "Topics to leave out; may be repeated.", "PATTERN")
    ] = None,
    as_of: Annotated[str | None, _option(_WHAT, "--as-of", "The archive as this run left it.", "RUN")] = None,
    sample: Annotated[
        str, _option(_WHAT, "--sample", "A part of the partitions such as 5%, or so many of them; all without.", "PART")
    ] = "all",
    seed: Annotated[int | None, _option(_WHAT, "--seed", "Draw the sample that this number stands for.", "N")] = None,
    accept_gaps: Annotated[
        bool, _option(_WHAT, "--accept-gaps", "Drill with what there is, where the archive is known to lack something.")
    ] = False,
    report_dir: Annotated[
        Path, _option(_REPORT, "--report-dir", "Where the reports go; maxbrod-drills without.", "FOLDER")
    ] = Path("maxbrod-drills"),
    key_file: KeyFileOption = None,
    patience: PatienceOption = None,
    master: MasterOption = None,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Restore a sample of an archive into scratch topics, compare it, clean up, and sign a report.

    Without --bootstrap it starts a cluster of its own. Ends with 0 only if every record that was drawn came back and
    equals the archive's; with 3 if anything differs or it was stopped; else with the code of what went wrong.

    For example:

      maxbrod drill -a s3://backups/kafka --sample 5% --report-dir /var/lib/drills --key-file /etc/maxbrod/drill.key

      maxbrod drill -a s3://backups/kafka --bootstrap staging1:9092 --topic 'orders-*'

      maxbrod drill verify /var/lib/drills/drill-20260131T120000Z-0123456789abcdef.json --key-file drill.pub
    """
    if context.invoked_subcommand is not None:
        return
    from maxbrod.drill.plan import DrillRequest, parse_sample  # noqa: PLC0415 - Arrow: not for `--help`
    from maxbrod.restore.plan.request import RestoreRequest  # noqa: PLC0415

    named = bootstrap is not None or command_config is not None
    if sandbox and named:
        raise UsageError("it is either a sandbox or a cluster of yours", hint="give --sandbox or --bootstrap")
    place = find_place(archive, config, layout=layout, endpoint=s3_endpoint, region=s3_region, path_style=s3_path_style)
    settings = with_flags(
        place.config, bootstrap=bootstrap, command_config=command_config, master=master, start=None, patience=patience
    ).model_copy(update={"archive": place.url, "storage": place.storage})
    request = DrillRequest(
        selection=RestoreRequest(topics=tuple(topic or ()), exclude=tuple(exclude or ()), as_of=as_of),
        sample=parse_sample(sample),
        seed=seed,
        accept_gaps=accept_gaps,
        sandbox=not named,
    )
    key = _key(key_file)
    report = _run(settings, request, quiet=quiet)
    _tell(report, report_dir, key, quiet=quiet, as_json=as_json)
    raise typer.Exit(report.exit_code)


@app.command()
def verify(
    report: Annotated[Path, typer.Argument(metavar="REPORT", help="The JSON file.", show_default=False)],
    key_file: KeyFileOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Check that a report is what a drill wrote, and that this key signed it. Ends with 4 if it is not.

    The public half of an Ed25519 key will do.
    """
    from maxbrod.drill import signing  # noqa: PLC0415 - cryptography: not for `--help`
    from maxbrod.drill.report import read_report  # noqa: PLC0415

    document = read_report(report)
    algorithm = signing.verify(document, _key(key_file), object_name=str(report))
    signature, verdict = document["signature"], document["report"].get("verdict")
    if as_json:
        print_json({"verified": True, "signature": signature, "verdict": verdict})
    elif algorithm == signing.UNSIGNED:
        print_line(f"unsigned, and unchanged: anybody may have written it. It says: {verdict}")
    else:
        print_line(f"signed ({algorithm}, key {signature['key']}) and unchanged. It says: {verdict}")


def _key(path: Path | None) -> Key | None:
    from maxbrod.drill.signing import parse_key, read_key  # noqa: PLC0415

    if path is not None:
        return read_key(path)
    text = os.environ.get(KEY_VARIABLE)
    return parse_key(text.encode(), name=f"${KEY_VARIABLE}") if text else None


def _run(settings: Config, request: DrillRequest, *, quiet: bool) -> DrillReport:
    from maxbrod.cli.log import showing_log  # noqa: PLC0415
    from maxbrod.cli.progress import progress_bar  # noqa: PLC0415
    from maxbrod.cli.signals import stopping_by_signals  # noqa: PLC0415
    from maxbrod.drill.run import Drill  # noqa: PLC0415

    stop = threading.Event()
    with ExitStack() as undo:
        undo.enter_context(showing_log(quiet=quiet))
        undo.enter_context(stopping_by_signals(stop, what="everything that the drill has made is removed first"))
        on_progress = undo.enter_context(progress_bar(shown=not quiet))
        if request.sandbox:
            from maxbrod.engine.progress import Progress  # noqa: PLC0415

            on_progress(Progress(phase="starting a cluster"))
            settings = _with_sandbox(settings, undo)
        return Drill(settings, request, on_progress=on_progress, stop=stop).run()


def _with_sandbox(settings: Config, undo: ExitStack) -> Config:
    from maxbrod.config import KafkaConfig  # noqa: PLC0415
    from maxbrod.sandbox.cluster import Cluster  # noqa: PLC0415

    folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="maxbrod-drill-"))
    cluster = undo.enter_context(Cluster.start(Path(folder) / "cluster"))
    return settings.model_copy(update={"kafka": KafkaConfig(bootstrap=cluster.bootstrap)})


def _tell(report: DrillReport, folder: Path, key: Key | None, *, quiet: bool, as_json: bool) -> None:
    from maxbrod.drill.report import sign_report, write_report  # noqa: PLC0415
    from maxbrod.drill.summary import print_drill, print_trouble  # noqa: PLC0415

    files = write_report(report, folder, key)
    if as_json:
        print_json({**sign_report(report, key), "files": [str(path) for path in files]})
    elif quiet:
        print_trouble(report, err)
    else:
        print_drill(report, files, signed=key is not None)
