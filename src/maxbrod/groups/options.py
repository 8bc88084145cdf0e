"""The options of `maxbrod groups`."""

from dataclasses import dataclass
from pathlib import Path

from maxbrod.option_values import Words
from maxbrod.options import Options, option


@dataclass(frozen=True, kw_only=True)
class GroupsOptions(Options):
    restore: str | None = option("The id of the restore, if the archive has more than one.", metavar="ID")
    groups: Words = option(
        "A name, a glob, or a /regular expression/ that matches the whole name. May be repeated. By default the "
        "groups that the restore named, or all.",
        default=(),
        metavar="PATTERN",
        flags=("--group",),
    )
    from_mount: Path | None = option(
        "Carry over what groups have committed on a mount of the archive: the folder of its state, which 'maxbrod "
        "mount' prints. By default the groups that committed there. Groups that are still active there are left alone.",
        metavar="STATE",
    )
    force: bool = option(
        "Include groups with members: they are removed, rejoin, and continue at the new offset.", default=False
    )
