"""The options of a write into an archive, parsed from the text that Spark passes. Unknown names are refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from maxbrod.config import StorageConfig
from maxbrod.errors import UsageError
from maxbrod.layouts.kafka.format import Compression, SegmentLimits
from maxbrod.model import Codec
from maxbrod.table.read.options import choice, known_options, size_of, storage_of, switch

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES: Final = ("topic", "partitions", "compression", "codec", "segmentBytes", "singleWriter")
_OF_SPARK: Final = ("checkpointLocation", "queryName")
"""Spark's own options, which it passes on."""
PARTITIONS_MAX: Final = 1_000_000
"""The most partitions of a topic. Clusters have far fewer, so a larger number is a mistake; a snapshot would hold a
place for each."""
_CODECS: Final = {codec.name.lower(): codec for codec in Codec}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSinkOptions:
    """Where a DataFrame is written, and how it is stored. `storage` may hold secrets."""

    url: str
    storage: StorageConfig = field(default_factory=StorageConfig, repr=False)
    topic: str | None = None
    """The topic of all rows; None: each row names its own."""
    partitions: int | None = None
    compression: Compression = field(default_factory=Compression)
    codec: Codec = Codec.NONE
    """The codec of record batches."""
    limits: SegmentLimits = field(default_factory=SegmentLimits)
    single_writer: bool = False


def parse_archive_sink_options(options: Mapping[str, str]) -> ArchiveSinkOptions:
    """Names in any case, because Spark passes them in lower case. UsageError names the option that is wrong."""
    given = known_options(options, _NAMES, what="a write", hidden=("path", *_OF_SPARK))
    if not given.get("path"):
        raise UsageError(
            "no archive is named", hint='give its URL: df.write.format("maxbrod").mode("append").save(url)'
        )
    return ArchiveSinkOptions(
        url=given["path"],
        storage=storage_of(given),
        topic=given.get("topic"),
        partitions=_partitions(given.get("partitions")),
        compression=Compression.parse(given.get("compression", "auto")),
        codec=choice("codec", given.get("codec", "none"), _CODECS),
        limits=SegmentLimits(bytes_max=size_of("segmentBytes", given.get("segmentbytes"), SegmentLimits().bytes_max)),
        single_writer=switch("singleWriter", given.get("singlewriter", "false")),
    )


def _partitions(word: str | None) -> int | None:
    if word is None:
        return None
    if not (word.isascii() and word.isdigit() and 1 <= int(word) <= PARTITIONS_MAX):
        raise UsageError(
            f"the option partitions is {word!r}", hint=f"give the number of partitions: 1 to {PARTITIONS_MAX}"
        )
    return int(word)
