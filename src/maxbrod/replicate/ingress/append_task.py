"""One task of an ingress that appends: records and position of a partition in one transaction.

Each destination partition has a transactional id. Taking it fences whoever had it before and ends that one's
transaction, and only then is the position read. So records and position are always those of the last transaction that
was committed, whoever dies, sleeps or races, and whenever a request arrives.

A transaction ends where no transaction of the source is open: what was written together is read together. Every record
names its source in its headers, and those that have been in the destination topic before are left out.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.batch.coalescing import AUTO, Batches, Coalescer
from maxbrod.batch.cuts import Cut
from maxbrod.batch.headers import NEWEST_MAGIC
from maxbrod.batch.provenance import Provenance
from maxbrod.batch.replay import replay
from maxbrod.batch.transactions import transaction_events
from maxbrod.errors import MaxbrodError, ProducerFencedError, RefusedError, UnavailableError, UsageError
from maxbrod.kafka.produce.appends import Batch, Feed, sequence_after, stamped
from maxbrod.kafka.produce.producing import produce_all
from maxbrod.kafka.produce.transaction_timeouts import longest_timeout_ms
from maxbrod.kafka.produce.transactions import Transaction, add_partitions, begin, commit_offsets_in, end
from maxbrod.kafka.state.groups import read_settled_offsets
from maxbrod.kafka.wire.client import PATIENCE_S, KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.pacing import Pace
from maxbrod.layouts.kafka.slices import Slice  # noqa: TC001 - pydantic reads the types of fields
from maxbrod.layouts.reading import read_logs
from maxbrod.model import Codec, TopicPartition, now_ms, topic_id_of
from maxbrod.replicate.ingress.brought import look_for_brought
from maxbrod.replicate.link import AppendPlace, Link, Mark, State, been_there, origin, read_marks
from maxbrod.storage.opening import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.config import KafkaConfig, StorageConfig
    from maxbrod.storage.interface import Storage

_OPERATION: Final = "append"
_SEE: Final = "see 'maxbrod replicate status'"
TRANSACTION_TIMEOUT_MS: Final = 300_000
"""Brokers allow 15 minutes by default. A transaction is longer than the limits below if the source's own are."""
_TRANSACTION_BYTES: Final = 32 << 20
_TRANSACTION_S: Final = 20.0
_READ_BYTES: Final = 2 << 20
_READ_S: Final = 5.0
"""With a limited rate no more is read at once than is sent in this time: a transaction can only end in between."""
_PARTITIONS_AT_ONCE: Final = 8
# Other answers to a producer whose transaction has ended by a timeout.
_OVER: Final = (
    "INVALID_TXN_STATE",
    "INVALID_PRODUCER_ID_MAPPING",
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
    "UNKNOWN_PRODUCER_ID",
    "TRANSACTION_ABORTABLE",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendSettings:
    """What every task needs besides its items. Holds secrets."""

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
    """What to append to one partition: the source offsets from where the link has come to `end`."""

    where: TopicPartition
    topic_id: str
    """The id of the destination topic."""
    source_topic: str
    source_id: str
    origins: tuple[str, ...]
    """The ids of the clusters that the records come from, the nearest first."""
    start: int
    """Where a link begins that was never here."""
    position: int | None
    """Where the link was when this was planned; None: it has no mark."""
    begins: bool
    """Whether an operator says that the link was never here."""
    end: int
    archive_end: int
    batch_bytes_max: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The outcome of one item: the mark that the destination has now, and why it stopped if it did."""

    where: TopicPartition
    mark: Mark | None
    records: int = 0
    failure: dict[str, Any] | None = None


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
                return Appended(where=item.where, mark=None, failure=_judged(error).as_dict())
            finally:
                clients.put(client)

        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(one, items))


def take_position(
    client: KafkaClient, link: Link, where: TopicPartition, *, patience_s: float
) -> tuple[Transaction, Mark | None]:
    """Fence every other instance from this partition, then read how far the link has come."""
    name = link.transactional_id(where)
    try:
        transaction = begin(client, name, timeout_ms=TRANSACTION_TIMEOUT_MS)
    except UsageError as error:
        if "INVALID_TRANSACTION_TIMEOUT" not in error.message:
            raise
        transaction = begin(client, name, timeout_ms=longest_timeout_ms(client))
    committed = read_settled_offsets(client, link.group_id, [where], deadline=Deadline.after(patience_s))
    return transaction, read_marks(committed).get(where)


def put_mark(
    client: KafkaClient, link: Link, transaction: Transaction, where: TopicPartition, mark: Mark, *, patience_s: float
) -> None:
    """Commit a mark, with all that was appended in the transaction."""
    commit_offsets_in(client, transaction, link.group_id, [mark.committed(where)], patience_s=patience_s)
    end(client, transaction, commit=True, patience_s=patience_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Some batches as a broker accepts them, and what was read of the source with them."""

    batches: Batches | None
    next_offset: int
    leader_epoch: int
    """That of the last batch; -1: unknown."""
    whole: bool
    """Whether no transaction of the source is open behind it."""


class Appender:
    """Appends to one partition, transaction by transaction."""

    def __init__(
        self, client: KafkaClient, storage: Storage, item: AppendItem, settings: AppendSettings, pace: Pace
    ) -> None:
        self._client, self._storage, self._item, self._settings, self._pace = client, storage, item, settings, pace
        self._link = Link(name=settings.link)
        rate = settings.rate_bytes_per_s
        self._read_bytes = _READ_BYTES if rate is None else max(1 << 16, min(_READ_BYTES, int(rate * _READ_S)))
        self._coalescer = Coalescer(AUTO, batch_bytes_max=item.batch_bytes_max)
        self._sequence = 0
        self._open: set[int] = set()
        """The producers that have an open transaction at the source."""
        self._piece: _Piece | None = None
        """The last one that was read and is not committed."""
        self._place = AppendPlace(topic_id=item.topic_id, end=0, last=-1, leader_epoch=-1, begin=item.start)
        self._over = False
        """Whether the source was read to its end, or as far as it can be read."""
        self._failure: MaxbrodError | None = None

    def run(self) -> Appended:
        item, patience_s = self._item, self._settings.patience_s
        transaction, found = take_position(self._client, self._link, item.where, patience_s=patience_s)
        known = self._agreed(found)
        mark = self._begin() if known is None else known
        self._place = mark.append or self._place
        records, pieces = 0, self._pieces(mark)
        try:
            while not self._over:
                count, target_end = self._transact(transaction, pieces)
                if self._piece is None or not self._piece.whole:
                    break
                if self._piece.next_offset > mark.next_offset:
                    place = replace(self._place, end=self._place.end if target_end is None else target_end)
                    following = self._mark(place, self._piece.next_offset)
                    put_mark(self._client, self._link, transaction, item.where, following, patience_s=patience_s)
                    known = mark = following
                    records, self._place = records + count, place
                self._piece = None
        except MaxbrodError as error:
            self._failure = _judged(error)
        if self._piece is not None:
            with suppress(MaxbrodError):  # then it ends by its timeout, or when the next instance begins
                end(self._client, transaction, commit=False, patience_s=patience_s)
        failure = None if self._failure is None else self._failure.as_dict()
        return Appended(where=item.where, mark=known, records=records, failure=failure)

    # Where to begin

    def _agreed(self, mark: Mark | None) -> Mark | None:
        """The mark, if what was planned before it was known for certain still holds. None: the link begins."""
        item = self._item
        if mark is None or (mark.append is not None and mark.append.topic_id != item.topic_id):
            if item.position is not None:
                raise UnavailableError("the mark of the link is gone", object_name=str(item.where))
            return None
        if mark.state is State.PROMOTED:
            raise self._refused("the topic was promoted meanwhile", mark.next_offset, _SEE)
        if mark.topic_id != item.source_id:
            raise self._refused("it has records of another source topic", mark.next_offset, _SEE)
        if mark.append is None:
            raise self._refused("the link has mirrored it with exact offsets", mark.next_offset, "name another --link")
        if mark.next_offset < (item.position or 0):
            raise UnavailableError("the mark of the link went back", object_name=str(item.where))
        return mark

    def _begin(self) -> Mark:
        """Where to begin without a mark: the link was never here, or it was so long ago that brokers have forgotten it.

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

    # The source

    def _pieces(self, mark: Mark) -> Iterator[_Piece]:
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
                    yield _Piece(batches=batches, next_offset=reached, leader_epoch=epoch, whole=not self._open)
        # Archives end where no transaction is open, so a marker that is missing was lost. The last offsets of a portion
        # may have no record.
        whole = not self._open or item.end == item.archive_end
        yield _Piece(batches=None, next_offset=item.end, leader_epoch=-1, whole=whole)

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
                left_out=been_there(self._settings.destination_id, item.where.topic),
            ),
            object_name=self._storage.name_of(stored.path),
        )
        for oversized in replayed.oversized:
            message = f"a batch of {oversized.bytes} bytes is too large for the destination"
            raise self._refused(message, oversized.offset, "raise the max.message.bytes of both topics")
        return Batches(
            data=replayed.data,
            headers=replayed.headers,
            source_offset=replayed.source_offset,
            hole=replayed.hole,
        )

    def _compare(self, headers: BatchHeaders, mark: Mark) -> None:
        """Refuse a source whose log was truncated below what was appended, and written again."""
        place = mark.append
        if place is None or place.leader_epoch < 0:
            return
        row = int(np.searchsorted(headers["base_offset"], place.last, side="right")) - 1
        if row < 0 or int(headers.last_offset[row]) < place.last or headers["magic"][row] != NEWEST_MAGIC:
            return
        if (found := int(headers["leader_epoch"][row])) != place.leader_epoch:
            raise self._refused(
                f"the source's log was truncated: offset {place.last} was appended with leader epoch "
                f"{place.leader_epoch}, and has {found} now",
                place.last,
                "the destination keeps the records that the source has lost; name another --link to append all anew",
            )

    # The destination

    def _transact(self, transaction: Transaction, pieces: Iterator[_Piece]) -> tuple[int, int | None]:
        """Send the batches of one transaction: their records, and where they end at the destination, if any."""
        batches = self._batches(pieces, transaction)
        first = next(batches, None)
        if first is None:
            return 0, None
        item, count, target_end = self._item, 0, None
        add_partitions(self._client, transaction, [item.where])
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

    def _batches(self, pieces: Iterator[_Piece], transaction: Transaction) -> Iterator[Batch]:
        """Those of one transaction. An archive that cannot be read ends it: what was read before is appended."""
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

    def _mark(self, place: AppendPlace, next_offset: int) -> Mark:
        item = self._item
        return Mark(
            topic_id=item.source_id,
            next_offset=next_offset,
            version=self._settings.version,
            at_ms=now_ms(),
            state=State.IN_STEP if next_offset == item.archive_end else State.CATCHING_UP,
            origins=item.origins,
            append=place,
        )

    def _refused(self, message: str, offset: int, hint: str) -> RefusedError:
        name = str(self._item.where)
        return RefusedError(message, operation=_OPERATION, object_name=name, offset=offset, hint=hint)


def _may_differ(stored: Slice, mark: Mark) -> bool:
    """Whether the batch that the mark names may have another leader epoch now."""
    place = mark.append
    if place is None or place.leader_epoch < 0 or not stored.base_offset <= place.last < stored.end_offset:
        return False
    return not stored.first_leader_epoch == stored.last_leader_epoch == place.leader_epoch


def _judged(error: MaxbrodError) -> MaxbrodError:
    """What another instance has ended, or a timeout, may be tried again: nothing of it is committed."""
    if not isinstance(error, ProducerFencedError) and not any(code in error.message for code in _OVER):
        return error
    return UnavailableError(
        f"the transaction has ended: another instance has taken over, or it was open for too long ({error.message})",
        operation=_OPERATION,
        object_name=error.object_name,
    )
