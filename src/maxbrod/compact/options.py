"""The options of `maxbrod compact`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from maxbrod.option_values import Bytes, Reads, Seconds
from maxbrod.options import BEHAVIOR, Exclude, Options, SingleWriter, Topics, option

LIMITS: Final = "Which segments"


def parse_sections(value: object) -> object:
    """A mapping from patterns to settings."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(limits, Mapping) for limits in value.values()):
        raise ValueError("is not a mapping from topics to their settings")
    return {str(pattern): dict(settings) for pattern, settings in value.items()}


Sections = Annotated[
    dict[str, dict[str, Any]],
    Reads(
        parse=parse_sections,
        python="Mapping[str, Mapping[str, object]]",
        schema={"type": "object", "additionalProperties": {"type": "object"}},
    ),
]


@dataclass(frozen=True, kw_only=True)
class TopicLimits(Options):
    """The limits that can be set for each topic."""

    min_level: int = option(
        "Merge segments of this level and above. Backups write level 0.", LIMITS, "N", default=0, low=0
    )
    max_level: int = option(
        "Merge segments up to this level. The result is one level higher.", LIMITS, "N", default=0, low=0
    )
    min_segment_age: Seconds = option(
        "Merge only segments that were written this long ago.", LIMITS, "TIME", default=3600.0
    )
    min_segment_count: int = option("Merge at least this many segments into one.", LIMITS, "N", default=10, low=2)
    min_segment_size: Bytes = option(
        "Merge only if the segments have this many stored bytes together.", LIMITS, "SIZE", default=1 << 30, low=1
    )
    max_segment_count: int = option("Merge at most this many segments into one.", LIMITS, "N", default=10_000, low=2)
    max_segment_size: Bytes = option(
        "Add no further segment to one that has this many stored bytes.", LIMITS, "SIZE", default=4 << 30, low=1
    )
    delete: bool = option(
        "In the layout parquet: delete segments that were merged. In maxbrod's own layout 'gc' deletes them later.",
        LIMITS,
        default=True,
    )
    step_over: bool = option(
        "In the layout parquet: also merge what lies behind segments that are missing, too young or damaged. Only "
        "if kafka-replicator's own compaction never runs on this tree: it would delete those segments unread.",
        LIMITS,
        default=False,
    )
    parallelism: int | None = option(
        "Merge at most this many segments of a topic at once. As many as Spark has cores by default.",
        LIMITS,
        "N",
        low=1,
    )


@dataclass(frozen=True, kw_only=True)
class CompactOptions(TopicLimits):
    topics: Topics = ()
    exclude: Exclude = ()
    per_topic: Sections = option(
        "Other limits for some topics, by name or pattern: the first that matches applies to a topic.",
        LIMITS,
        default_factory=dict,
        flags=(),
    )
    recompress: str = option(
        "auto: copy batches as they are, in frames if that halves them. source: never in frames. zstd or zstd:9: "
        "decompress batches first, for the smallest archive.",
        BEHAVIOR,
        "MODE",
        default="auto",
    )
    commit_bytes: Bytes = option(
        "Commit whenever about this many bytes have been merged.", BEHAVIOR, "SIZE", default=8 << 30, low=1
    )
    single_writer: SingleWriter = False
    by_key: bool = option(
        "Keep only the newest record of each key of compacted topics, instead of merging segments. Limits of "
        "segments do not apply.",
        BEHAVIOR,
        default=False,
    )
    cut: str | None = option(
        "With --by-key: compact what this run and those before it archived. The newest backup by default.",
        BEHAVIOR,
        "RUN",
    )
    dry_run: bool = option(
        "Print what would be merged, or read for --by-key, and change nothing.", BEHAVIOR, default=False
    )
