"""`maxbrod groups`: puts the groups of a restore where they stood, or back to where they were."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maxbrod.backup.cli_options import BootstrapOption, CommandConfigOption, PatienceOption, with_flags
from maxbrod.cli.options import (
    ArchiveOption,
    ConfigOption,
    LayoutOption,
    S3EndpointOption,
    S3PathStyleOption,
    S3RegionOption,
    find_place,
)
from maxbrod.cli.output import JsonFlag, print_json, print_line
from maxbrod.errors import EXIT_DONE, EXIT_INCOMPLETE, EXIT_REFUSED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from maxbrod.groups.moves import GroupPosition
    from maxbrod.groups.run import RestoredGroups

app = typer.Typer(no_args_is_help=True, help="Where consumer groups go on, after a restore.")

RestoreOption = Annotated[
    str | None,
    typer.Option("--restore", metavar="ID", help="The restore that is meant, where there are several."),
]
GroupOption = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        metavar="PATTERN",
        help="A name, a glob or /a regex/ of whole names; may be repeated. As restored, or all.",
    ),
]
ForceOption = Annotated[
    bool,
    typer.Option("--force", help="Groups with members, too: these are removed, come back, and read on there."),
]


class _Place:
    """What all three verbs are told."""

    def __init__(self, config: Path | None, archive: str | None, **s3: Any) -> None:  # noqa: ANN401 - flags
        self._place = find_place(archive, config, **s3)

    def open(
        self,
        bootstrap: str | None,
        command_config: Path | None,
        patience: str | None,
        restore: str | None,
        *,
        force: bool = False,
    ) -> RestoredGroups:
        from maxbrod.groups.run import RestoredGroups  # noqa: PLC0415 - Kafka, Arrow and Delta: not for `--help`

        settings = with_flags(
            self._place.config,
            bootstrap=bootstrap,
            command_config=command_config,
            master=None,
            start=None,
            patience=patience,
        ).model_copy(update={"archive": self._place.url, "storage": self._place.storage})
        return RestoredGroups(settings, restore, force=force)


@app.command()
def plan(
    restore: RestoreOption = None,
    group: GroupOption = None,
    bootstrap: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    archive: ArchiveOption = None,
    layout: LayoutOption = None,
    config: ConfigOption = None,
    s3_endpoint: S3EndpointOption = None,
    s3_region: S3RegionOption = None,
    s3_path_style: S3PathStyleOption = None,
    patience: PatienceOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show where groups would go; change nothing."""
    place = _Place(config, archive, layout=layout, endpoint=s3_endpoint, region=s3_region, path_style=s3_path_style)
    with place.open(bootstrap, command_config, patience, restore) as work:
        _tell(work, lambda: work.plan(group or ()), "nothing was changed", as_json=as_json)


@app.command()
def apply(
    restore: RestoreOption = None,
    group: GroupOption = None,
    bootstrap: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    archive: ArchiveOption = None,
    layout: LayoutOption = None,
    config: ConfigOption = None,
    s3_endpoint: S3EndpointOption = None,
    s3_region: S3RegionOption = None,
    s3_path_style: S3PathStyleOption = None,
    patience: PatienceOption = None,
    force: ForceOption = False,
    as_json: JsonFlag = False,
) -> None:
    """Put groups at the record that they would have read next.

    Groups with members are left alone, and the command ends with 5; unless it is forced, which Kafka allows for
    groups of the classic protocol. Where groups stood before is kept for 'rollback'.
    """
    place = _Place(config, archive, layout=layout, endpoint=s3_endpoint, region=s3_region, path_style=s3_path_style)
    with place.open(bootstrap, command_config, patience, restore, force=force) as work:
        _tell(work, lambda: work.apply(group or ()), "'maxbrod groups rollback' puts them back", as_json=as_json)


@app.command()
def rollback(
    restore: RestoreOption = None,
    bootstrap: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    archive: ArchiveOption = None,
    layout: LayoutOption = None,
    config: ConfigOption = None,
    s3_endpoint: S3EndpointOption = None,
    s3_region: S3RegionOption = None,
    s3_path_style: S3PathStyleOption = None,
    patience: PatienceOption = None,
    force: ForceOption = False,
    as_json: JsonFlag = False,
) -> None:
    """Put groups back to where they stood before the restore moved them."""
    place = _Place(config, archive, layout=layout, endpoint=s3_endpoint, region=s3_region, path_style=s3_path_style)
    with place.open(bootstrap, command_config, patience, restore, force=force) as work:
        _tell(work, work.roll_back, "groups stand where they stood before", as_json=as_json)


def _tell(work: RestoredGroups, act: Callable[[], Sequence[GroupPosition]], ending: str, *, as_json: bool) -> None:
    from maxbrod.restore.summary import print_groups, print_missing_groups  # noqa: PLC0415 - not for `--help`

    positions = act()
    refused = sorted({each.group for each in positions if each.refused is not None})
    missing = work.missing
    code = EXIT_REFUSED if refused else EXIT_INCOMPLETE if missing else EXIT_DONE
    if as_json:
        told = [asdict(each) for each in positions]
        lacking = [asdict(each) for each in missing]
        print_json({"restore_id": work.restore_id, "positions": told, "groups_missing": lacking, "exit_code": code})
    else:
        if positions:
            print_groups(positions, work.run_id)
        but = f", but for groups that were left alone: {', '.join(refused)}" if refused else ""
        print_line(f"{len(positions):,} positions of restore {work.restore_id}; {ending}{but}")
        print_missing_groups(missing)
    raise typer.Exit(code)
