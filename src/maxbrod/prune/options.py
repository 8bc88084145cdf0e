"""The options of `maxbrod prune`."""

from dataclasses import dataclass
from typing import Annotated, Final

from maxbrod.options import BEHAVIOR, Bytes, Option, Options, Seconds, Words

DATA: Final = "Which records go"
RUNS: Final = "Which runs stay"


@dataclass(frozen=True, kw_only=True)
class PruneOptions(Options):
    topics: Annotated[
        Words,
        Option(
            "Only these topics lose records: names, globs, or /regular expressions/ that match the whole name. All "
            "topics by default. With --undo: the run to undo.",
            metavar="TOPIC",
            argument=True,
        ),
    ] = ()
    older_than: Annotated[
        str | None, Option("Segments whose records are all older than this: 24h, 90d.", DATA, metavar="TIME")
    ] = None
    topic_bytes: Annotated[
        Bytes | None, Option("The oldest segments of a topic, until it is no larger than this.", DATA, "BYTES", low=0)
    ] = None
    archive_bytes: Annotated[
        Bytes | None,
        Option("The oldest segments of all topics, until the archive is no larger than this.", DATA, "BYTES", low=0),
    ] = None
    as_source: Annotated[
        bool, Option("What the source would delete by each topic's own retention.ms and retention.bytes.", DATA)
    ] = False
    deleted_before: Annotated[
        str | None,
        Option(
            "Topics that the cluster has lost longer ago than this, with all their records: 365d. Otherwise the newest "
            "segments of a lost topic stay.",
            DATA,
            "TIME",
        ),
    ] = None
    compacted_too: Annotated[
        bool,
        Option(
            "By age and size, also segments of compacted topics and of those whose cleanup policy is unknown. Keys "
            "whose newest record is old are lost.",
            DATA,
        ),
    ] = False
    keep_last: Annotated[int | None, Option("The last N runs.", RUNS, "N", low=1)] = None
    keep_within: Annotated[
        Seconds | None, Option("All runs within this time before the newest one: 48h, 30d.", RUNS, "TIME")
    ] = None
    keep_hourly: Annotated[int | None, Option("The newest run of each of the last N hours.", RUNS, "N", low=1)] = None
    keep_daily: Annotated[int | None, Option("The newest run of each of the last N days.", RUNS, "N", low=1)] = None
    keep_weekly: Annotated[int | None, Option("The newest run of each of the last N weeks.", RUNS, "N", low=1)] = None
    keep_monthly: Annotated[int | None, Option("The newest run of each of the last N months.", RUNS, "N", low=1)] = None
    keep_yearly: Annotated[int | None, Option("The newest run of each of the last N years.", RUNS, "N", low=1)] = None
    grace: Annotated[
        str, Option("How long --undo can bring it back, and its objects stay: 24h, 30d. At least 1h.", BEHAVIOR, "TIME")
    ] = "7d"
    trust_clock: Annotated[
        bool,
        Option(
            "This machine's clock is right: ages count up to now, not up to the newest backup, and a newest run in the "
            "future is ignored.",
            BEHAVIOR,
        ),
    ] = False
    undo: Annotated[
        bool, Option("Bring back what a prune took away: the newest one, or that of the named run.", BEHAVIOR)
    ] = False
    apply: Annotated[
        bool,
        Option("Do it. Without it, only list what would be done.", BEHAVIOR, flags=("--apply", "--delete")),
    ] = False
    single_writer: Annotated[
        bool,
        Option("No other process writes to this archive. For storage that ignores conditional puts.", BEHAVIOR),
    ] = False
