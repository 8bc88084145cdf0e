"""One task of an ingress that appends: records and position of a partition in one transaction.

The position is taken before it is read. So records and position are always those of the last transaction that was
committed, whoever dies, sleeps or races, and whenever a request arrives.

A transaction ends where no transaction of the source is open: what was written together is read together.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import chain
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.coalesce import AUTO, Batches, Coalescer
from maxbrod.errors import MaxbrodError, UnavailableError
from maxbrod.kafka.produce.appends import Batch, Feed, sequence_after, stamped
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.transactions import Transaction, add_partitions, end
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Pace
from maxbrod.model import now_ms, topic_id_of
from maxbrod.replicate.ingress.append_source import (
    OPERATION,
    Appended,
    AppendItem,
    AppendSettings,
    AppendSource,
    Piece,
    refused,
)
from maxbrod.replicate.ingress.positions import is_over, look_for_brought, put_mark, take_position
from maxbrod.replicate.link import AppendPlace, Link, LinkMark, State
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maxbrod.storage.interface import Storage

_SEE: Final = "see 'maxbrod replicate status'"
_TRANSACTION_BYTES: Final = 32 << 20
_TRANSACTION_S: Final = 20.0
_PARTITIONS_AT_ONCE: Final = 8


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
                return Appended(source_topic=item.source_topic, where=item.where, mark=None, failure=_judged(error))
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
        self._link, self._source = Link(name=settings.link), AppendSource(storage, item, settings)
        self._coalescer = Coalescer(AUTO, batch_bytes_max=item.batch_bytes_max)
        self._sequence = 0
        self._piece: Piece | None = None
        """The last one that was read and is not committed."""
        self._place = AppendPlace(topic_id=item.topic_id, end=0, last=-1, leader_epoch=-1, begin=item.start)
        self._over = False
        """True if the source was read to its end, or as far as it can be read."""
        self._failure: MaxbrodError | None = None

    def run(self) -> Appended:
        item, patience_s = self._item, self._settings.patience_s
        position = take_position(self._client, self._link, item.key, joined=item.joined, patience_s=patience_s)
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
        return Appended(
            source_topic=item.source_topic, where=item.where, mark=known, records=records, failure=self._failure
        )

    # Where to begin

    def _agreed(self, mark: LinkMark | None) -> LinkMark | None:
        """The mark, if what was planned before it was known for certain still holds. None: the link begins."""
        item = self._item
        if mark is None or (mark.append is not None and mark.append.topic_id != item.topic_id):
            if item.position is not None:
                raise UnavailableError("the mark of the link is gone", object_name=str(item.where))
            return None
        if mark.state is State.PROMOTED:
            raise self._refused("the topic was promoted meanwhile", mark.next_offset, _SEE)
        if mark.topic_id != item.source_id:
            raise self._refused("the source topic was deleted and created again", mark.next_offset, _SEE)
        if mark.append is None:
            raise self._refused("the link has mirrored it with exact offsets", mark.next_offset, "name another --link")
        if mark.next_offset < (item.position or 0):
            raise UnavailableError("the mark of the link went back", object_name=str(item.where))
        return mark

    def _begin(self) -> LinkMark:
        """Begin without a mark: the link was never here, or it was so long ago that brokers have forgotten it.

        Records that the link has appended name it, so the log tells, unless some of them may have been deleted.
        """
        item = self._item
        found = look_for_brought(
            self._client,
            item.where,
            topic_id_of(item.topic_id),
            self._link.restore_id(item.source_id),
            patience_s=self._settings.patience_s,
        )
        if found.first is not None and found.last is not None and not found.compacted:
            return self._mark(replace(self._place, begin=found.first), max(found.last + 1, item.start))
        if found.last is None and (found.all_seen or item.begins):
            return self._mark(self._place, item.start)
        raise self._refused(
            "the link has no mark here, and records of the topic were deleted or compacted: it may have appended to it "
            "so long ago that brokers have forgotten how far",
            item.start,
            "if it never has, 'maxbrod replicate resume' lets it begin; else name another --link",
        )

    # The destination

    def _transact(self, transaction: Transaction, pieces: Iterator[Piece]) -> tuple[int, int | None]:
        """Send the batches of one transaction: their records, and where they end at the destination, if any."""
        batches = self._batches(pieces, transaction)
        first = next(batches, None)
        if first is None:
            return 0, None
        item, count, target_end = self._item, 0, None
        add_partitions(self._client, transaction, [item.where], patience_s=self._settings.patience_s)
        feed = Feed(
            where=item.where,
            topic_id=topic_id_of(item.topic_id),
            first_offset=None,
            appends=chain([first], batches),
        )
        for done in produce_all(
            self._client,
            [feed],
            transactional_id=transaction.transactional_id,
            patience_s=self._settings.patience_s,
        ):
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
        item = self._item
        return LinkMark(
            source=item.source_topic,
            topic_id=item.source_id,
            next_offset=next_offset,
            version=self._settings.version,
            at_ms=now_ms(),
            state=State.IN_STEP if next_offset == item.archive_end else State.CATCHING_UP,
            origins=item.origins,
            append=place,
        )

    def _refused(self, message: str, offset: int, hint: str) -> MaxbrodError:
        return refused(self._item, message, offset, hint)


def _judged(error: MaxbrodError) -> MaxbrodError:
    """Return a retryable error if another instance or a timeout has ended the transaction: nothing is committed."""
    if not is_over(error):
        return error
    return UnavailableError(
        f"the transaction has ended: another instance has taken over, or it was open for too long ({error.message})",
        operation=OPERATION,
        object_name=error.object_name,
    )
