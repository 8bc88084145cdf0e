"""Between the plan of a restore and its run: shows the plan, asks for confirmation, and decides whether to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from maxbrod.cli.output import err, out, print_json, print_line
from maxbrod.errors import EXIT_DONE, RefusedError
from maxbrod.restore.plan.obstacles import refusal
from maxbrod.restore.summary import plan_document, print_obstacles, print_plan, refusal_document

if TYPE_CHECKING:
    from maxbrod.restore.plan.plan import RestorePlan


def decide(plan: RestorePlan, *, dry_run: bool, yes: bool, quiet: bool, as_json: bool) -> int | None:
    """Return the exit code of a command that ends here, or None if the plan may run. RefusedError: not confirmed."""
    if dry_run:
        return _show(plan, quiet=quiet, as_json=as_json)
    refused = refusal(plan.obstacles)
    asks = out.is_terminal and not (yes or quiet or as_json)
    if asks:
        print_plan(plan)
    if not as_json:
        told = next((obstacle for obstacle in plan.obstacles if obstacle.fatal), None)
        print_obstacles(plan, err, fatal_only=quiet, unknown=False, told=told)
    if refused is not None and as_json:
        print_json(refusal_document(plan, refused))
        return refused.exit_code
    if refused is not None:
        raise refused
    if asks and not _agreed("Restore this?"):
        raise RefusedError("nothing was changed: it was not agreed to", hint="use --yes to run without confirmation")
    return None


def _agreed(question: str) -> bool:
    """Whether the user confirmed. Ctrl-C and the end of the input count as no."""
    try:
        return typer.confirm(question, default=False)
    except (typer.Abort, KeyboardInterrupt, EOFError):
        print_line("")
        return False


def _show(plan: RestorePlan, *, quiet: bool, as_json: bool) -> int:
    refused = refusal(plan.obstacles)
    if as_json:
        print_json(plan_document(plan, refused))
    else:
        if not quiet:
            print_plan(plan)
        print_obstacles(plan, out, fatal_only=quiet, unknown=True)
        if not quiet:
            print_line("nothing was changed" if refused is None else "this cannot be restored; nothing was changed")
    return EXIT_DONE if refused is None else refused.exit_code
