"""What the tasks of a restore are told about topics that get another number of partitions. Values, as JSON and back.

Apart from the work itself, because that loads numba, and the driver only says what is to be done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maxbrod.layouts.travelling import decode_slice
from maxbrod.restore.repartition.blocks import SourceExtent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.layouts.kafka.slices import Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSource:
    """One source partition: offsets [first_offset, end_offset) of its slices, which are in order."""

    partition: int
    first_offset: int
    end_offset: int
    slices: tuple[Slice, ...]
    marks: tuple[int, ...] = ()
    """Offsets at which groups stood, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedItem:
    """Some partitions of one target topic, and all that its records come from."""

    topic: str
    topic_id: str
    """Of the target."""
    partition_count: int
    bases: dict[int, int]
    """Of the partitions that are this task's: the target's offset of the first record of all."""
    batch_bytes_max: int
    sources: tuple[SharedSource, ...]
    blocks: tuple[SourceExtent, ...]


def is_shared(values: Mapping[str, Any]) -> bool:
    """Whether it is such an item, and no other."""
    return "blocks" in values


def decode_shared(values: Mapping[str, Any]) -> SharedItem:
    """From what JSON has made of it."""
    sources = [
        {**each, "slices": tuple(map(decode_slice, each["slices"])), "marks": tuple(each["marks"])}
        for each in values["sources"]
    ]
    fields = {
        "bases": {int(partition): base for partition, base in values["bases"].items()},
        "sources": tuple(SharedSource(**each) for each in sources),
        "blocks": tuple(SourceExtent(**each) for each in values["blocks"]),
    }
    return SharedItem(**{**values, **fields})
