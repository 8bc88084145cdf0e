"""The options of `maxbrod convert`."""

from dataclasses import dataclass, field
from typing import Annotated

from maxbrod.options import (
    BEHAVIOR,
    SELECTION,
    AcceptLoss,
    Bytes,
    Codec,
    LayoutOptions,
    Option,
    Options,
    Pairs,
    SegmentRecords,
    Topics,
)


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(Options):
    source: Annotated[str | None, Option("The archive to convert, in any layout.", metavar="SRC", argument=True)] = None
    target: Annotated[
        str | None,
        Option("The archive to write: empty, or the target of an earlier conversion.", metavar="DST", argument=True),
    ] = None
    to: Annotated[
        str | None,
        Option("The target layout: kafka (maxbrod's own), kbak, kbs, binlog, avro or parquet.", metavar="NAME"),
    ] = None
    from_layout: Annotated[
        str | None,
        Option("The layout of SRC. Detected automatically by default.", metavar="NAME", flags=("--from",)),
    ] = None
    from_options: Annotated[
        Pairs,
        Option(
            "Set an option that only the layout of SRC has, such as uncommitted_tail=true for logdir. May be repeated.",
            metavar="K=V",
            flags=("--from-option",),
        ),
    ] = field(default_factory=dict)
    from_storage: Annotated[
        Pairs,
        Option(
            "Set a storage option for SRC alone, such as s3.endpoint=http://old:9000. Keys belong into the file. "
            "May be repeated.",
            metavar="K=V",
        ),
    ] = field(default_factory=dict)
    to_storage: Annotated[
        Pairs, Option("Set a storage option for DST alone, as --from-storage does. May be repeated.", metavar="K=V")
    ] = field(default_factory=dict)
    topics: Topics = ()
    where: Annotated[
        str | None, Option("Convert only matching records, as in restore. Only with --to kafka.", SELECTION, "SQL")
    ] = None
    select: Annotated[
        str | None,
        Option("Rewrite key, value, headers or timestamp, as in restore. Only with --to kafka.", SELECTION, "SQL"),
    ] = None
    segment_bytes: Annotated[
        Bytes | None,
        Option(
            "Write at most about this much log to a segment. By default as the layout does.", BEHAVIOR, "BYTES", low=1
        ),
    ] = None
    segment_records: SegmentRecords = None
    verify: Annotated[bool, Option("Read both archives again and compare every record.", BEHAVIOR)] = True
    codec: Codec = None
    layout_options: LayoutOptions = field(default_factory=dict)
    accept_loss: AcceptLoss = False
