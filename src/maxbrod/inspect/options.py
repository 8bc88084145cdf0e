"""The options of `maxbrod ls`, `show`, `gc` and `status`."""

from dataclasses import dataclass
from typing import Final

from maxbrod.option_values import Seconds, Words
from maxbrod.options import OUTPUT, Options, TopicWords, option

TARGETS: Final = "Targets"
_DAY_S: Final = 86_400.0
_AS_OF: Final = "Show the archive as this run left it."


@dataclass(frozen=True, kw_only=True)
class LsOptions(Options):
    topics: TopicWords = ()
    runs: bool = option(
        "List runs instead of topics; with topics, those since the archive has one of them.", default=False
    )
    as_of: str | None = option(_AS_OF, metavar="RUN")
    all: bool = option("Include topics that were deleted and created again since.", default=False)


@dataclass(frozen=True, kw_only=True)
class ShowOptions(Options):
    topic: str | None = option("The name of a topic.", argument=True)
    run: str | None = option("Show this run instead of a topic.", metavar="RUN")
    partition: int | None = option("Show only this partition.", metavar="N", flags=("--partition", "-p"), low=0)
    as_of: str | None = option(_AS_OF, metavar="RUN")
    topic_id: str | None = option("Show an older topic of the same name.", metavar="ID")
    all: bool = option("Show all topics that ever had this name.", default=False)


@dataclass(frozen=True, kw_only=True)
class GcOptions(Options):
    delete: bool = option("Delete. Without it, only list what would be deleted.", default=False)
    grace: str = option("Keep objects younger than this: 90m, 24h, 7d. At least 1h.", default="24h", metavar="TIME")
    trust_clock: bool = option(
        "This machine's clock is right: grace periods of prunes end by it, not by the time of the newest backup, "
        "and a newest run in the future is ignored.",
        default=False,
    )


@dataclass(frozen=True, kw_only=True)
class StatusOptions(Options):
    archives: Words = option("More archives, besides that of --archive.", default=(), metavar="ARCHIVE", argument=True)
    recovery_point: Seconds = option(
        "The recovery point should be no older than this.", TARGETS, "TIME", default=_DAY_S
    )
    recovery_time: Seconds | None = option(
        "Restoring everything should take no longer than this, at the speed of the last drill.", TARGETS, "TIME"
    )
    deep_check_every: Seconds = option(
        "Every byte should have been checked within this time.", TARGETS, "TIME", default=35 * _DAY_S
    )
    drill_every: Seconds = option(
        "A drill should have succeeded within this time.", TARGETS, "TIME", default=35 * _DAY_S
    )
    price: str | None = option(
        "The price of storing one GB for a month, such as 0.023, for an estimate of the cost.", OUTPUT, "PRICE"
    )
    strict: bool = option("Exit with 3 also if there are only warnings.", OUTPUT, default=False)
    watch: Seconds | None = option("Look again at this interval until stopped.", OUTPUT, "TIME")
