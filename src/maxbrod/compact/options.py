"""The options of `maxbrod compact`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from maxbrod.options import BEHAVIOR, Bytes, Exclude, Option, Options, Reads, Seconds, Topics

LIMITS: Final = "Which segments"


def parse_sections(value: object) -> object:
    """A mapping from patterns to settings."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(each, Mapping) for each in value.values()):
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
    """What can be set for each topic."""

    min_level: Annotated[
        int, Option("Merge segments of this level and above. Backups write level 0.", LIMITS, "N", low=0)
    ] = 0
    max_level: Annotated[
        int, Option("Merge segments up to this level. The result is one level higher.", LIMITS, "N", low=0)
    ] = 0
    min_segment_age: Annotated[
        Seconds, Option("Merge only segments that were written this long ago.", LIMITS, "TIME")
    ] = 3600.0
    min_segment_count: Annotated[int, Option("Merge at least this many segments into one.", LIMITS, "N", low=2)] = 10
    min_segment_size: Annotated[
        Bytes, Option("Merge only if the segments have this many stored bytes together.", LIMITS, "SIZE", low=1)
    ] = 1 << 30
    max_segment_count: Annotated[int, Option("Merge at most this many segments into one.", LIMITS, "N", low=2)] = 10_000
    max_segment_size: Annotated[
        Bytes, Option("Add no further segment to one that has this many stored bytes.", LIMITS, "SIZE", low=1)
    ] = 4 << 30
    delete: Annotated[
        bool,
        Option(
            "In the layout parquet: delete segments that were merged. In maxbrod's own layout 'gc' deletes them later.",
            LIMITS,
        ),
    ] = True
    step_over: Annotated[
        bool,
        Option(
            "In the layout parquet: also merge what lies behind segments that are missing, too young or damaged. Only "
            "if kafka-replicator's own compaction never runs on this tree: it would delete those segments unread.",
            LIMITS,
        ),
    ] = False
    parallelism: Annotated[
        int | None,
        Option(
            "Merge at most this many segments of a topic at once. As many as Spark has cores by default.",
            LIMITS,
            "N",
            low=1,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CompactOptions(TopicLimits):
    topics: Topics = ()
    exclude: Exclude = ()
    per_topic: Annotated[
        Sections,
        Option(
            "Other limits for some topics, by name or pattern: the first that matches applies to a topic.",
            LIMITS,
            flags=(),
        ),
    ] = field(default_factory=dict)
    recompress: Annotated[
        str,
        Option(
            "auto: copy batches as they are, in frames if that halves them. source: never in frames. zstd or zstd:9: "
            "decompress batches first, for the smallest archive.",
            BEHAVIOR,
            "MODE",
        ),
    ] = "auto"
    commit_bytes: Annotated[
        Bytes, Option("Commit whenever about this many bytes have been merged.", BEHAVIOR, "SIZE", low=1)
    ] = 8 << 30
    single_writer: Annotated[
        bool,
        Option("No other process writes to this archive. For storage that ignores conditional puts.", BEHAVIOR),
    ] = False
    by_key: Annotated[
        bool,
        Option(
            "Keep only the newest record of each key of compacted topics, instead of merging segments. Limits of "
            "segments do not apply.",
            BEHAVIOR,
        ),
    ] = False
    cut: Annotated[
        str | None,
        Option(
            "With --by-key: compact what this run and those before it archived. The newest backup by default.",
            BEHAVIOR,
            "RUN",
        ),
    ] = None
    dry_run: Annotated[
        bool, Option("Print what would be merged, or read for --by-key, and change nothing.", BEHAVIOR)
    ] = False
