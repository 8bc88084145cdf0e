"""One task of an ingress that appends: records and position of a partition in one transaction.

The position is taken before it is read. So records and position are always those of the last transaction that was
committed, whoever dies, sleeps or races, and whenever a request arrives.

A transaction ends where no transaction of the source is open: what was written together is read together. Batches get
headers that name where records come from. Records that were in the destination topic before are left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.coalesce import AUTO, Batches, Coalescer
from maxbrod.batch.cuts import Cut
from maxbrod.batch.headers import NEWEST_MAGIC, BatchHeaders
from maxbrod.batch.provenance import Provenance
from maxbrod.batch.replay import replay
from maxbrod.batch.transactions import transaction_events
from maxbrod.config import KafkaConfig, StorageConfig
from maxbrod.errors import MaxbrodError, RefusedError, UnavailableError
from maxbrod.kafka.produce.appends import Batch, Feed, sequence_after, stamped
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.transactions import Transaction, add_partitions, end
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Pace
from maxbrod.layouts.kafka.format import Slice
from maxbrod.layouts.reader import read_logs
from maxbrod.model import Codec, now_ms, topic_id_of
from maxbrod.replicate.ingress.plan import MirrorPortion
from maxbrod.replicate.ingress.positions import is_over, look_for_brought, put_mark, take_position
from maxbrod.replicate.link import AppendPlace, Link, LinkMark, PositionKey, State, been_there, origin
from maxbrod.replicate.view import MirroredPartition
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from numpy.typing import NDArray

_OPERATION: Final = "append"
_SEE: Final = "see 'maxbrod replicate status'"
_TRANSACTION_BYTES: Final = 32 << 20
_TRANSACTION_S: Final = 20.0
_PARTITIONS_AT_ONCE: Final = 8
_READ_BYTES: Final = 2 << 20
_READ_S: Final = 5.0
"""With a limited rate no more is read at once than is sent in this time: a transaction can only end in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendSettings:
    """The settings of every task. Holds secrets."""

    link: str
    archive_url: str
    kafka: KafkaConfig
    storage: StorageConfig = field(repr=False)
    destination_id: str
    version: int
    rate_bytes_per_s: float | None
    """The limit for one task."""
    patience_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendItem:
    """The work on one partition: append a portion of the archive from the link's mark on."""

    partition: MirroredPartition
    portion: MirrorPortion
    topic_id: str
    """The id of the destination topic."""
    position: int | None
    """The next offset of the link's mark when this was planned; None: it had no mark."""
    begins: bool
    """True if an operator says that the link was never here."""
    batch_bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The outcome of one item: the mark that the destination has now, and why it stopped if it did."""

    key: PositionKey
    mark: LinkMark | None
    records: int = 0
    failure: MaxbrodError | None = None


def run_append_task(settings: AppendSettings, items: Sequence[AppendItem]) -> list[Appended]:
    """Append to some partitions. Errors are returned, each with its partition."""
    storage = open_storage(settings.archive_url, settings.storage)
    rate = settings.rate_bytes_per_s
    threads = max(1, min(len(items), _PARTITIONS_AT_ONCE))
    pace = Pace(None if rate is None else rate / threads)

    with ExitStack() as undo:
        clients: SimpleQueue[KafkaClient] = SimpleQueue()
        for _ in range(threads):
            clients.put(undo.enter_context(KafkaClient(settings.kafka)))

        def one(item: AppendItem) -> Appended:
            client = clients.get()
            try:
                return Appender(client, storage, item, settings, pace).run()
            except MaxbrodError as error:
                return Appended(key=item.partition.key, mark=None, failure=_judged(error))
            finally:
                clients.put(client)

        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(one, items))


class Appender:
    """Appends to one partition, transaction by transaction."""

    def __init__(
        self, client: KafkaClient, storage: Storage, item: AppendItem, settings: AppendSettings, pace: Pace
    ) -> None:
        self._client, self._item, self._settings, self._pace = client, item, settings, pace
        self._each = item.partition
        self._link, self._source = Link(name=settings.link), AppendSource(storage, item, settings)
        self._coalescer = Coalescer(AUTO, batch_bytes_max=item.batch_bytes_max)
        self._sequence = 0
        self._piece: Piece | None = None
        """The last one that was read and is not committed."""
        self._place = AppendPlace(topic_id=item.topic_id, begin=self._each.extent.start)
        self._over = False
        """True if the source was read to its end, or as far as it can be read."""
        self._failure: MaxbrodError | None = None

    def run(self) -> Appended:
        key, joined, patience_s = self._each.key, self._each.mirror.joined, self._settings.patience_s
        position = take_position(self._client, self._link, key, joined=joined, patience_s=patience_s)
        transaction, known = position.transaction, self._agreed(position.mark)
        mark = self._begin() if known is None else known
        self._place = mark.append or self._place
        records, pieces = 0, self._source.pieces(mark)
        try:
            while not self._over:
                count, target_end = self._transact(transaction, pieces)
                if self._piece is None or not self._piece.whole:
                    break
                if self._piece.next_offset > mark.next_offset:
                    place = replace(self._place, end=self._place.end if target_end is None else target_end)
                    following = self._mark(place, self._piece.next_offset)
                    put_mark(self._client, position, following, patience_s=patience_s)
                    known = mark = following
                    records, self._place = records + count, place
                self._piece = None
        except MaxbrodError as error:
            self._failure = _judged(error)
        if self._piece is not None:
            with suppress(MaxbrodError):  # then it ends by its timeout, or when the next instance begins
                end(self._client, transaction, commit=False, patience_s=patience_s)
        return Appended(key=key, mark=known, records=records, failure=self._failure)

    # Where to begin

    def _agreed(self, mark: LinkMark | None) -> LinkMark | None:
        """The mark, if what was planned before it was known for certain still holds. None: the link begins."""
        item = self._item
        if mark is None or (mark.append is not None and mark.append.topic_id != item.topic_id):
            if item.position is not None:
                raise UnavailableError("the mark of the link is gone", object_name=str(self._each.where))
            return None
        if mark.state is State.PROMOTED:
            raise self._refused("the topic was promoted meanwhile", mark.next_offset, _SEE)
        if mark.topic_id != self._each.id.topic_id:
            raise self._refused("the source topic was deleted and created again", mark.next_offset, _SEE)
        if mark.append is None:
            raise self._refused("the link has mirrored it with exact offsets", mark.next_offset, "name another --link")
        if mark.next_offset < (item.position or 0):
            raise UnavailableError("the mark of the link went back", object_name=str(self._each.where))
        return mark

    def _begin(self) -> LinkMark:
        """Begin without a mark: the link was never here, or it was so long ago that brokers have forgotten it.

        Records that the link has appended name it, so the log tells, unless some of them may have been deleted.
        """
        item, start = self._item, self._each.extent.start
        found = look_for_brought(
            self._client,
            self._each.where,
            topic_id_of(item.topic_id),
            self._link.restore_id(self._each.id.topic_id),
            patience_s=self._settings.patience_s,
        )
        if found.first is not None and found.last is not None and not found.compacted:
            return self._mark(replace(self._place, begin=found.first), max(found.last + 1, start))
        if found.last is None and (found.all_seen or item.begins):
            return self._mark(self._place, start)
        raise self._refused(
            "the link has no mark here, and records of the topic were deleted or compacted: it may have appended to it "
            "so long ago that brokers have forgotten how far",
            start,
            "if it never has, 'maxbrod replicate resume' lets it begin; else name another --link",
        )

    # The destination

    def _transact(self, transaction: Transaction, pieces: Iterator[Piece]) -> tuple[int, int | None]:
        """Send the batches of one transaction: their records, and where they end at the destination, if any."""
        batches = self._batches(pieces, transaction)
        first = next(batches, None)
        if first is None:
            return 0, None
        where, topic_id, patience_s = self._each.where, topic_id_of(self._item.topic_id), self._settings.patience_s
        count, target_end, name = 0, None, transaction.transactional_id
        add_partitions(self._client, transaction, [where], patience_s=patience_s)
        feed = Feed(where=where, topic_id=topic_id, first_offset=None, appends=chain([first], batches))
        for done in produce_all(self._client, [feed], transactional_id=name, patience_s=patience_s):
            count += done.count
            target_end = done.base_offset + done.count if done.base_offset >= 0 else target_end
        return count, target_end

    def _batches(self, pieces: Iterator[Piece], transaction: Transaction) -> Iterator[Batch]:
        """Yield the batches of one transaction. An unreadable archive ends it: what was read before is appended."""
        sent, began = 0, time.monotonic()
        try:
            for piece in pieces:
                self._piece = piece
                if piece.batches is not None:
                    sent += int(piece.batches.headers.size.sum())
                    if piece.leader_epoch >= 0:
                        self._place = replace(self._place, last=piece.next_offset - 1, leader_epoch=piece.leader_epoch)
                    yield from self._stamped(self._coalescer.add(piece.batches), transaction)
                if piece.whole and (sent >= _TRANSACTION_BYTES or time.monotonic() - began > _TRANSACTION_S):
                    break
            else:
                self._over = True
        except MaxbrodError as error:
            self._failure, self._over = error, True
        yield from self._stamped(self._coalescer.finish(), transaction)

    def _stamped(self, joined: Iterable[Batches], transaction: Transaction) -> Iterator[Batch]:
        for batches in joined:
            made = stamped(
                batches.data, batches.headers, transaction.identity, first_sequence=self._sequence, transactional=True
            )
            self._sequence = sequence_after(self._sequence, int(batches.headers["count"].sum(dtype=np.int64)))
            for batch, source_offset in zip(made, batches.source_offset.tolist(), strict=True):
                self._pace.wait(len(batch.data))
                yield Batch(batch.data, batch.count, source_offset)

    # Marks

    def _mark(self, place: AppendPlace, next_offset: int) -> LinkMark:
        each = self._each
        return LinkMark(
            source=each.mirror.source.name,
            topic_id=each.id.topic_id,
            next_offset=next_offset,
            version=self._settings.version,
            at_ms=now_ms(),
            state=State.IN_STEP if next_offset == each.extent.end else State.CATCHING_UP,
            origins=each.origins,
            append=place,
        )

    def _refused(self, message: str, offset: int, hint: str) -> MaxbrodError:
        return _refused(self._item, message, offset, hint)


def _judged(error: MaxbrodError) -> MaxbrodError:
    """Return a retryable error if another instance or a timeout has ended the transaction: nothing is committed."""
    if not is_over(error):
        return error
    return UnavailableError(
        f"the transaction has ended: another instance has taken over, or it was open for too long ({error.message})",
        operation=_OPERATION,
        object_name=error.object_name,
    )


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
        last, position = self._item.portion.end, mark.next_offset
        reached = position
        for stored in self._item.portion.slices:
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
                reached = min(int(headers.last_offset[-1]) + 1, last)
                if reached > position:
                    batches = self._replayed(data, headers, stored, position)
                    epoch = int(headers["leader_epoch"][-1]) if headers["magic"][-1] == NEWEST_MAGIC else -1
                    yield Piece(batches=batches, next_offset=reached, leader_epoch=epoch, whole=not self._open)
        # Archives end where no transaction is open, so a marker that is missing was lost. The last offsets of a portion
        # may have no record.
        whole = not self._open or last == self._item.partition.extent.end
        yield Piece(batches=None, next_offset=last, leader_epoch=-1, whole=whole)

    def _replayed(self, data: NDArray[np.uint8], headers: BatchHeaders, stored: Slice, position: int) -> Batches:
        item, each = self._item, self._item.partition
        source = each.mirror.source
        replayed = replay(
            data,
            headers,
            stored.aborted,
            cut=Cut(first_offset=position, end_offset=item.portion.end),
            exact=False,
            batch_bytes_max=item.batch_bytes_max,
            codec=Codec[stored.codec.upper()],
            position=position,
            provenance=Provenance(
                topic=source.name,
                partition=each.where.partition,
                cluster_id=each.origins[0],
                restore_id=self._link.restore_id(each.id.topic_id),
                origins=(origin(each.origins[0], source.name), *map(origin, each.origins[1:])),
                left_out=been_there(self._destination_id, each.where.topic),
            ),
            object_name=self._storage.name_of(stored.path),
        )
        for oversized in replayed.oversized:
            message = f"a batch of {oversized.bytes} bytes is too large for the destination"
            raise _refused(item, message, oversized.offset, "raise the max.message.bytes of both topics")
        return Batches(
            data=replayed.data, headers=replayed.headers, source_offset=replayed.source_offset, hole=replayed.hole
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
            raise _refused(
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


def _refused(item: AppendItem, message: str, offset: int, hint: str) -> RefusedError:
    return RefusedError(message, operation=_OPERATION, object_name=str(item.partition.where), offset=offset, hint=hint)
