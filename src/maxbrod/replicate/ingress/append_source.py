"""The items of tasks that append, their outcomes, and their source: committed batches of an archive.

Batches get headers that name where records come from. Records that were in the destination topic before are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.coalesce import Batches
from maxbrod.batch.cuts import Cut
from maxbrod.batch.headers import NEWEST_MAGIC, BatchHeaders
from maxbrod.batch.provenance import Provenance
from maxbrod.batch.replay import replay
from maxbrod.batch.transactions import transaction_events
from maxbrod.errors import MaxbrodError, RefusedError
from maxbrod.kafka.wire.client import PATIENCE_S
from maxbrod.layouts.kafka.format import Slice  # noqa: TC001 - pydantic reads the types of fields
from maxbrod.layouts.reader import read_logs
from maxbrod.model import Codec, TopicPartition
from maxbrod.replicate.link import Link, LinkMark, been_there, origin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from maxbrod.config import KafkaConfig, StorageConfig
    from maxbrod.replicate.link import PositionKey
    from maxbrod.storage.interface import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendSettings:
    """The settings of every task. Holds secrets."""

    link: str
    archive_url: str
    kafka: KafkaConfig
    storage: StorageConfig = field(repr=False)
    destination_id: str
    """The id of the destination's cluster."""
    version: int
    """The version of the catalog."""
    rate_bytes_per_s: float | None = None
    """The limit for one task."""
    patience_s: float = PATIENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendItem:
    """The work on one partition: append the source offsets from the link's position to `end`."""

    where: TopicPartition
    topic_id: str
    """The id of the destination topic."""
    source_topic: str
    source_id: str
    joined: bool
    """True if the link appends other source topics to the same topic."""
    origins: tuple[str, ...]
    """The ids of the clusters that the records come from, the nearest first."""
    start: int
    """The source offset that a new link begins with."""
    position: int | None
    """The position of the link when this was planned; None: it has no mark."""
    begins: bool
    """True if an operator says that the link was never here."""
    end: int
    archive_end: int
    batch_bytes_max: int
    slices: tuple[Slice, ...]

    @property
    def key(self) -> PositionKey:
        return self.source_topic, self.where


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The outcome of one item: the mark that the destination has now, and why it stopped if it did."""

    source_topic: str
    where: TopicPartition
    mark: LinkMark | None
    records: int = 0
    failure: MaxbrodError | None = None

    @property
    def key(self) -> PositionKey:
        return self.source_topic, self.where


OPERATION: Final = "append"
_READ_BYTES: Final = 2 << 20
_READ_S: Final = 5.0
"""With a limited rate no more is read at once than is sent in this time: a transaction can only end in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some batches as a broker accepts them, and what was read of the source with them."""

    batches: Batches | None
    next_offset: int
    leader_epoch: int
    """That of the last batch; -1: unknown."""
    whole: bool
    """True if no transaction of the source is open behind it."""


class AppendSource:
    """The archived batches of one item."""

    def __init__(self, storage: Storage, item: AppendItem, settings: AppendSettings) -> None:
        self._storage, self._item = storage, item
        self._link, self._destination_id = Link(name=settings.link), settings.destination_id
        rate = settings.rate_bytes_per_s
        self._read_bytes = _READ_BYTES if rate is None else max(1 << 16, min(_READ_BYTES, int(rate * _READ_S)))
        self._open: set[int] = set()
        """The producers that have an open transaction at the source."""

    def pieces(self, mark: LinkMark) -> Iterator[Piece]:
        """The source from the mark to the end of the item. The slice before the mark is read only if it may differ."""
        item, position = self._item, mark.next_offset
        reached = position
        for stored in item.slices:
            if stored.end_offset <= position and not _may_differ(stored, mark):
                continue
            for data, headers in read_logs(self._storage, stored, request_bytes=self._read_bytes):
                if not len(headers):
                    continue
                self._compare(headers, mark)
                for producer_id, _, aborts in transaction_events(data, headers):
                    if aborts is None:
                        self._open.add(producer_id)
                    else:
                        self._open.discard(producer_id)
                reached = min(int(headers.last_offset[-1]) + 1, item.end)
                if reached > position:
                    batches = self._replayed(data, headers, stored, position)
                    epoch = int(headers["leader_epoch"][-1]) if headers["magic"][-1] == NEWEST_MAGIC else -1
                    yield Piece(batches=batches, next_offset=reached, leader_epoch=epoch, whole=not self._open)
        # Archives end where no transaction is open, so a marker that is missing was lost. The last offsets of a portion
        # may have no record.
        whole = not self._open or item.end == item.archive_end
        yield Piece(batches=None, next_offset=item.end, leader_epoch=-1, whole=whole)

    def _replayed(self, data: NDArray[np.uint8], headers: BatchHeaders, stored: Slice, position: int) -> Batches:
        item = self._item
        replayed = replay(
            data,
            headers,
            stored.aborted,
            cut=Cut(first_offset=position, end_offset=item.end),
            exact=False,
            batch_bytes_max=item.batch_bytes_max,
            codec=Codec[stored.codec.upper()],
            position=position,
            provenance=Provenance(
                topic=item.source_topic,
                partition=item.where.partition,
                cluster_id=item.origins[0],
                restore_id=self._link.restore_id(item.source_id),
                origins=(origin(item.origins[0], item.source_topic), *map(origin, item.origins[1:])),
                left_out=been_there(self._destination_id, item.where.topic),
            ),
            object_name=self._storage.name_of(stored.path),
        )
        for oversized in replayed.oversized:
            message = f"a batch of {oversized.bytes} bytes is too large for the destination"
            raise refused(item, message, oversized.offset, "raise the max.message.bytes of both topics")
        return Batches(
            data=replayed.data,
            headers=replayed.headers,
            source_offset=replayed.source_offset,
            hole=replayed.hole,
        )

    def _compare(self, headers: BatchHeaders, mark: LinkMark) -> None:
        """Refuse a source whose log was truncated below what was appended, and written again."""
        place = mark.append
        if place is None or place.leader_epoch < 0:
            return
        row = int(np.searchsorted(headers["base_offset"], place.last, side="right")) - 1
        if row < 0 or int(headers.last_offset[row]) < place.last or headers["magic"][row] != NEWEST_MAGIC:
            return
        if (found := int(headers["leader_epoch"][row])) != place.leader_epoch:
            raise refused(
                self._item,
                f"the source's log was truncated: offset {place.last} was appended with leader epoch "
                f"{place.leader_epoch}, and has {found} now",
                place.last,
                "the destination keeps the records that the source has lost; name another --link to append all anew",
            )


def _may_differ(stored: Slice, mark: LinkMark) -> bool:
    """True if the batch that the mark names may have another leader epoch now."""
    place = mark.append
    if place is None or place.leader_epoch < 0 or not stored.base_offset <= place.last < stored.end_offset:
        return False
    return not stored.first_leader_epoch == stored.last_leader_epoch == place.leader_epoch


def refused(item: AppendItem, message: str, offset: int, hint: str) -> RefusedError:
    return RefusedError(message, operation=OPERATION, object_name=str(item.where), offset=offset, hint=hint)
