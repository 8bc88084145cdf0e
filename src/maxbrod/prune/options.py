"""The options of `maxbrod prune`."""

from dataclasses import dataclass
from typing import Final

from maxbrod.option_values import Bytes, Seconds, Words
from maxbrod.options import BEHAVIOR, Options, SingleWriter, option

DATA: Final = "Which records go"
RUNS: Final = "Which runs stay"


@dataclass(frozen=True, kw_only=True)
class PruneOptions(Options):
    topics: Words = option(
        "Only these topics lose records: names, globs, or /regular expressions/ that match the whole name. All "
        "topics by default. With --undo: the run to undo.",
        default=(),
        metavar="TOPIC",
        argument=True,
    )
    older_than: str | None = option("Segments whose records are all older than this: 24h, 90d.", DATA, metavar="TIME")
    topic_bytes: Bytes | None = option(
        "The oldest segments of a topic, until it is no larger than this.", DATA, "BYTES", low=0
    )
    archive_bytes: Bytes | None = option(
        "The oldest segments of all topics, until the archive is no larger than this.", DATA, "BYTES", low=0
    )
    as_source: bool = option(
        "What the source would delete by each topic's own retention.ms and retention.bytes.", DATA, default=False
    )
    deleted_before: str | None = option(
        "Topics that the cluster has lost longer ago than this, with all their records: 365d. Otherwise the newest "
        "segments of a lost topic stay.",
        DATA,
        "TIME",
    )
    compacted_too: bool = option(
        "By age and size, also segments of compacted topics and of those whose cleanup policy is unknown. Keys "
        "whose newest record is old are lost.",
        DATA,
        default=False,
    )
    keep_last: int | None = option("The last N runs.", RUNS, "N", low=1)
    keep_within: Seconds | None = option("All runs within this time before the newest one: 48h, 30d.", RUNS, "TIME")
    keep_hourly: int | None = option("The newest run of each of the last N hours.", RUNS, "N", low=1)
    keep_daily: int | None = option("The newest run of each of the last N days.", RUNS, "N", low=1)
    keep_weekly: int | None = option("The newest run of each of the last N weeks.", RUNS, "N", low=1)
    keep_monthly: int | None = option("The newest run of each of the last N months.", RUNS, "N", low=1)
    keep_yearly: int | None = option("The newest run of each of the last N years.", RUNS, "N", low=1)
    grace: str = option(
        "How long --undo can bring it back, and its objects stay: 24h, 30d. At least 1h.",
        BEHAVIOR,
        "TIME",
        default="7d",
    )
    trust_clock: bool = option(
        "This machine's clock is right: ages count up to now, not up to the newest backup, and a newest run in the "
        "future is ignored.",
        BEHAVIOR,
        default=False,
    )
    undo: bool = option(
        "Bring back what a prune took away: the newest one, or that of the named run.", BEHAVIOR, default=False
    )
    apply: bool = option(
        "Do it. Without it, only list what would be done.", BEHAVIOR, default=False, flags=("--apply", "--delete")
    )
    single_writer: SingleWriter = False
