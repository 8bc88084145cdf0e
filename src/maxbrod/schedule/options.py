"""The options of `maxbrod run`. Jobs are a section of their own in the configuration file."""

from dataclasses import dataclass

from maxbrod.option_values import Seconds
from maxbrod.options import BEHAVIOR, MetricsOptions, option


@dataclass(frozen=True, kw_only=True)
class RunOptions(MetricsOptions):
    once: str | None = option(
        "Run this job now, and end with its exit code. It takes no slot, and a scheduler that runs elsewhere is not "
        "asked.",
        metavar="JOB",
        python=False,
    )
    list: bool = option(
        "List the jobs: when each begins next, and how its last run ended.", default=False, python=False
    )
    parallel: int = option(
        "Run at most this many jobs at once. Those that follow do not count.", BEHAVIOR, "N", default=4, low=1
    )
    idle: Seconds = option("Close Spark after it was not used for this long.", BEHAVIOR, "TIME", default=600.0)
    takeover: Seconds = option(
        "Take over from a scheduler of the same archive that has given no sign of life for this long.",
        BEHAVIOR,
        "TIME",
        default=60.0,
    )
    single_writer: bool = option(
        "The store ignores conditional puts, and no other scheduler runs for this archive.", BEHAVIOR, default=False
    )
