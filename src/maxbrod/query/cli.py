"""`maxbrod query`: SQL over an archive."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maxbrod.cli.commands import Call, command, is_place
from maxbrod.cli.log import showing_log
from maxbrod.cli.progress import progress_bar
from maxbrod.cli.signals import ending_by_interrupt
from maxbrod.cli.verbs import load
from maxbrod.errors import UsageError
from maxbrod.options import PLACE, JsonOption, LookOptions, QuietOption, SparkOptions
from maxbrod.query.options import QueryOptions

if TYPE_CHECKING:
    from maxbrod.config import Config
    from maxbrod.query.output import Output
    from maxbrod.query.run import Query


@command("query", QueryOptions, after=(*PLACE, LookOptions, SparkOptions, QuietOption, JsonOption))
def query(
    call: Call[QueryOptions],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARCHIVE|SQL",
            help="The archive, unless --archive or the configuration file names it, and the query.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Query an archive with SQL: the table 'records', a view for each topic, and segments, gaps, runs and groups.

    Without a query, a prompt answers one statement after the other in the same Spark session: end each with a
    semicolon. Ctrl-C cancels a statement, Ctrl-D leaves. If standard input is no terminal, statements are read from it.

    Put backticks around a name with dashes or dots. Bytes are shown as text if they are UTF-8, else as 0x and
    hexadecimal digits. The exit code is 2 for a mistake in the query, and 4 for damaged data.

    For example:

      maxbrod query /backups/kafka 'SELECT topic, count(*) FROM records GROUP BY topic'

      maxbrod query /backups/kafka 'SELECT value.city FROM orders' --value json --output csv

      maxbrod query /backups/kafka

      maxbrod query s3://backups/kafka --histogram --topic 'orders-*' --since 2026-11-01T00:00:00Z
    """
    options, as_json = call.options, call.as_json
    archive, sql = _split(words or [], call)
    config = call.config.model_copy(update={"archive": archive or call.archive})
    output: Output = load("query.output:parse_output")(
        options.output, to=options.to, limit=options.limit, plot=options.plot, as_json=as_json
    )
    prompted = sql is None and options.sql is None and options.file is None and not options.histogram
    if prompted and (output.to is not None or output.plot is not None):
        raise UsageError("give one query", hint="as SQL, with --file FILE, or --file - for standard input")
    text = None if prompted else _query_of(call, sql)
    _run(config, options, text, output, prompted=prompted, quiet=call.quiet)


def _run(
    config: Config, options: QueryOptions, text: str | None, output: Output, *, prompted: bool, quiet: bool
) -> None:
    """Answer the query, or without a text the histogram; or what is typed at a prompt, or read from standard input."""
    with ending_by_interrupt(), showing_log(quiet=quiet), ExitStack() as undo:
        with progress_bar(shown=not quiet) as on_progress:
            opened: Query = undo.enter_context(load("query.run:Query")(config, options, on_progress=on_progress))
            if prompted:
                # Before the first statement is typed, so that it need not wait.
                opened.start()
            else:
                histogram = load("query.output:plan_histogram")(opened) if text is None else None
                answer = output.answer(opened, histogram or text or "")
        if not prompted:
            undo.close()
            output.print(answer, histogram, sql=text or "")
        elif sys.stdin.isatty():
            load("query.prompt:open_prompt")(opened, output)
        else:
            load("query.prompt:answer_all")(opened, output, sys.stdin)


def _split(words: list[str], call: Call[QueryOptions]) -> tuple[str | None, str | None]:
    """The archive and the query. If the archive is given elsewhere, a single word is the query."""
    if len(words) == 2:
        if "archive" in call.given:
            raise UsageError("the archive is given twice", hint="give it before the query, or with --archive")
        return words[0], words[1]
    if len(words) == 1:
        has_query = "file" in call.given or call.given.get("histogram")
        known = call.config.archive is not None and not has_query and not is_place(words[0])
        return (None, words[0]) if "archive" in call.given or known else (words[0], None)
    if words:
        raise UsageError("too many words", hint="put quotes around the query")
    return None, None


def _query_of(call: Call[QueryOptions], sql: str | None) -> str | None:
    """The text of the query; None: the histogram. A query on the command line overrides that of the file."""
    given, options = call.given, call.options
    if given.get("histogram") and (sql is not None or "file" in given):
        raise UsageError("--histogram replaces the query", hint="omit the SQL")
    if sql is not None or "file" in given:
        return _sql(sql, given.get("file"))
    return None if options.histogram else _sql(options.sql, options.file)


def _sql(sql: str | None, file: str | None) -> str:
    if (sql is None) == (file is None):
        raise UsageError("give one query", hint="as SQL, with --file FILE, or --file - for standard input")
    if file is None or sql is not None:
        return _read("-") if sql == "-" else sql or ""
    return _read(file)


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the query cannot be read: {error}", object_name=file) from None
