"""The bounds on what an archive can make a process hold: one gate for objects, documents and numbers of partitions.

An archive may come from anyone, and a few bytes of it may claim anything. Nothing is read whole, unpacked, parsed or
allocated by a number that an archive names before that number has passed here. Whatever is counted by things that were
seen, such as the rows of a catalog, is bounded by the bytes that hold them.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Final

from maxbrod.errors import CorruptDataError

OBJECT_BYTES_MAX: Final = 1 << 30
"""The largest object that is read whole: a document, a log entry, a checkpoint. Records are read in pieces."""
DOCUMENT_BYTES_MAX: Final = 256 << 20
"""The largest JSON, unpacked: a manifest of half a million segments, a snapshot of millions of partitions."""
DOCUMENT_VALUES_MAX: Final = 16_000_000
"""The most values in JSON. One takes up to a hundred times the bytes of its text, so that bytes alone are no bound."""
DOCUMENT_DEPTH_MAX: Final = 200
ROWS_PER_BYTE_MAX: Final = 16
"""The most rows in a file of the catalog. Parquet can repeat a row without end in a few bytes."""
PARTITIONS_MAX: Final = 1_000_000
"""The most partitions of a topic, and of which only the number of another one is a sign. Kafka itself has no limit."""

_HINT: Final = "the object is damaged, or was made to exhaust memory"
_PLAIN: Final = bytes(byte for byte in range(256) if byte not in b'"[]{},')
_TEXT: Final = re.compile(rb'"[^"]*"')
_STEPS: Final = bytes.maketrans(b'[{]}"', b"\1\1\xff\xff\0")
"""By how much each mark changes the depth, as a signed byte."""


def check_object(size: int, object_name: str, *, most: int | None = None) -> None:
    """CorruptDataError: the object is too large to be read whole."""
    most = OBJECT_BYTES_MAX if most is None else most
    if size > most:
        raise CorruptDataError(
            f"the object has {size:,} bytes; {most:,} is the most for one that is read whole",
            object_name=object_name,
            hint=_HINT,
        )


def check_document(text: bytes, *, depth_max: int = DOCUMENT_DEPTH_MAX) -> None:
    """ValueError: parsing this JSON would take too much memory. Whether it is JSON is for the parser to say."""
    if len(text) > DOCUMENT_BYTES_MAX:
        raise ValueError(f"it has {len(text):,} bytes; {DOCUMENT_BYTES_MAX:,} is the most")
    if len(text) <= depth_max:
        return
    # Only what is outside of texts counts. First escaped quotes go, then everything between quotes.
    marks = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _PLAIN)
    marks = _TEXT.sub(b"", marks.replace(b'""', b""))
    values = marks.count(b",") + marks.count(b"[") + marks.count(b"{")
    if values > DOCUMENT_VALUES_MAX:
        raise ValueError(f"it has {values:,} values; {DOCUMENT_VALUES_MAX:,} is the most")
    if max(accumulate(array("b", marks.translate(_STEPS, b","))), default=0) > depth_max:
        raise ValueError("it is nested too deeply")


def count_partitions(places: Iterable[tuple[str, int]], stated: Mapping[str, int] | None = None) -> dict[str, int]:
    """The partitions of each topic, numbered from 0: by the highest number among these, or as stated if that is more.

    CorruptDataError: as `check_partitions`.
    """
    # Of each place little is done here: every commit comes by with all partitions, seven times.
    seen: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in places:
        seen[topic].append(partition)
    stated = {} if stated is None else stated
    counts = {**stated, **{topic: max(stated.get(topic, 0), max(found) + 1) for topic, found in seen.items()}}
    check_partitions(counts, {topic: len(found) for topic, found in seen.items()})
    return counts


def check_partitions(counts: Mapping[str, int], seen: Mapping[str, int]) -> None:
    """CorruptDataError: by the number of one partition, or by a stated count, topics would have too many partitions.

    `counts` are the partitions of each topic, numbered from 0; `seen` is how many of them the archive shows.
    """
    unseen = {topic: count - min(seen.get(topic, 0), count) for topic, count in counts.items()}
    topic = max(counts, key=lambda name: (unseen[name], counts[name]), default="")
    if sum(unseen.values()) > PARTITIONS_MAX or any(count > PARTITIONS_MAX for count in counts.values()):
        raise CorruptDataError(
            f"the topic would have {counts[topic]:,} partitions, of which the archive shows "
            f"{counts[topic] - unseen[topic]:,}; {PARTITIONS_MAX:,} is the most",
            object_name=topic,
            hint="a number of a partition is wrong; leave the topic out, or take the object or folder of it away",
        )
