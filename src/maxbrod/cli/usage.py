"""The usage of a command: how `--help` names the values of options, and what a wrong command line is answered with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from maxbrod.errors import UsageError
from maxbrod.text import did_you_mean

UsageProblem: Final[type[Exception]] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException" and issubclass(kind, Exception)
)
"""The error of typer for a wrong command line; the class has no public name."""

_NOUNS: Final = {int: "N", float: "N", Path: "PATH", str: "TEXT"}


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - typer has no public name for it
        return [_worded(param) for param in super().get_params(ctx)]


class _Group(TyperGroup):
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
