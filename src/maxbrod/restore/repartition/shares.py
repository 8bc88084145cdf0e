"""Target offsets of records in a topic that gets another number of partitions, and the offsets of its groups there.

Keys are hashed again, so the records of a source partition are distributed among the target's partitions. A share is a
run of records in a target partition that come from one source partition. A group continues at the first share that may
hold a record which the group has not processed: it skips nothing, and the records that it may see twice are counted.
Shares end where an archived group stood, so for archived groups both are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.errors import CorruptDataError
from maxbrod.restore.plan.mapping import decode_columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FIELDS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """All records of source offsets [first, end) in one target partition, at `count` offsets from `base` on."""

    partition: int
    """The source partition."""
    first: int
    end: int
    base: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePosition:
    offset: int
    seen_twice_max: int


def find_position(shares: Sequence[Share], committed: Mapping[int, int], *, base: int) -> SharePosition:
    """The offset of a group in one target partition, whose shares are in the order of the log from `base` on.

    `committed` is the group's offset in each source partition. The group has read nothing of partitions without one.
    """
    place = next((place for place, each in enumerate(shares) if _unprocessed(each, committed)), len(shares))
    if place == len(shares):
        return SharePosition(offset=shares[-1].base + shares[-1].count if shares else base, seen_twice_max=0)
    return SharePosition(
        offset=shares[place].base, seen_twice_max=sum(_processed(share, committed) for share in shares[place:])
    )


def encode_shares(shares: Sequence[Share], *, base: int) -> dict[str, Any]:
    """The shares as plain JSON values. They are adjacent in the log from `base` on, so only counts are stored."""
    rows = ((share.partition, share.first, share.end - share.first, share.count) for share in shares)
    return {"base": base, "shares": list(chain.from_iterable(rows))}


def decode_shares(document: Mapping[str, Any]) -> tuple[int, tuple[Share, ...]]:
    """The base and the shares that `encode_shares` wrote. CorruptDataError: it did not write them."""
    base, columns = decode_columns(document, "shares", _FIELDS)
    if (columns < 0).any():
        raise CorruptDataError("an offset map cannot be read: it has a number below 0", operation="read an offset map")
    partition, first, length, count = columns
    rows = (partition, first, first + length, base + np.cumsum(count) - count, count)
    return base, tuple(
        Share(partition=partition, first=first, end=end, base=start, count=count)
        for partition, first, end, start, count in zip(*(row.tolist() for row in rows), strict=True)
    )


def _unprocessed(share: Share, committed: Mapping[int, int]) -> bool:
    return share.count > 0 and committed.get(share.partition, 0) < share.end


def _processed(share: Share, committed: Mapping[int, int]) -> int:
    """An upper bound: the offsets of the share below the group's, as if all their records were in this share."""
    return min(share.count, max(committed.get(share.partition, 0) - share.first, 0))
