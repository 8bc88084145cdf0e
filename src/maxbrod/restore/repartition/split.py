"""Distributes records among the partitions of a topic by the hash of their key, as Kafka's Java client does.

Owns the state of each target partition: how many of its records are in the log, whether the last of those are the right
ones, which shares of which source it has, and the batches to send. The number of a record in its partition is also its
sequence number, in every attempt, so a broker appends it once. An error in one partition stops only that one. No I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from maxbrod.batch.columns import number_array, number_column
from maxbrod.batch.hashes import partition_for
from maxbrod.batch.headers import BatchHeaders
from maxbrod.batch.rewrite import CONTENT_COLUMNS, encode_shared
from maxbrod.errors import RefusedError
from maxbrod.kafka.produce.appends import Batch, sequence_after, stamped
from maxbrod.model import Codec, TopicPartition
from maxbrod.restore.plan.mapping import RecordShare

if TYPE_CHECKING:
    from maxbrod.kafka.produce.producer_ids import ProducerIdentity
    from maxbrod.restore.repartition.task import SourceRecords

ROUND_BYTES: Final = 4 << 20
"""Records that are distributed at once: enough for large batches, unless they go to very many partitions."""
FOREIGN: Final = "the last batch in the log is not the one that this restore wrote"
_NO_MARKS: Final = np.zeros(0, np.int64)
_ELSEWHERE: Final = -1
"""The place of a partition that belongs to another task, or that failed."""


class SharedTarget:
    """One target partition. `present` records of this restore are in its log; the last of them are `tail`."""

    def __init__(self, where: TopicPartition, base: int, present: int = 0, tail: pa.RecordBatch | None = None) -> None:
        self.where = where
        self.base = base
        self.present = present
        self.passed = 0
        """The number of its records that have been read from the source."""
        self.reached = base + present
        """The end of what is known to be in the log."""
        self.failure: RefusedError | None = None
        """The reason why it was stopped."""
        self.batches: deque[Batch] = deque()
        self.shares: list[RecordShare] = []
        self._mark = 0
        self._passed_all = False
        self._sequence = sequence_after(0, present)
        self._tail = tail
        if tail is not None and tail.num_rows > present:
            raise self.refused("the last batch in the log began before this restore: somebody else has written to it")

    @property
    def next_offset(self) -> int:
        return self.base + self.passed

    @property
    def done(self) -> bool:
        """True if the log holds all records that belong to it."""
        return self._passed_all and self.reached == self.next_offset

    def written_shares(self) -> list[RecordShare]:
        """The shares that are in the log, without what was read and not acknowledged."""
        counts = [min(share.count, self.reached - share.base) for share in self.shares]
        return [replace(share, count=count) for share, count in zip(self.shares, counts, strict=True) if count > 0]

    def skip(self, records: pa.RecordBatch, rows: NDArray[np.int64]) -> int:
        """Return how many of the next records, these rows, are in the log already. The last in it are compared.

        The log end says how many records are there, not whose. The records of its last batch are compared with the
        ones that belong at these offsets; if they are equal, nobody else has written.
        """
        first = self.passed
        self.passed += len(rows)
        if self._tail is not None:
            begin = self.present - self._tail.num_rows
            low, high = max(first, begin), min(self.passed, self.present)
            if low < high:
                expected = records.select(CONTENT_COLUMNS).take(number_array(rows[low - first : high - first]))
                if not expected.equals(self._tail.slice(low - begin, high - low)):
                    raise self.refused(FOREIGN)
        return min(max(self.present - first, 0), len(rows))

    def add_share(self, partition: int, mark: int, first: int, end: int, count: int) -> None:
        """The next `count` records come from these offsets of a source. `mark`: the number of its marks up to them."""
        last = self.shares[-1] if self.shares else None
        base = self.base if last is None else last.base + last.count
        if last is not None and (last.partition, self._mark) == (partition, mark):
            self.shares[-1] = replace(last, end=end, count=last.count + count)
        else:
            self.shares.append(RecordShare(partition=partition, first=first, end=end, base=base, count=count))
        self._mark = mark

    def add(self, batches: Iterable[Batch]) -> None:
        """Queue batches. Each is copied, so that a slow partition keeps no batches of the others in memory."""
        self.batches += [replace(batch, data=batch.data.copy()) for batch in batches]

    def stamp(
        self, data: NDArray[np.uint8], headers: BatchHeaders, identity: ProducerIdentity, offsets: Iterable[int]
    ) -> list[Batch]:
        """Batches with the next sequence numbers of this producer; `offsets` are source offsets."""
        batches = stamped(data, headers, identity, first_sequence=self._sequence)
        self._sequence = sequence_after(self._sequence, int(headers["count"].sum(dtype=np.int64)))
        return [replace(batch, source_offset=offset) for batch, offset in zip(batches, offsets, strict=True)]

    def finish(self) -> None:
        """The source was read to its end."""
        self._passed_all = self.present <= self.passed
        if not self._passed_all:
            self.failure = self.refused("the log is longer than this restore makes it: somebody else has written to it")

    def refused(self, message: str) -> RefusedError:
        return RefusedError(
            message,
            operation="restore",
            object_name=str(self.where),
            offset=self.next_offset,
            hint="nothing more was written; restore under another name, or delete the topic and run this again",
        )


class _Round:
    """Records that are distributed together, and the target of each."""

    def __init__(self) -> None:
        self.partitions: list[int] = []
        self.targets: list[NDArray[np.int32]] = []
        self.bytes = 0
        self._records: list[pa.RecordBatch] = []
        self._weight = dict.fromkeys(Codec, 0)

    def add(self, source: SourceRecords, targets: NDArray[np.int32]) -> None:
        self.partitions.append(source.partition)
        self.targets.append(targets)
        self._records.append(source.records)
        self._weight[source.codec] += source.records.nbytes
        self.bytes += source.records.nbytes

    @property
    def codec(self) -> Codec:
        """The codec of most of the bytes."""
        return max(self._weight, key=lambda codec: self._weight[codec])

    def pop_records(self) -> pa.RecordBatch:
        """All records in one batch. The round no longer holds them, to save memory."""
        records, self._records = self._records, []
        return pa.concat_batches(records)


class Splitter:
    """Distributes records in the order of the plan to queues of batches in their targets, round by round."""

    def __init__(
        self,
        targets: Sequence[SharedTarget],
        partition_count: int,
        *,
        marks: Mapping[int, Sequence[int]],
        identity: ProducerIdentity,
        batch_bytes_max: int,
    ) -> None:
        self._targets = targets
        self._count = partition_count
        self._marks = {partition: np.asarray(offsets, np.int64) for partition, offsets in marks.items()}
        self._identity = identity
        self._batch_bytes_max = batch_bytes_max
        self._places = np.full(partition_count, _ELSEWHERE, np.int32)
        for place, target in enumerate(targets):
            self._places[target.where.partition] = place
        self._round = _Round()

    def add(self, source: SourceRecords) -> bool:
        """True if the round is full."""
        partition = source.partition % self._count
        chosen = self._places[partition_for(source.records.column("key"), self._count, null_partition=partition)]
        mine = chosen != _ELSEWHERE
        if not mine.all():
            source = replace(source, records=source.records.filter(number_array(mine)))
        self._round.add(source, chosen[mine])
        return self._round.bytes >= ROUND_BYTES

    def flush(self) -> int:
        """Distribute what was added. Returns the bytes of the new batches."""
        done, self._round = self._round, _Round()
        target = np.concatenate([np.zeros(0, np.int32), *done.targets])
        if not len(target):
            return 0
        records = done.pop_records()
        # Stable: records of one target keep their order.
        order = np.argsort(target, kind="stable")
        target = target[order]
        self._add_shares(done, number_column(records.column("offset")), order, target)
        order, target = self._lacking(records, order, target)
        if not len(order):
            return 0
        records = records.take(number_array(order))
        return self._send(records, target, done.codec)

    def _add_shares(
        self, done: _Round, offset: NDArray[np.int64], order: NDArray[np.int64], target: NDArray[np.int32]
    ) -> None:
        sizes = [len(targets) for targets in done.targets]
        marks = [
            np.searchsorted(self._marks.get(partition, _NO_MARKS), mine, side="right")
            for partition, mine in zip(done.partitions, np.split(offset, np.cumsum(sizes)[:-1]), strict=True)
        ]
        source = np.repeat(np.asarray(done.partitions, np.int64), sizes)[order]
        mark, offset = np.concatenate(marks)[order], offset[order]
        fresh = np.ones(len(order), np.bool_)
        fresh[1:] = (target[1:] != target[:-1]) | (source[1:] != source[:-1]) | (mark[1:] != mark[:-1])
        first = np.flatnonzero(fresh)
        end = np.append(first[1:], len(order))
        columns = (target[first], source[first], mark[first], offset[first], offset[end - 1] + 1, end - first)
        for place, *values in zip(*(column.tolist() for column in columns), strict=True):
            self._targets[place].add_share(*values)

    def _lacking(
        self, records: pa.RecordBatch, order: NDArray[np.int64], target: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The rows that the targets lack, and the target of each."""
        starts = np.append(0, np.flatnonzero(target[1:] != target[:-1]) + 1)
        keep = np.ones(len(order), np.bool_)
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
            mine = self._targets[target[start]]
            try:
                skipped = mine.skip(records, order[start:stop])
            except RefusedError as error:
                self._fail(mine, error)
                skipped = stop - start
            keep[start : start + skipped] = False
        return order[keep], target[keep]

    def _send(self, records: pa.RecordBatch, target: NDArray[np.int32], codec: Codec) -> int:
        shared = encode_shared(records, target, codec=codec, batch_bytes_max=self._batch_bytes_max)
        owner = target[shared.row]
        offset = number_column(records.column("offset"))[shared.row]
        size, waiting = shared.headers.size, 0
        for place in np.unique(owner).tolist():
            chosen = self._targets[place]
            mine = self._fitting(chosen, np.flatnonzero(owner == place), size, offset)
            if mine.size:
                chosen.add(chosen.stamp(shared.data, shared.headers.take(mine), self._identity, offset[mine].tolist()))
                waiting += int(size[mine].sum())
        return waiting

    def _fitting(
        self, target: SharedTarget, mine: NDArray[np.int64], size: NDArray[np.int64], offset: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The batches of a target before the first one that is too large for it."""
        large = np.flatnonzero(size[mine] > self._batch_bytes_max)
        if not large.size:
            return mine
        row = mine[large[0]]
        what = f"a batch of {int(size[row])} bytes at offset {int(offset[row])} is too large for the target"
        self._fail(target, target.refused(what))
        return mine[: large[0]]

    def _fail(self, target: SharedTarget, error: RefusedError) -> None:
        """Stop a target: its further records are dropped."""
        target.failure = error
        self._places[target.where.partition] = _ELSEWHERE
