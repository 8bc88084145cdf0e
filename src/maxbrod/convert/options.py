"""The options of `maxbrod convert`."""

from dataclasses import dataclass, field

from maxbrod.option_values import Bytes, Pairs
from maxbrod.options import (
    BEHAVIOR,
    SELECTION,
    AcceptLoss,
    Codec,
    FromStorage,
    LayoutOptions,
    Options,
    SegmentRecords,
    Topics,
    ToStorage,
    option,
)


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(Options):
    source: str | None = option("The archive to convert, in any layout.", metavar="SRC", argument=True)
    target: str | None = option(
        "The archive to write: empty, or the target of an earlier conversion.", metavar="DST", argument=True
    )
    to: str | None = option(
        "The target layout: kafka (maxbrod's own), kbak, kbs, binlog, avro or parquet.", metavar="NAME"
    )
    from_layout: str | None = option(
        "The layout of SRC. Detected automatically by default.", metavar="NAME", flags=("--from",)
    )
    from_options: Pairs = option(
        "Set an option that only the layout of SRC has, such as uncommitted_tail=true for logdir. May be repeated.",
        default_factory=dict,
        metavar="K=V",
        flags=("--from-option",),
    )
    from_storage: FromStorage = field(default_factory=dict)
    to_storage: ToStorage = field(default_factory=dict)
    topics: Topics = ()
    where: str | None = option("Convert only matching records, as in restore. Only with --to kafka.", SELECTION, "SQL")
    select: str | None = option(
        "Rewrite key, value, headers or timestamp, as in restore. Only with --to kafka.", SELECTION, "SQL"
    )
    segment_bytes: Bytes | None = option(
        "Write at most about this much log to a segment. By default as the layout does.", BEHAVIOR, "BYTES", low=1
    )
    segment_records: SegmentRecords = None
    verify: bool = option("Read both archives again and compare every record.", BEHAVIOR, default=True)
    codec: Codec = None
    layout_options: LayoutOptions = field(default_factory=dict)
    accept_loss: AcceptLoss = False
