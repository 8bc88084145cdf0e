"""The options of `maxbrod ls`, `maxbrod show` and `maxbrod gc`."""

from dataclasses import dataclass
from typing import Annotated

from maxbrod.options import Option, Options, TopicWords

_AS_OF = "Show the archive as this run left it."


@dataclass(frozen=True, kw_only=True)
class LsOptions(Options):
    topics: TopicWords = ()
    runs: Annotated[
        bool, Option("List runs instead of topics; with topics, those since the archive has one of them.")
    ] = False
    as_of: Annotated[str | None, Option(_AS_OF, metavar="RUN")] = None
    all: Annotated[bool, Option("Include topics that were deleted and created again since.")] = False


@dataclass(frozen=True, kw_only=True)
class ShowOptions(Options):
    topic: Annotated[str | None, Option("The name of a topic.", argument=True)] = None
    run: Annotated[str | None, Option("Show this run instead of a topic.", metavar="RUN")] = None
    partition: Annotated[
        int | None, Option("Show only this partition.", metavar="N", flags=("--partition", "-p"), low=0)
    ] = None
    as_of: Annotated[str | None, Option(_AS_OF, metavar="RUN")] = None
    topic_id: Annotated[str | None, Option("Show an older topic of the same name.", metavar="ID")] = None
    all: Annotated[bool, Option("Show all topics that ever had this name.")] = False


@dataclass(frozen=True, kw_only=True)
class GcOptions(Options):
    delete: Annotated[bool, Option("Delete. Without it, only list what would be deleted.")] = False
    grace: Annotated[str, Option("Keep objects younger than this: 90m, 24h, 7d. At least 1h.", metavar="TIME")] = "24h"
    trust_clock: Annotated[
        bool,
        Option(
            "This machine's clock is right: grace periods of prunes end by it, not by the time of the newest backup, "
            "and a newest run in the future is ignored."
        ),
    ] = False
