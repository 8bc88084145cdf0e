"""`maxbrod query`: SQL over an archive."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from maxbrod.backup.cli_options import MasterOption, QuietFlag, with_flags
from maxbrod.cli.options import (
    ArchiveOption,
    ConfigOption,
    LayoutOption,
    S3EndpointOption,
    S3PathStyleOption,
    S3RegionOption,
    find_place,
)
from maxbrod.cli.output import JsonFlag  # noqa: TC001 - typer looks at annotations
from maxbrod.errors import UsageError
from maxbrod.query.cli_options import (
    AsOfOption,
    ExcludeOption,
    FileOption,
    HistogramFlag,
    IsolationOption,
    KeyOption,
    LimitOption,
    OutputOption,
    PartitionOption,
    PermissiveFlag,
    PlotOption,
    SinceOption,
    ToOption,
    TopicOption,
    UntilOption,
    ValueOption,
    WordsArgument,
    scope_of,
)

if TYPE_CHECKING:
    from maxbrod.config import Config
    from maxbrod.query.output import Output
    from maxbrod.query.scope import QueryScope


def query(
    words: WordsArgument = None,
    file: FileOption = None,
    topic: TopicOption = None,
    exclude: ExcludeOption = None,
    partition: PartitionOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    as_of: AsOfOption = None,
    isolation: IsolationOption = "read_committed",
    key: KeyOption = None,
    value: ValueOption = None,
    permissive: PermissiveFlag = False,
    output: OutputOption = None,
    to: ToOption = None,
    limit: LimitOption = None,
    histogram: HistogramFlag = False,
    plot: PlotOption = None,
    archive: ArchiveOption = None,
    layout: LayoutOption = None,
    config: ConfigOption = None,
    s3_endpoint: S3EndpointOption = None,
    s3_region: S3RegionOption = None,
    s3_path_style: S3PathStyleOption = None,
    master: MasterOption = None,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Ask an archive by SQL: the table 'records', a view for each topic, and segments, gaps, runs and groups.

    A name with dashes or dots has backticks around it. Bytes are shown as text where they are UTF-8, else as 0x and
    hexadecimal digits. A mistake in the query ends with 2, damaged data with 4.

    For example:

      maxbrod query /backups/kafka 'SELECT topic, count(*) FROM records GROUP BY topic'

      maxbrod query /backups/kafka 'SELECT value.city FROM orders' --value json --output csv

      maxbrod query s3://backups/kafka --histogram --topic 'orders-*' --since 2026-11-01T00:00:00Z
    """
    from maxbrod.query.output import parse_output  # noqa: PLC0415 - Arrow: not for `--help`

    where, sql = _split(words or [], archive=archive, config=config, asked=file is not None or histogram)
    place = find_place(where, config, layout=layout, endpoint=s3_endpoint, region=s3_region, path_style=s3_path_style)
    settings = place.config.model_copy(update={"archive": place.url, "storage": place.storage})
    settings = with_flags(settings, bootstrap=None, command_config=None, master=master, start=None)
    if histogram and (sql is not None or file is not None):
        raise UsageError("--histogram is a query of its own", hint="leave the SQL away")
    text = None if histogram else _sql(sql, file)
    told = parse_output(output, to=to, limit=limit, plot=plot, as_json=as_json)
    scope = scope_of(
        topic=topic,
        exclude=exclude,
        partition=partition,
        since=since,
        until=until,
        as_of=as_of,
        isolation=isolation,
        key=key,
        value=value,
        permissive=permissive,
    )
    _run(settings, scope, text, told, quiet=quiet)


def _split(words: list[str], *, archive: str | None, config: Path | None, asked: bool) -> tuple[str | None, str | None]:
    """The archive and the query; with the archive named elsewhere, one word is the query."""
    if len(words) == 2:
        if archive is not None:
            raise UsageError("the archive is named twice", hint="give it before the query, or by --archive")
        return words[0], words[1]
    if len(words) == 1:
        named = archive is not None or (config is not None and not asked)
        return (archive, words[0]) if named else (words[0], None)
    if words:
        raise UsageError("too many words", hint="put quotes around the query")
    return archive, None


def _sql(sql: str | None, file: str | None) -> str:
    if (sql is None) == (file is None):
        raise UsageError("give one query", hint="as SQL, by --file FILE, or --file - for standard input")
    if file is None or sql is not None:
        return _read("-") if sql == "-" else sql or ""
    return _read(file)


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the query cannot be read: {error}", object_name=file) from None


def _run(settings: Config, scope: QueryScope, sql: str | None, told: Output, *, quiet: bool) -> None:
    from maxbrod.cli.log import showing_log  # noqa: PLC0415
    from maxbrod.cli.progress import progress_bar  # noqa: PLC0415
    from maxbrod.cli.signals import ending_by_interrupt  # noqa: PLC0415
    from maxbrod.query.histogram import plan_histogram  # noqa: PLC0415
    from maxbrod.query.run import Query  # noqa: PLC0415 - Arrow and Delta

    with (
        ending_by_interrupt(),
        showing_log(quiet=quiet),
        progress_bar(shown=not quiet) as on_progress,
        Query(settings, scope, on_progress=on_progress) as opened,
    ):
        histogram = plan_histogram(opened) if sql is None else None
        answer = told.answer(opened, histogram or sql or "")
    told.print(answer, histogram)
