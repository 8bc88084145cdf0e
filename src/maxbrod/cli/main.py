"""The `maxbrod` command: gathers the verbs, and turns every error into one message and its exit code."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from maxbrod import __version__
from maxbrod.cli import (
    backup,
    bench,
    check,
    compare,
    convert,
    demo,
    drill,
    gc,
    groups,
    ls,
    prune,
    query,
    restore,
    sandbox,
    show,
)
from maxbrod.cli.log import showing_log
from maxbrod.cli.output import print_error
from maxbrod.errors import EXIT_DONE, EXIT_FAILED, MaxbrodError

_SILENT: Final = frozenset({"--json", "--quiet", "-q"})

app = typer.Typer(
    name="maxbrod",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(name="backup")(backup.backup)
app.command(name="restore")(restore.restore)
app.add_typer(groups.app, name="groups")
app.command(name="compare")(compare.compare)
app.add_typer(drill.app, name="drill")
app.command(name="ls")(ls.ls)
app.command(name="show")(show.show)
app.command(name="check")(check.check)
app.command(name="query")(query.query)
app.command(name="convert")(convert.convert)
app.command(name="gc")(gc.gc)
app.command(name="prune")(prune.prune)
app.add_typer(sandbox.app, name="sandbox")
app.add_typer(bench.app, name="bench")
app.command(name="demo")(demo.demo)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"maxbrod {__version__}")
        raise typer.Exit


@app.callback()
def root(
    _show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Backup and restore for Apache Kafka.

    Exit codes: 0 done and complete, 1 failed, 2 bad usage or configuration, 3 incomplete,
    4 corrupt data found, 5 refused for safety.
    """


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; nothing but an exit code leaves here."""
    try:
        # Whatever the verb, whoever waits for a store or a broker is told so.
        with showing_log(quiet=not _SILENT.isdisjoint(arguments)):
            app(args=arguments, prog_name="maxbrod")
    except MaxbrodError as error:
        print_error(error, as_json="--json" in arguments)
        return error.exit_code
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else EXIT_FAILED
    return EXIT_DONE
