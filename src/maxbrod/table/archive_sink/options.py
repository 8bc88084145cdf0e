"""The options of a write into an archive: text from Spark, values for us. A name that nobody knows is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from maxbrod.config import StorageConfig
from maxbrod.errors import UsageError
from maxbrod.layouts.kafka.compression import Compression
from maxbrod.layouts.kafka.slices import SegmentLimits
from maxbrod.model import Codec
from maxbrod.table.read.options import size_of, storage_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES: Final = ("path", "topic", "partitions", "compression", "codec", "segmentBytes", "singleWriter")
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
"""Spark's own, which it hands on."""
PARTITIONS_MAX: Final = 1_000_000
"""The most partitions of a topic. Clusters have far fewer, so a larger number is a mistake; a snapshot would hold a
place for each."""
_STORAGE: Final = "storage."
_WORDS: Final = {"true": True, "false": False}
_CODECS: Final = {codec.name.lower(): codec for codec in Codec}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Where a DataFrame goes, and how it is stored. `storage` may hold secrets."""

    url: str
    storage: StorageConfig = field(default_factory=StorageConfig, repr=False)
    topic: str | None = None
    """Of all rows; None: each names its own."""
    partitions: int | None = None
    compression: Compression = field(default_factory=Compression)
    codec: Codec = Codec.NONE
    """Of the batches."""
    limits: SegmentLimits = field(default_factory=SegmentLimits)
    single_writer: bool = False


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Names in any case, as Spark hands them over in lower case. UsageError says what cannot be right."""
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower() for name in _NAMES} | _OF_SPARK
    unknown = sorted(name for name in given if name not in known and not name.startswith(_STORAGE))
    if unknown:
        raise UsageError(f"a write has no option {unknown[0]!r}", hint=f"choose of {', '.join(_NAMES[1:])}, storage.*")
    if not given.get("path"):
        raise UsageError(
            "no archive is named", hint='give its URL: df.write.format("maxbrod").mode("append").save(url)'
        )
    return SinkOptions(
        url=given["path"],
        storage=storage_of(given),
        topic=given.get("topic"),
        partitions=_partitions(given.get("partitions")),
        compression=Compression.parse(given.get("compression", "auto")),
        codec=_codec(given.get("codec", "none")),
        limits=SegmentLimits(bytes_max=size_of("segmentBytes", given.get("segmentbytes"), SegmentLimits().bytes_max)),
        single_writer=_flag("singleWriter", given.get("singlewriter", "false")),
    )


def _partitions(word: str | None) -> int | None:
    if word is None:
        return None
    if not (word.isascii() and word.isdigit() and 1 <= int(word) <= PARTITIONS_MAX):
        raise UsageError(f"the option partitions is {word!r}", hint=f"say how many there are: 1 to {PARTITIONS_MAX}")
    return int(word)


def _codec(word: str) -> Codec:
    if word not in _CODECS:
        raise UsageError(f"the option codec is {word!r}", hint=f"choose of {', '.join(_CODECS)}")
    return _CODECS[word]


def _flag(name: str, word: str) -> bool:
    if word.lower() not in _WORDS:
        raise UsageError(f"the option {name} is {word!r}", hint="choose of true, false")
    return _WORDS[word.lower()]
