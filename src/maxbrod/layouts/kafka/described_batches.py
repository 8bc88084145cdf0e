"""Batches to be archived: contiguous in one buffer, with the facts that the catalog records of each.

Headers of messages of magic 0 and 1 contain little; the missing facts are read from the records inside.

A `TimestampScan` finds the lowest timestamps without compiled code, within a small budget: loading numba takes longer
than a small backup. All batches advance together, one record at each step, by a few numpy operations over all of them.
That is fast for many batches of few records.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from maxbrod.batch.compression import Arena, append, compressed_rows
from maxbrod.batch.headers import HEADER_BYTES, NEWEST_MAGIC, BatchHeaders
from maxbrod.errors import CorruptDataError, MaxbrodError, UsageError
from maxbrod.layouts.kafka.format import Slice
from maxbrod.model import INT64_MAX, AbortedTransaction, Codec

_CODECS: Final = max(Codec) + 1
LOOKED_INTO_BYTES: Final = 16 << 20
"""The limit for a task, in archived bytes. Small runs make archives of many segments; large runs exceed it."""
STEPS: Final = 2048
"""Each takes about 40 microseconds."""
UNPACKED_BYTES: Final = 64 << 20
_WORD_BYTES: Final = 8
_PADDING: Final = bytes(4 * _WORD_BYTES)
_RECORD_BYTES_MIN: Final = 6
_STOPS: Final = np.uint64(0x8080808080808080)
# Groups of 7 bits in bytes become groups of 14, 28 and 56: what to keep, what to move, and how far.
_FOLDS: Final = tuple(
    (np.uint64(keep), np.uint64(move), np.uint64(bits))
    for keep, move, bits in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
_ONE: Final = np.uint64(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """The facts as columns, one row per batch."""

    first_offset: NDArray[np.int64]
    last_offset: NDArray[np.int64]
    records: NDArray[np.int64]
    lowest: NDArray[np.int64]
    """The lowest timestamp of its records if `dated`; unless `exact`, that of the first record."""
    exact: NDArray[np.bool_]
    highest: NDArray[np.int64]
    dated: NDArray[np.bool_]
    """True if it has a record with a timestamp."""
    codec: NDArray[np.int16]
    """The codec of its records at the source."""

    def take(self, rows: slice) -> BatchFacts:
        return BatchFacts(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def record_lowest(self, rows: NDArray[np.int64], lowest: NDArray[np.int64], sound: NDArray[np.bool_]) -> None:
        self.lowest[rows] = np.where(sound, lowest, self.lowest[rows])
        self.exact[rows] = sound


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedBatches:
    data: NDArray[np.uint8]
    headers: BatchHeaders
    facts: BatchFacts
    owned: bool = False
    """True if the buffer belongs to this value, not to the caller."""

    def __len__(self) -> int:
        return len(self.headers)

    @property
    def log(self) -> NDArray[np.uint8]:
        """The batches' bytes, not copied."""
        position, size = self.headers.position, self.headers.size
        return self.data[int(position[0]) : int(position[-1] + size[-1])]

    def take(self, rows: slice) -> DescribedBatches:
        return DescribedBatches(
            data=self.data, headers=self.headers.take(rows), facts=self.facts.take(rows), owned=self.owned
        )

    def copied(self) -> DescribedBatches:
        """A copy in a buffer of its own, which may outlive the caller's buffer."""
        if self.owned:
            return self
        headers = self.headers
        moved = BatchHeaders(
            position=headers.position - int(headers.position[0]),
            size=headers.size,
            fields=headers.fields,
            end=len(self.log),
        )
        return DescribedBatches(data=self.log.copy(), headers=moved, facts=self.facts, owned=True)


def describe(
    data: NDArray[np.uint8],
    headers: BatchHeaders,
    *,
    exact: bool,
    codec: NDArray[np.int16] | None = None,
    look: TimestampScan | None = None,
) -> DescribedBatches:
    """The batches with their facts. `exact` reads every record for the lowest timestamp; `look` reads while its time
    lasts.

    Otherwise the first record's timestamp is used, unless the header contains the lowest.
    """
    headers.refuse_unknown_codecs()
    if (headers.position[1:] != (headers.position + headers.size)[:-1]).any():
        raise UsageError("batches can be archived only if they are contiguous")
    facts = header_facts(headers, codec)
    _find_lowest(data, headers, facts, look, exact=exact)
    for row in np.flatnonzero(headers["count"] < 0).tolist():
        _look_inside(data, headers, row, facts)
    return DescribedBatches(data=data, headers=headers, facts=facts)


def header_facts(headers: BatchHeaders, codec: NDArray[np.int16] | None = None) -> BatchFacts:
    """The facts in the headers alone. The lowest timestamp is that of the first record, unless it is known."""
    # With a single record the highest timestamp is also the lowest; brokers keep the highest correct.
    exact = headers.log_append | (headers["count"] == 1)
    return BatchFacts(
        first_offset=headers["base_offset"].astype(np.int64),
        last_offset=headers.last_offset,
        records=headers["count"].astype(np.int64),
        lowest=np.where(exact, headers["max_timestamp"], headers["base_timestamp"]),
        exact=exact,
        highest=headers["max_timestamp"].astype(np.int64),
        # Magic 0 has no timestamps.
        dated=(headers["count"] > 0) & (headers["magic"] > 0),
        codec=headers.codec if codec is None else codec,
    )


def _find_lowest(
    data: NDArray[np.uint8], headers: BatchHeaders, facts: BatchFacts, look: TimestampScan | None, *, exact: bool
) -> None:
    unsure = (headers["magic"] == NEWEST_MAGIC) & facts.dated & ~headers.log_append
    if not exact:
        unsure &= ~facts.exact
        rows = np.flatnonzero(unsure & ~headers.delete_horizon)
        if look is not None and rows.size:
            facts.record_lowest(rows, *look.lowest_timestamps(data, headers.take(rows)))
        # Compaction may store a delete horizon instead of the first timestamp: then only the records contain it.
        unsure &= headers.delete_horizon
    rows = np.flatnonzero(unsure)
    if not rows.size:
        return
    from maxbrod.batch.decode import lowest_timestamps  # noqa: PLC0415 - compiled: loading it costs seconds

    lowest, sound = lowest_timestamps(data, headers.take(rows))
    facts.lowest[rows] = np.minimum(facts.lowest[rows], facts.highest[rows])
    facts.record_lowest(rows, lowest, sound)


def _look_inside(data: NDArray[np.uint8], headers: BatchHeaders, row: int, facts: BatchFacts) -> None:
    """The facts of a compressed message of magic 0 or 1. One that cannot be decompressed counts as empty."""
    from maxbrod.batch.decode import decode  # noqa: PLC0415 - compiled: loading it costs seconds

    columns = ["offset", "timestamp_ms", "timestamp_type"]
    try:
        inside = decode(data, headers.take(slice(row, row + 1)), columns=columns)
    except CorruptDataError:
        facts.records[row], facts.dated[row] = 0, False
        return
    offset, timestamp, kind = (np.array(inside.column(name).to_pylist(), np.int64) for name in columns)
    facts.records[row] = len(offset)
    facts.dated[row] = len(offset) > 0 and bool((kind >= 0).any())
    if len(offset):
        facts.first_offset[row], facts.last_offset[row] = offset[0], max(int(offset[-1]), int(facts.last_offset[row]))
        facts.lowest[row], facts.highest[row] = timestamp.min(), timestamp.max()
        facts.exact[row] = True


class SliceTally:
    """The sums that the catalog records of a slice, batch by batch."""

    def __init__(self) -> None:
        self.base_offset = -1
        self.end_offset = -1
        self.raw_bytes = 0
        self.records = 0
        self.control_records = 0
        self.min_timestamp: int | None = None
        self._highest: int | None = None
        self._misstated = False
        self._exact = True
        self.epochs: list[tuple[int, int]] = []
        """The starts of leader epochs: offset and epoch."""
        self._codec_bytes = np.zeros(_CODECS, np.int64)

    def add(self, batches: DescribedBatches) -> None:
        facts, headers = batches.facts, batches.headers
        if self.base_offset < 0:
            self.base_offset = int(facts.first_offset[0])
        epochs = headers["leader_epoch"]
        new = np.append(not self.epochs or int(epochs[0]) != self.epochs[-1][1], epochs[1:] != epochs[:-1])
        self.epochs += zip(facts.first_offset[new].tolist(), epochs[new].tolist(), strict=True)
        self.end_offset = int(facts.last_offset[-1]) + 1
        self.raw_bytes += int(headers.size.sum())
        self.records += int(facts.records.sum())
        self.control_records += int(facts.records[headers.control].sum())
        np.add.at(self._codec_bytes, facts.codec, headers.size)
        # A record without a timestamp, as in magic 0, counts as older than any other.
        self._exact = self._exact and bool(((facts.exact & facts.dated) | (facts.records == 0)).all())
        if facts.dated.any():
            lowest, highest = int(facts.lowest[facts.dated].min()), int(facts.highest[facts.dated].max())
            self.min_timestamp = lowest if self.min_timestamp is None else min(self.min_timestamp, lowest)
            self._highest = highest if self._highest is None else max(self._highest, highest)
            self._misstated |= bool((facts.dated & headers.misstates_highest).any())

    @property
    def max_timestamp(self) -> int | None:
        """None also if a batch says of itself that its first record is newer: then it is unknown."""
        return None if self._misstated else self._highest

    @property
    def codec(self) -> str:
        return Codec(int(self._codec_bytes.argmax())).name.lower()

    def as_slice(
        self, *, path: str, position: int, size: int, aborted: tuple[AbortedTransaction, ...], digest: str
    ) -> Slice:
        return Slice(
            path=path,
            position=position,
            bytes=size,
            raw_bytes=self.raw_bytes,
            codec=self.codec,
            base_offset=self.base_offset,
            end_offset=self.end_offset,
            records=self.records,
            control_records=self.control_records,
            min_timestamp=self.min_timestamp,
            max_timestamp=self.max_timestamp,
            min_timestamp_exact=self._exact and self.min_timestamp is not None,
            first_leader_epoch=self.epochs[0][1] if self.epochs else -1,
            last_leader_epoch=self.epochs[-1][1] if self.epochs else -1,
            aborted=aborted,
            digest=digest,
        )


def look_into(bytes_expected: int) -> TimestampScan | None:
    """A `TimestampScan` for a task that writes about `bytes_expected`; None if that is too much."""
    return TimestampScan() if bytes_expected <= LOOKED_INTO_BYTES else None


class TimestampScan:
    """The remaining budget of one task, and the scan within it."""

    def __init__(self, *, steps: int = STEPS, unpacked_bytes: int = UNPACKED_BYTES) -> None:
        self._steps = steps
        self._room = unpacked_bytes

    def lowest_timestamps(
        self, data: NDArray[np.uint8], headers: BatchHeaders
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The lowest timestamp of each batch of magic 2, and whether it was computed and the batch is sound."""
        lowest, sound = np.zeros(len(headers), np.int64), np.zeros(len(headers), np.bool_)
        steps = int(headers["count"].max(initial=0))
        # All or nothing: a segment's lowest time is unknown if that of one batch is.
        if steps > self._steps or int(headers.size.sum()) > self._room:
            self._steps = 0
            return lowest, sound
        self._steps -= steps
        unpacked = self._unpack(data, headers)
        if unpacked is not None:
            lowest, sound = _walk(*unpacked, headers["base_timestamp"], headers["count"])
        return lowest, sound

    def _unpack(
        self, data: NDArray[np.uint8], headers: BatchHeaders
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]] | None:
        """All records in one buffer, and where those of each batch begin and end. None if they exceed the budget."""
        blocks = dict(compressed_rows(data, headers, bytes_max=max(self._room, 1)))
        arena = Arena(4 * int(headers.size.sum()) + len(_PADDING))
        ends = np.zeros(len(headers) + 1, np.int64)
        for row, (at, size) in enumerate(zip(headers.position.tolist(), headers.size.tolist(), strict=True)):
            block = blocks.get(row)
            try:
                if block is None or not arena.append_block(block):
                    append(arena, headers, row, data[at + HEADER_BYTES : at + size], max(self._room - arena.size, 0))
            except MaxbrodError:
                # Too large or damaged: readers of the records report it.
                self._room = 0
                return None
            ends[row + 1] = arena.size
        self._room -= arena.size
        arena.append(Codec.NONE, np.frombuffer(_PADDING, np.uint8))
        return arena.data[: arena.size], ends[:-1], ends[1:]


def _walk(
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    base: NDArray[np.int64],
    count: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Advance every batch by one record at each step. A batch whose lengths do not add up is not sound and stops."""
    words: NDArray[np.uint64] = np.ndarray((data.size - _WORD_BYTES + 1,), "<u8", data, strides=(1,))
    order = np.argsort(-count, kind="stable")
    at, end, base, count = start[order], end[order], base[order], count[order]
    lowest, sound = np.full(len(order), INT64_MAX), count > 0
    # The batches with more records than steps taken; they are sorted to the front.
    live = np.searchsorted(-count, -np.arange(int(count[0]) if len(count) else 0), side="left")
    for rows in map(slice, live.tolist()):
        length, size = _varints(words[at[rows]])
        inside = at[rows] + size
        fits = (length >= _RECORD_BYTES_MIN) & (length <= end[rows] - inside)
        # After a byte of attributes.
        delta, size = _varints(words[np.where(fits, inside + 1, 0)])
        fits &= size < length
        sound[rows] &= fits
        lowest[rows] = np.minimum(lowest[rows], base[rows] + delta)
        at[rows] = np.where(sound[rows], inside + length, 0)
    sound &= at == end
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return lowest[back], sound[back]


def _varints(word: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The zig-zag numbers at the start of these words, and their sizes. Over 8 bytes, the size exceeds any record."""
    stop = ~word & _STOPS
    below = (stop & (~stop + _ONE)) - _ONE
    raw = word & below & ~_STOPS
    for keep, move, bits in _FOLDS:
        raw = (raw & keep) | ((raw & move) >> bits)
    value = (raw >> _ONE).view(np.int64) ^ -(raw & _ONE).view(np.int64)
    size = np.where(stop == 0, INT64_MAX >> 1, (np.bitwise_count(below).astype(np.int64) + 1) >> 3)
    return value, size
