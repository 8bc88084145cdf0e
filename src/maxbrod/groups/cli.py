"""`maxbrod groups`: moves the groups of a restore to their archived positions, or back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import print_json, print_line
from maxbrod.cli.verbs import looking
from maxbrod.errors import EXIT_DONE, EXIT_INCOMPLETE, EXIT_REFUSED
from maxbrod.groups.options import GroupsOptions
from maxbrod.options import PLACE, ClusterOptions, JsonOption
from maxbrod.text import counted

if TYPE_CHECKING:
    from maxbrod.groups.movement import RestoredGroups
    from maxbrod.groups.plan import GroupPosition

app = typer.Typer(no_args_is_help=True, help="Committed offsets of consumer groups, after a restore.")
_SHARED = (ClusterOptions, *PLACE, JsonOption)


@app.command()
@command("groups", GroupsOptions, after=_SHARED, without=["force"], looks=lambda _: True)
def plan(call: Call[GroupsOptions]) -> None:
    """Show where groups would continue; change nothing."""
    _run(
        call,
        lambda work: work.apply(call.options.groups, mount=call.options.from_mount, dry_run=True),
        "nothing was changed",
    )


@app.command()
@command("groups", GroupsOptions, after=_SHARED)
def apply(call: Call[GroupsOptions]) -> None:
    """Commit for each group the offset of the record that it would have read next.

    Groups with members are not changed, and the exit code is 5. With --force they are, which Kafka allows for groups of
    the classic protocol. The previous offsets are kept for 'rollback'.

    With --from-mount the offsets are those that groups have committed on a mount of the archive, and the archive's
    where they have committed none.
    """
    undo = "'maxbrod groups rollback' restores the previous offsets"
    _run(call, lambda work: work.apply(call.options.groups, mount=call.options.from_mount), undo)


@app.command()
@command("groups", GroupsOptions, after=_SHARED, without=["groups", "from_mount"])
def rollback(call: Call[GroupsOptions]) -> None:
    """Commit the offsets that groups had before the restore moved them."""
    _run(call, lambda work: work.roll_back(), "groups have their previous offsets")


def _run(call: Call[GroupsOptions], act: Callable[[RestoredGroups], Sequence[GroupPosition]], ending: str) -> None:
    from maxbrod.groups.movement import RestoredGroups  # noqa: PLC0415 - Kafka, Arrow and Delta: not for `--help`
    from maxbrod.restore.summary import print_groups, print_missing_groups  # noqa: PLC0415 - not for `--help`

    # Where groups were is stored before the first one moves, and all of them may be moved again.
    with (
        looking(call, "looking at groups"),
        RestoredGroups(call.config, call.options.restore, force=call.options.force) as work,
    ):
        positions = act(work)
    refused = sorted({position.group for position in positions if position.refused is not None})
    missing = work.missing
    code = EXIT_REFUSED if refused else EXIT_INCOMPLETE if missing else EXIT_DONE
    if call.as_json:
        print_json(
            {
                "restore_id": work.restore_id,
                "positions": [asdict(position) for position in positions],
                "groups_missing": [asdict(group) for group in missing],
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
