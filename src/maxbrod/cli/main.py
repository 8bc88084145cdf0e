"""The `maxbrod` command: gathers the verbs, and turns every error into one message and its exit code."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, Final

import typer

from maxbrod import __version__
from maxbrod.backup import cli as backup
from maxbrod.check import cli as check
from maxbrod.cli.commands import logged, with_log
from maxbrod.cli.leaving import Leaving
from maxbrod.cli.log import is_in_json_log, showing_log, warnings_on_stderr
from maxbrod.cli.output import print_error, print_line, speaking
from maxbrod.cli.streams import guard_streams, refuse_lost_output
from maxbrod.cluster import cli as cluster
from maxbrod.compact import cli as compact
from maxbrod.compare import cli as compare
from maxbrod.convert import cli as convert
from maxbrod.demo import cli as demo
from maxbrod.drill import cli as drill
from maxbrod.errors import EXIT_DONE, EXIT_FAILED, MaxbrodError, OutputError, UnavailableError, UsageError
from maxbrod.groups import cli as groups
from maxbrod.hold import cli as hold
from maxbrod.inspect import cli as gc
from maxbrod.inspect import cli as ls
from maxbrod.inspect import cli as show
from maxbrod.prune import cli as prune
from maxbrod.query import cli as query
from maxbrod.repair import cli as repair
from maxbrod.replicate import cli as replicate
from maxbrod.restore import cli as restore
from maxbrod.sandbox import cli as sandbox
from maxbrod.status import cli as status

_UsageProblem: Final[type[Exception]] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException" and issubclass(kind, Exception)
)
"""What typer raises for a wrong command line; the class has no public name."""

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
app.command(name="status")(status.status)
app.command(name="ls")(ls.ls)
app.command(name="show")(show.show)
app.command(name="check")(check.check)
app.command(name="query")(query.query)
app.command(name="convert")(convert.convert)
app.command(name="compact")(compact.compact)
app.command(name="repair")(repair.repair)
app.command(name="gc")(gc.gc)
app.command(name="prune")(prune.prune)
app.add_typer(hold.app, name="hold")
app.add_typer(replicate.app, name="replicate")
app.add_typer(with_log(cluster.app, "cluster"), name="cluster")
app.add_typer(with_log(sandbox.app, "sandbox"), name="sandbox")
if find_spec("maxbrod_bench") is not None:
    app.add_typer(with_log(import_module("maxbrod_bench.cli").app, "bench"), name="bench")
app.command(name="demo")(logged(demo.demo, "demo"))


if find_spec("maxbrod_bench") is None:

    @app.command(name="bench", hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def bench() -> None:
        raise UsageError(
            "benchmarks are part of the repository, and not of the installed package",
            hint="run 'maxbrod bench' in a checkout",
        )


def _version(wanted: bool) -> None:
    if wanted:
        print_line(f"maxbrod {__version__}")
        raise typer.Exit


@app.callback(
    help="Backup and restore for Apache Kafka.\n\n"
    "Exit codes: 0 done and complete, 1 failed, 2 bad usage or configuration, 3 incomplete, 4 corrupt data found, 5 "
    "refused for safety, or not confirmed (no, Ctrl-C, end of input). A signal stops the work in an orderly way, "
    "usually with 3; a second one ends it at once (130, 143)."
)
def root(
    _show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    guard_streams()
    leaving = Leaving()
    leaving.code = run(sys.argv[1:])
    sys.exit(leaving.code)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code. It raises nothing.

    With `--json`, exactly one document goes to standard output, however the command ends.
    """
    as_json = "--json" in arguments
    with speaking(as_json=as_json), warnings_on_stderr():
        try:
            code = _run_and_tell(arguments, as_json=as_json)
            refuse_lost_output()
        except OutputError as error:
            # There is no place for a document either. If nobody reads on, as behind `| head`, nobody is to be told.
            if not isinstance(error.__cause__, BrokenPipeError):
                print_error(error, as_json=False)
            return error.exit_code
        return code


def _run_and_tell(arguments: list[str], *, as_json: bool) -> int:
    try:
        return _run(arguments, as_json=as_json)
    except OutputError:
        raise
    except MaxbrodError as error:
        if as_json or not is_in_json_log(error):
            print_error(error, as_json=as_json)
        return error.exit_code


def _run(arguments: list[str], *, as_json: bool) -> int:
    try:
        # With any verb, the user sees that it waits for a store or a broker.
        with showing_log(quiet=not _SILENT.isdisjoint(arguments)):
            code = app(args=arguments, prog_name="maxbrod", standalone_mode=not as_json)
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else EXIT_FAILED
    except _UsageProblem as problem:
        # typer would print text, also where JSON is expected.
        raise _usage_error(problem) from problem
    except typer.Abort:
        raise MaxbrodError("the command was interrupted", hint="run it again") from None
    except MaxbrodError:
        raise
    except Exception as error:
        if _means_dead_jvm(error):
            hint = "run it again; set MAXBROD_SPARK_LOG to a file to keep Spark's log"
            raise UnavailableError("Spark's JVM has died: it was killed", operation="run on Spark", hint=hint) from None
        if not as_json:
            raise
        traceback.print_exc()
        hint = "this is a bug in maxbrod: please report it, with what is on standard error"
        raise MaxbrodError(f"{type(error).__name__}: {error}", hint=hint) from error
    return code if isinstance(code, int) else EXIT_DONE


def _means_dead_jvm(error: Exception) -> bool:
    """Whether the JVM has died. Any call of PySpark can find that out, also one that only cleans up."""
    of_py4j = type(error).__module__.startswith("py4j") and type(error).__name__ != "Py4JJavaError"
    return of_py4j or (isinstance(error, ConnectionError) and "py4j" in sys.modules)


def _usage_error(problem: Any) -> UsageError:  # noqa: ANN401 - typer has no public name for it
    context = getattr(problem, "ctx", None)
    command = "maxbrod" if context is None else context.command_path
    return UsageError(problem.format_message(), hint=f"see '{command} --help'")
