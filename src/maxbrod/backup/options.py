"""The options of `maxbrod backup`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from maxbrod.options import (
    BEHAVIOR,
    SELECTION,
    AcceptLoss,
    Bytes,
    Codec,
    Exclude,
    LayoutOptions,
    MetricsFile,
    MetricsHost,
    MetricsNames,
    MetricsPort,
    MinTopics,
    Option,
    Options,
    Paths,
    Rate,
    Reads,
    Seconds,
    SegmentRecords,
    Topics,
    parse_time,
    parse_words,
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
class BackupOptions(Options):
    from_logdir: Annotated[
        Paths,
        Option(
            "A log directory of a broker, or a folder with those of several brokers. May be repeated. No broker may be "
            "running on it.",
            LOGDIR,
            "DIR",
            python=False,
        ),
    ] = ()
    uncommitted_tail: Annotated[
        bool,
        Option(
            "Include records above the recorded high watermark. After a crash these can be acknowledged records.",
            LOGDIR,
            python=False,
        ),
    ] = False
    topics: Topics = ()
    exclude: Exclude = ()
    min_topics: MinTopics = None
    internal: Annotated[bool, Option("Back up internal topics as well, such as __consumer_offsets.", SELECTION)] = False
    start: Annotated[
        Start,
        Option(
            "Where to start in a partition that the archive does not have yet: earliest, latest, a time with its time "
            "zone, or topic:partition:offset, which may be repeated.",
            SELECTION,
            "WHERE",
        ),
    ] = "earliest"
    compression: Annotated[
        str,
        Option(
            "auto (as received, and recompressed where that costs little), source (as received), or zstd (smallest).",
            BEHAVIOR,
            "auto|source|zstd[:LEVEL]",
        ),
    ] = "auto"
    segment_bytes: Annotated[
        Bytes | None,
        Option(
            "Write at most about this much log to a segment. 256MiB by default, or the size that another layout has.",
            BEHAVIOR,
            "BYTES",
            low=1,
        ),
    ] = None
    segment_records: SegmentRecords = None
    rate_bytes_per_s: Annotated[
        Rate | None,
        Option(
            "Limit the rate to this many bytes a second, such as 50MB.",
            BEHAVIOR,
            "BYTES",
            ("--rate",),
            low=1,
        ),
    ] = None
    exact_timestamps: Annotated[
        bool,
        Option(
            "Read every record for the lowest timestamp of each segment. Queries by time then read fewer segments; the "
            "backup takes longer.",
            BEHAVIOR,
        ),
    ] = False
    single_writer: Annotated[
        bool,
        Option("No other process writes to this archive. For storage that ignores conditional puts.", BEHAVIOR),
    ] = False
    commit_bytes: Annotated[
        Bytes, Option("Commit a long run each time it has read about this much.", BEHAVIOR, "BYTES", (), low=1)
    ] = 16 << 30
    codec: Codec = None
    layout_options: LayoutOptions = field(default_factory=dict)
    accept_loss: AcceptLoss = False
    follow: Annotated[bool, Option("Continue until SIGTERM or Ctrl-C, with one run per interval.", FOLLOWING)] = False
    every: Annotated[Seconds, Option("The interval, and so the recovery point objective.", FOLLOWING, "TIME")] = 60.0
    roll_bytes: Annotated[
        Bytes | None,
        Option("Read a partition once about this much is waiting in it. Needs --roll-age.", FOLLOWING, "BYTES", low=1),
    ] = None
    roll_records: Annotated[
        int | None,
        Option("Read a partition once this many records are waiting in it. Needs --roll-age.", FOLLOWING, "N", low=1),
    ] = None
    roll_age: Annotated[
        Seconds,
        Option("Read a partition once a record has waited this long. 0: at every interval.", FOLLOWING, "TIME"),
    ] = 0.0
    generation_every: Annotated[
        Seconds | None,
        Option(
            "Read compacted topics again from their start this often. The new generation replaces the old one when it "
            "is complete.",
            GENERATIONS,
            "TIME",
        ),
    ] = None
    generation_bytes: Annotated[
        Bytes,
        Option(
            "With --follow, read about this much of new generations per interval, or more if a topic's "
            "delete.retention.ms requires it.",
            GENERATIONS,
            "BYTES",
            low=1,
        ),
    ] = 256 << 20
    generation_role: Annotated[
        str | None,
        Option(
            "Take turns with a second instance, which has the other role, as the tool of the layout avro does. This is "
            "the role to begin with.",
            GENERATIONS,
            "active|passive",
        ),
    ] = None
    generation_name: Annotated[
        str,
        Option(
            "The common name of the two instances: NAME-activate and NAME-passivate. One of them may be a connector of "
            "that tool.",
            GENERATIONS,
            "NAME",
        ),
    ] = "maxbrod"
    metrics_port: MetricsPort = None
    metrics_host: MetricsHost = "127.0.0.1"
    metrics_names: MetricsNames = ()
    metrics_file: MetricsFile = None

    def __post_init__(self) -> None:
        if not self.roll_age and (self.roll_bytes is not None or self.roll_records is not None):
            raise ValueError("roll_bytes and roll_records need roll_age, which bounds how long anything waits")
        if self.generation_every is not None and self.generation_every <= 0:
            raise ValueError("generation_every must be above 0")
        if self.generation_role not in {None, "active", "passive"}:
            raise ValueError("generation_role must be active or passive")
