"""The options of `maxbrod status`."""

from dataclasses import dataclass
from typing import Annotated, Final

from maxbrod.options import OUTPUT, Option, Options, Seconds, Words

TARGETS: Final = "Targets"
_DAY_S: Final = 86_400.0


@dataclass(frozen=True, kw_only=True)
class StatusOptions(Options):
    archives: Annotated[
        Words,
        Option("More archives, besides that of --archive.", metavar="ARCHIVE", argument=True),
    ] = ()
    recovery_point: Annotated[Seconds, Option("The recovery point should be no older than this.", TARGETS, "TIME")] = (
        _DAY_S
    )
    recovery_time: Annotated[
        Seconds | None,
        Option(
            "Restoring everything should take no longer than this, at the speed of the last drill.",
            TARGETS,
            "TIME",
        ),
    ] = None
    deep_check_every: Annotated[
        Seconds, Option("Every byte should have been checked within this time.", TARGETS, "TIME")
    ] = 35 * _DAY_S
    drill_every: Annotated[Seconds, Option("A drill should have succeeded within this time.", TARGETS, "TIME")] = (
        35 * _DAY_S
    )
    price: Annotated[
        str | None,
        Option("The price of storing one GB for a month, such as 0.023, for an estimate of the cost.", OUTPUT, "PRICE"),
    ] = None
    strict: Annotated[bool, Option("Exit with 3 also if there are only warnings.", OUTPUT)] = False
    watch: Annotated[Seconds | None, Option("Look again at this interval until stopped.", OUTPUT, "TIME")] = None
