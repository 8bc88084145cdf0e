"""The options of `maxbrod groups`."""

from dataclasses import dataclass
from typing import Annotated

from maxbrod.options import Option, Options, Words


@dataclass(frozen=True, kw_only=True)
class GroupsOptions(Options):
    restore: Annotated[str | None, Option("The id of the restore, if the archive has more than one.", metavar="ID")] = (
        None
    )
    groups: Annotated[
        Words,
        Option(
            "A name, a glob, or a /regular expression/ that matches the whole name. May be repeated. By default the "
            "groups that the restore named, or all.",
            metavar="PATTERN",
            flags=("--group",),
        ),
    ] = ()
    force: Annotated[
        bool, Option("Include groups with members: they are removed, rejoin, and continue at the new offset.")
    ] = False
