"""Where records stand once a topic has another number of partitions, and where its groups go on.

Keys are hashed anew, so that what stood together is shared out among the target's partitions. A share is a run of
records in a target partition that came from one source partition. A group's position becomes the first share that may
hold a record which the group has not processed: so nothing is skipped, and what may be seen twice is counted. Shares
end where a group stood, so that for the groups that were archived both are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FIELDS: Final = 4


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


def encode_shares(shares: Sequence[Share], *, base: int) -> dict[str, Any]:
    """As plain JSON values. They follow each other in the log from `base` on, so that only their counts are told."""
    rows = ((each.partition, each.first, each.end - each.first, each.count) for each in shares)
    return {"base": base, "shares": list(chain.from_iterable(rows))}


def decode_shares(document: Mapping[str, Any]) -> tuple[int, tuple[Share, ...]]:
    """The base and the shares that `encode_shares` wrote; CorruptDataError where it cannot be."""
    try:
        base, values = document["base"], document["shares"]
        if type(base) is not int or any(type(each) is not int or each < 0 for each in values) or len(values) % _FIELDS:
            raise TypeError(base)
    except (KeyError, TypeError) as error:
        raise CorruptDataError(f"shares cannot be read: {error!r}", operation="read an offset map") from error
    shares, position = list[Share](), base
    for place in range(0, len(values), _FIELDS):
        partition, first, length, count = values[place : place + _FIELDS]
        shares.append(Share(partition=partition, first=first, end=first + length, base=position, count=count))
        position += count
    return base, tuple(shares)


def _unprocessed(share: Share, committed: Mapping[int, int]) -> bool:
    return share.count > 0 and committed.get(share.partition, 0) < share.end


def _processed(share: Share, committed: Mapping[int, int]) -> int:
    """At most: the offsets of the share below the group's, if all of those went to this partition."""
    return min(share.count, max(committed.get(share.partition, 0) - share.first, 0))
