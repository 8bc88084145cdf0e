"""The options of `maxbrod backup`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from maxbrod.option_values import Bytes, Paths, Reads, RegistryUrl, Seconds, parse_time, parse_words
from maxbrod.options import (
    BEHAVIOR,
    REGISTRY,
    SELECTION,
    AcceptLoss,
    Codec,
    Exclude,
    LayoutOptions,
    MetricsOptions,
    MinTopics,
    RateLimit,
    SegmentRecords,
    SingleWriter,
    Topics,
    option,
)

FOLLOWING: Final = "Continuous backup"
LOGDIR: Final = "Disks of a lost cluster"
GENERATIONS: Final = "Compacted topics"


def parse_starts(value: object) -> object:
    """Words of the command line; offsets become a mapping of topic to partition to offset, as the file has them."""
    from maxbrod.backup.plan.starts import AtOffsets, parse_start  # noqa: PLC0415 - not for `--help`

    if isinstance(value, Mapping):
        return value
    words: Any = parse_words(parse_time(value))
    meant = parse_start(words)
    if not isinstance(meant, AtOffsets):
        return words[0]
    offsets: dict[str, dict[int, int]] = {}
    for where, offset in meant.offsets.items():
        offsets.setdefault(where.topic, {})[where.partition] = offset
    return offsets


Start = Annotated[
    str | dict[str, dict[int, int]],
    Reads(
        parse=parse_starts,
        python="str | int | datetime | Iterable[str] | Mapping[str, Mapping[int, int]]",
        schema={
            "anyOf": [
                {"type": ["string", "integer"]},
                {"type": "array", "items": {"type": "string"}},
                {
                    "type": "object",
                    "additionalProperties": {"type": "object", "additionalProperties": {"type": "integer"}},
                },
            ]
        },
        repeated=True,
    ),
]


@dataclass(frozen=True, kw_only=True)
class BackupOptions(MetricsOptions):
    from_logdir: Paths = option(
        "A log directory of a broker, or a folder with those of several brokers. May be repeated. No broker may be "
        "running on it.",
        LOGDIR,
        "DIR",
        default=(),
        python=False,
    )
    uncommitted_tail: bool = option(
        "Include records above the recorded high watermark. After a crash these can be acknowledged records.",
        LOGDIR,
        default=False,
        python=False,
    )
    topics: Topics = ()
    exclude: Exclude = ()
    min_topics: MinTopics = None
    internal: bool = option("Back up internal topics as well, such as __consumer_offsets.", SELECTION, default=False)
    start: Start = option(
        "Where to start in a partition that the archive does not have yet: earliest, latest, a time with its time "
        "zone, or topic:partition:offset, which may be repeated.",
        SELECTION,
        "WHERE",
        default="earliest",
    )
    schema_registry: RegistryUrl | None = option(
        "Capture this schema registry with every run: subjects, versions, ids, references, modes, compatibility and "
        "contexts. User, password, token and certificates are in the section registry of the configuration file.",
        REGISTRY,
        "URL",
    )
    compression: str = option(
        "auto (as received, and recompressed where that costs little), source (as received), or zstd (smallest).",
        BEHAVIOR,
        "auto|source|zstd[:LEVEL]",
        default="auto",
    )
    segment_bytes: Bytes | None = option(
        "Write at most about this much log to a segment. 256MiB by default, or the size that another layout has.",
        BEHAVIOR,
        "BYTES",
        low=1,
    )
    segment_records: SegmentRecords = None
    rate_bytes_per_s: RateLimit = None
    exact_timestamps: bool = option(
        "Read every record for the lowest timestamp of each segment. Queries by time then read fewer segments; the "
        "backup takes longer.",
        BEHAVIOR,
        default=False,
    )
    single_writer: SingleWriter = False
    commit_bytes: Bytes = option(
        "Commit a long run each time it has read about this much.", BEHAVIOR, "BYTES", (), default=16 << 30, low=1
    )
    codec: Codec = None
    layout_options: LayoutOptions = field(default_factory=dict)
    accept_loss: AcceptLoss = False
    follow: bool = option("Continue until SIGTERM or Ctrl-C, with one run per interval.", FOLLOWING, default=False)
    every: Seconds = option(
        "The interval, and so the recovery point objective. 0: as soon as there are records, up to ten times a second.",
        FOLLOWING,
        "TIME",
        default=60.0,
    )
    roll_bytes: Bytes | None = option(
        "Read a partition once about this much is waiting in it. Needs --roll-age.", FOLLOWING, "BYTES", low=1
    )
    roll_records: int | None = option(
        "Read a partition once this many records are waiting in it. Needs --roll-age.", FOLLOWING, "N", low=1
    )
    roll_age: Seconds = option(
        "Read a partition once a record has waited this long. 0: at every interval.", FOLLOWING, "TIME", default=0.0
    )
    generation_every: Seconds | None = option(
        "Read compacted topics again from their start this often. The new generation replaces the old one when it "
        "is complete.",
        GENERATIONS,
        "TIME",
    )
    generation_bytes: Bytes = option(
        "With --follow, read about this much of new generations per interval, or more if a topic's "
        "delete.retention.ms requires it.",
        GENERATIONS,
        "BYTES",
        default=256 << 20,
        low=1,
    )
    generation_role: str | None = option(
        "Take turns with a second instance, which has the other role, as the tool of the layout avro does. This is "
        "the role to begin with.",
        GENERATIONS,
        "active|passive",
    )
    generation_name: str = option(
        "The common name of the two instances: NAME-activate and NAME-passivate. One of them may be a connector of "
        "that tool.",
        GENERATIONS,
        "NAME",
        default="maxbrod",
    )

    def __post_init__(self) -> None:
        if not self.roll_age and (self.roll_bytes is not None or self.roll_records is not None):
            raise ValueError("roll_bytes and roll_records need roll_age, which bounds how long anything waits")
        if self.generation_every is not None and self.generation_every <= 0:
            raise ValueError("generation_every must be above 0")
        if self.generation_role not in {None, "active", "passive"}:
            raise ValueError("generation_role must be active or passive")
