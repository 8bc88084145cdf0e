"""`maxbrod groups`: moves the groups of a restore to their archived positions, or back."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import print_json, print_line
from maxbrod.errors import EXIT_DONE, EXIT_INCOMPLETE, EXIT_REFUSED
from maxbrod.groups.options import GroupsOptions
from maxbrod.options import PLACE, ClusterOptions, JsonOption
from maxbrod.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maxbrod.groups.movement import RestoredGroups
    from maxbrod.groups.moves import GroupPosition

app = typer.Typer(no_args_is_help=True, help="Committed offsets of consumer groups, after a restore.")
_SHARED = (ClusterOptions, *PLACE, JsonOption)


@app.command()
@command("groups", GroupsOptions, after=_SHARED, without=["force"])
def plan(call: Call[GroupsOptions]) -> None:
    """Show where groups would continue; change nothing."""
    with _open(call) as work:
        _run(work, lambda: work.plan(call.options.groups), "nothing was changed", as_json=call.as_json)


@app.command()
@command("groups", GroupsOptions, after=_SHARED)
def apply(call: Call[GroupsOptions]) -> None:
    """Commit for each group the offset of the record that it would have read next.

    Groups with members are not changed, and the exit code is 5. With --force they are, which Kafka allows for groups of
    the classic protocol. The previous offsets are kept for 'rollback'.
    """
    with _open(call) as work:
        undo = "'maxbrod groups rollback' restores the previous offsets"
        _run(work, lambda: work.apply(call.options.groups), undo, as_json=call.as_json)


@app.command()
@command("groups", GroupsOptions, after=_SHARED, without=["groups"])
def rollback(call: Call[GroupsOptions]) -> None:
    """Commit the offsets that groups had before the restore moved them."""
    with _open(call) as work:
        _run(work, work.roll_back, "groups have their previous offsets", as_json=call.as_json)


def _open(call: Call[GroupsOptions]) -> RestoredGroups:
    from maxbrod.groups.movement import RestoredGroups  # noqa: PLC0415 - Kafka, Arrow and Delta: not for `--help`

    settings = call.config.model_copy(update={"archive": call.archive})
    return RestoredGroups(settings, call.options.restore, force=call.options.force)


def _run(work: RestoredGroups, act: Callable[[], Sequence[GroupPosition]], ending: str, *, as_json: bool) -> None:
    from maxbrod.restore.summary import print_groups, print_missing_groups  # noqa: PLC0415 - not for `--help`

    positions = act()
    refused = sorted({position.group for position in positions if position.refused is not None})
    missing = work.missing
    code = EXIT_REFUSED if refused else EXIT_INCOMPLETE if missing else EXIT_DONE
    if as_json:
        told = [asdict(position) for position in positions]
        lacking = [asdict(each) for each in missing]
        print_json(
            {
                "restore_id": work.restore_id,
                "positions": told,
                "groups_missing": lacking,
                "seen_twice_max": sum(position.seen_twice_max for position in positions if position.refused is None),
                "exit_code": code,
            }
        )
    else:
        if positions:
            print_groups(positions, work.run_id)
        but = f", but for groups that were left alone: {', '.join(refused)}" if refused else ""
        print_line(f"{counted(len(positions), 'position')} of restore {work.restore_id}; {ending}{but}")
        print_missing_groups(missing)
    raise typer.Exit(code)
