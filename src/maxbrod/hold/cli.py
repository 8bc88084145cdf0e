"""`maxbrod hold`: keeps records from being pruned, compacted by key or erased."""

from __future__ import annotations

import getpass
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from maxbrod.cli.commands import Call, command
from maxbrod.cli.output import out, print_json, print_line, table
from maxbrod.cli.verbs import load, looking
from maxbrod.errors import UsageError
from maxbrod.hold.options import HoldOptions
from maxbrod.options import PLACE, JsonOption, LookOptions
from maxbrod.text import counted, human_time

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive
    from maxbrod.archive.holds import Hold

app = typer.Typer(no_args_is_help=True, help="Holds: records that nothing prunes, compacts by key or erases.")
_SHARED = (*PLACE, LookOptions, JsonOption)


@app.command()
@command("hold", HoldOptions, after=_SHARED, without=["id", "all"])
def add(call: Call[HoldOptions]) -> None:
    """Hold records: of topics, of a time range, or of a run. A record is held if it matches all that is given.

    Whole segments are held: those that have, or may have, a matching record. A held run stays too.

    For example:

      maxbrod hold add -a /backups/kafka --topic 'payments-*' --since 2026-01-01T00:00Z --why 'audit 4711'

      maxbrod hold add -a /backups/kafka --run latest --why 'before the migration'
    """
    options, parse_time_ms = call.options, load("archive.selection:parse_time_ms")
    if not (options.topics or options.since or options.until or options.run):
        raise UsageError("nothing says what to hold", hint="give --topic, --since, --until or --run; '*' is all topics")
    archive = _open(call)
    with looking(call):
        topics = {position.topic for position in archive.catalog.positions().values()}
    load("archive.selection:select_names")(topics, options.topics, may_come=True)
    hold: Hold = load("archive.holds:add_hold")(
        archive,
        who=_who(options),
        why=_why(options),
        topics=options.topics,
        since_ms=None if options.since is None else parse_time_ms(options.since),
        until_ms=None if options.until is None else parse_time_ms(options.until),
        run=options.run,
    )
    _show(call, hold, "is in force")


@app.command(name="list")
@command("hold", HoldOptions, after=_SHARED, without=["id", "topics", "since", "until", "run", "who", "why"])
def list_(call: Call[HoldOptions]) -> None:
    """List the holds in force, with --all released ones as well."""
    archive = _open(call, write=False)
    found: list[Hold] = load("archive.holds:read_holds")(archive.storage)
    holds = [hold for hold in found if call.options.all or hold.released is None]
    if call.as_json:
        print_json({"archive": archive.url, "holds": [asdict(hold) for hold in holds]})
        return
    if holds:
        shown = table("Holds", "*hold", "since", "who", "what", "why", "released")
        for hold in holds:
            released = (
                hold.released and f"{human_time(hold.released.at_ms)} by {hold.released.who}: {hold.released.why}"
            )
            shown.add_row(hold.id, human_time(hold.at_ms), hold.who, hold.what, hold.why, released or "")
        out.print(shown)
    print_line(f"{counted(sum(hold.released is None for hold in holds), 'hold', 'is', 'are')} in force")


@app.command()
@command("hold", HoldOptions, after=_SHARED, without=["all", "topics", "since", "until", "run"])
def release(call: Call[HoldOptions]) -> None:
    """Release a hold. Who released it, and why, stays on record."""
    if call.options.id is None:
        raise UsageError("no hold is named", hint="see 'maxbrod hold list'")
    release_hold = load("archive.holds:release_hold")
    hold: Hold = release_hold(_open(call), call.options.id, who=_who(call.options), why=_why(call.options))
    _show(call, hold, "is released")


def _show(call: Call[HoldOptions], hold: Hold, now: str) -> None:
    if call.as_json:
        print_json(asdict(hold))
    else:
        print_line(f"hold {hold.id} {now}: {hold.what}")


def _open(call: Call[HoldOptions], *, write: bool = True) -> Archive:
    storage = call.config.storage
    with looking(call):
        opened: Archive = load("archive.archive:open_archive")(call.archive, storage, layout=call.config.layout)
        if write and opened.survey is None:
            opened = load("archive.archive:open_for_writing")(call.archive, storage)
    return opened


def _who(options: HoldOptions) -> str:
    if options.who:
        return options.who
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise UsageError("this user has no name", hint="say who you are: --who NAME") from None


def _why(options: HoldOptions) -> str:
    if not options.why:
        raise UsageError("--why is missing", hint="say why, for those who find the hold in years: --why TEXT")
    return options.why
