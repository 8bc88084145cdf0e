"""Where records stand once a topic has another number of partitions: blocks, in the order in which they were written.

Keys are hashed anew, so that each block of a source partition is shared out among the target's partitions. A group's
position becomes the first block of a target partition that may hold a record which the group has not processed. So
nothing is skipped, and what may be seen twice is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """All records of source offsets [first, end) that went to one target partition, at `count` offsets from `base`."""

    partition: int
    """Of the source."""
    first: int
    end: int
    base: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePosition:
    offset: int
    seen_twice_max: int


def find_position(shares: Sequence[Share], committed: Mapping[int, int], *, base: int) -> SharePosition:
    """Of a group in one target partition, whose shares are in the order of the log from `base` on.

    `committed` is the group's offset in each source partition. One that it has not is one that it has not read.
    """
    place = next((place for place, each in enumerate(shares) if _unprocessed(each, committed)), len(shares))
    if place == len(shares):
        return SharePosition(offset=shares[-1].base + shares[-1].count if shares else base, seen_twice_max=0)
    return SharePosition(
        offset=shares[place].base, seen_twice_max=sum(_processed(each, committed) for each in shares[place:])
    )


def interleave(rows: Iterable[tuple[int, int, int | None]]) -> list[int]:
    """The order in which blocks of several partitions are written, as places in what was given.

    A block is its partition, base offset and highest timestamp, and blocks of a partition come in the order of offsets.
    They are mixed as near to the order of time as keeping each partition's order allows: so consumers meet the records
    about as they did, and a group's position has little behind it that was processed. The same rows, the same order.
    """
    reached: dict[int, int] = {}
    keys = []
    for place, (partition, base, highest) in enumerate(rows):
        # A partition's order is never given up for the time.
        time = reached.get(partition, _LONG_AGO) if highest is None else max(reached.get(partition, _LONG_AGO), highest)
        reached[partition] = time
        keys.append((time, partition, base, place))
    return [key[-1] for key in sorted(keys)]


_LONG_AGO = -(2**63)


def _unprocessed(share: Share, committed: Mapping[int, int]) -> bool:
    return share.count > 0 and committed.get(share.partition, 0) < share.end


def _processed(share: Share, committed: Mapping[int, int]) -> int:
    """At most: the offsets of the block below the group's, if all of those went to this partition."""
    return min(share.count, max(committed.get(share.partition, 0) - share.first, 0))
