"""The `maxbrod` command: gathers the verbs, and turns every error into one message and its exit code."""

from __future__ import annotations

import re
import sys
import traceback
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from maxbrod import __version__
from maxbrod.cli.commands import is_place, logged, with_log
from maxbrod.cli.log import is_in_json_log, showing_log, warnings_on_stderr
from maxbrod.cli.output import err, print_error, print_line, speaking
from maxbrod.cli.process import Leaving, guard_streams, means_dead_jvm, refuse_lost_output
from maxbrod.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_USAGE,
    MaxbrodError,
    OutputError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from maxbrod.text import did_you_mean

_GROUPS: Final = {
    "Begin": {
        "init": "maxbrod.setup.cli:init",
        "doctor": "maxbrod.setup.cli:doctor",
        "config": "maxbrod.setup.cli:config",
        "help": "maxbrod.setup.cli:help_page",
        "demo": "maxbrod.demo.cli:demo",
    },
    "Protect": {
        "backup": "maxbrod.backup.cli:backup",
        "drill": "maxbrod.drill.cli:app",
        "hold": "maxbrod.hold.cli:app",
        "evidence": "maxbrod.evidence.cli:app",
        "key": "maxbrod.key.cli:app",
        "lock": "maxbrod.lock.cli:app",
    },
    "Restore": {
        "restore": "maxbrod.restore.cli:restore",
        "mount": "maxbrod.mount.cli:mount",
        "groups": "maxbrod.groups.cli:app",
        "compare": "maxbrod.compare.cli:compare",
    },
    "Look": {
        "status": "maxbrod.inspect.cli:status",
        "serve": "maxbrod.serve.cli:serve",
        "ls": "maxbrod.inspect.cli:ls",
        "show": "maxbrod.inspect.cli:show",
        "state": "maxbrod.state.cli:state",
        "check": "maxbrod.check.cli:check",
        "query": "maxbrod.query.cli:query",
    },
    "Maintain": {
        "compact": "maxbrod.compact.cli:compact",
        "prune": "maxbrod.prune.cli:prune",
        "erase": "maxbrod.erase.cli:erase",
        "gc": "maxbrod.inspect.cli:gc",
        "repair": "maxbrod.repair.cli:repair",
        "convert": "maxbrod.convert.cli:convert",
        "copy": "maxbrod.copy.cli:copy",
    },
    "Schedule": {"run": "maxbrod.schedule.cli:run"},
    "Replicate": {"replicate": "maxbrod.replicate.cli:app"},
    "Lab": {
        "sandbox": "maxbrod.sandbox.cli:app",
        "cluster": "maxbrod.cluster.cli:app",
        "bench": "maxbrod_bench.cli:app",
    },
}
_VERBS: Final = {verb: place for group in _GROUPS.values() for verb, place in group.items()}
_PANELS: Final = {verb: name for name, group in _GROUPS.items() for verb in group}
_WITHOUT_FILE: Final = frozenset({"cluster", "sandbox", "bench", "demo", "help"})
"""Verbs that read no configuration file, and have the options of the log all the same."""

_HELP: Final = (
    "Backup and restore for Apache Kafka.\n\n"
    "Exit codes: 0 done and complete, 1 failed, 2 bad usage or configuration, 3 incomplete, 4 corrupt data found, 5 "
    "refused for safety, or not confirmed (no, Ctrl-C, end of input). A signal stops the work in an orderly way, "
    "usually with 3; a second one ends it at once (130, 143)."
)
_SILENT: Final = frozenset({"--json", "--quiet", "-q"})


@cache
def command_line(verb: str | None = None) -> typer.Typer:
    """Return the command with this verb, or with all of them. To load all takes half a second."""
    app = typer.Typer(
        name="maxbrod",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=_HELP)(_root)
    for name in _VERBS if verb is None else (verb,):
        found = _load(name)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name, rich_help_panel=_PANELS[name])
        elif found is _bench_missing:
            app.command(name, hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
                found
            )
        else:
            app.command(name, rich_help_panel=_PANELS[name])(found)
    return with_nouns(app)


@cache
def _load(verb: str) -> Any:  # noqa: ANN401 - a command, or a group of them
    module, _, attribute = _VERBS[verb].partition(":")
    if verb == "bench" and find_spec("maxbrod_bench") is None:
        return _bench_missing
    found = getattr(import_module(module), attribute)
    if verb not in _WITHOUT_FILE:
        return found
    return with_log(found, verb) if isinstance(found, typer.Typer) else logged(found, verb)


def _bench_missing() -> None:
    raise UsageError(
        "benchmarks are part of the repository, and not of the installed package",
        hint="run 'maxbrod bench' in a checkout",
    )


def _version(wanted: bool) -> None:
    if wanted:
        print_line(f"maxbrod {__version__}")
        raise typer.Exit


def _root(
    _show_version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, metavar="", help="Print the version and exit."),
    ] = False,
) -> None:
    pass


class _PandasWithSparkOnly:
    """Keeps pandas out of a process that does not use Spark: it takes 0.2 s and 35 MB.

    Arrow loads it to find out whether a value is one of pandas, and does without if it cannot. It tries once more when
    pandas is really needed.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002 - a finder
        if name == "pandas" and "pyspark" not in sys.modules:
            raise ImportError("pandas is left out", name=name)


def main() -> None:
    sys.meta_path.insert(0, _PandasWithSparkOnly())
    guard_streams()
    leaving = Leaving()
    leaving.leave(run(sys.argv[1:]))


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
            app = command_line(next((word for word in arguments[:1] if word in _VERBS), None))
            code = app(args=arguments, prog_name="maxbrod", standalone_mode=False)
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else EXIT_FAILED
    except UsageProblem as problem:
        if not as_json and is_help(problem):
            return EXIT_USAGE
        # typer would print text, also where JSON is expected, and in another form than our errors have.
        raise usage_error(problem) from problem
    except typer.Abort:
        # Behind the question.
        err.print()
        raise RefusedError("a question was not answered, and nothing was changed", hint="run it again") from None
    except MaxbrodError:
        raise
    except Exception as error:
        if means_dead_jvm(error):
            hint = "run it again; set MAXBROD_SPARK_LOG to a file to keep Spark's log"
            raise UnavailableError("Spark's JVM has died: it was killed", operation="run on Spark", hint=hint) from None
        if not as_json:
            raise
        traceback.print_exc()
        hint = "this is a bug in maxbrod: please report it, with what is on standard error"
        raise MaxbrodError(f"{type(error).__name__}: {error}", hint=hint) from error
    return code if isinstance(code, int) else EXIT_DONE


# The usage of a command: how `--help` names values, and how a wrong command line is answered


UsageProblem: Final[type[Exception]] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException" and issubclass(kind, Exception)
)
"""The error of typer for a wrong command line; the class has no public name."""

_NOUNS: Final = {int: "N", float: "N", Path: "PATH", str: "TEXT"}


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - typer has no public name for it
        return [_worded(param) for param in super().get_params(ctx)]


class _Group(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer has no public name for it
        """A group that is a verb itself takes the archive as its first word, as verbs without commands do."""
        takes_archive = any(param.name == "archive" for param in self.params)
        word = args[0] if args and takes_archive else None
        if word is not None and word not in self.commands and not word.startswith("-") and is_place(word):
            args = ["--archive", *args]
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - typer has no public name for it
        return [_worded(param) for param in super().get_params(ctx)]


def _worded(param: Any) -> Any:  # noqa: ANN401 - a parameter of typer
    """Name the value of an option by a noun, where typer would print a type. A switch takes no value."""
    if param.param_type_name == "option" and param.metavar is None:
        kind = param.type_descriptor.annotation
        param.metavar = "" if param.is_flag else _NOUNS.get(kind)
    elif param.param_type_name == "argument":
        # typer prints the type of an argument beside its name.
        param.display_type_rich = lambda ctx: None  # noqa: ARG005 - called by keyword
    return param


def with_nouns(app: typer.Typer) -> typer.Typer:
    """The same commands, which name the values of their options by nouns in `--help`."""
    app.info.cls = _Group
    for command in app.registered_commands:
        command.cls = _Command
    for group in app.registered_groups:
        group.cls = _Group
        if group.typer_instance is not None:
            with_nouns(group.typer_instance)
    return app


def is_help(problem: Exception) -> bool:
    """True if a group was called without a command, and typer has printed its help."""
    return type(problem).__name__ == "NoArgsIsHelpError"


def usage_error(problem: Any) -> UsageError:  # noqa: ANN401 - typer has no public name for it
    """The error about a wrong command line, with the nearest right one."""
    context = getattr(problem, "ctx", None)
    path = "maxbrod" if context is None else context.command_path
    # typer appends a suggestion of its own.
    text = re.sub(r"\.? Did you mean .*$", "", str(problem.message))
    params = [] if context is None else context.command.params
    options = ["--help", *(flag for param in params for flag in param.opts if not getattr(param, "hidden", False))]
    message, question = str(problem.format_message()).rstrip("."), None
    if hasattr(problem, "possibilities"):
        message = f"there is no option {problem.option_name}"
        question = did_you_mean(problem.option_name, options)
    elif found := re.match(r"No such command '(.*?)'", text):
        message = f"there is no command {found[1]}"
        question = did_you_mean(found[1], getattr(getattr(context, "command", None), "commands", ()))
    elif found := re.match(r"Got unexpected extra argument\S* \((.*?)[\s)]", text):
        message = f"unexpected argument {found[1]}"
        question = f"name a topic with --topic {found[1]};" if "--topic" in options else None
    elif found := re.match(r"Option '(.*?)' requires", text):
        message = f"{found[1]} needs a value"
    return UsageError(message, hint=" ".join(filter(None, [question, f"see '{path} --help'"])))
