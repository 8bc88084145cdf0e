"""Batches to be archived: contiguous in one buffer, with the facts that the catalog records of each.

Headers of messages of magic 0 and 1 contain little; the missing facts are read from the records inside.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.headers import NEWEST_MAGIC, BatchHeaders
from maxbrod.errors import CorruptDataError, UsageError
from maxbrod.layouts.kafka.format import Slice
from maxbrod.model import AbortedTransaction, Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from maxbrod.batch.timestamp_scan import TimestampScan

_CODECS: Final = max(Codec) + 1


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
            tail=0,
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
    refuse_unknown_codec(headers)
    if (headers.position[1:] != (headers.position + headers.size)[:-1]).any():
        raise UsageError("batches can be archived only if they are contiguous")
    facts = header_facts(headers, codec)
    _find_lowest(data, headers, facts, look, exact=exact)
    for row in np.flatnonzero(headers["count"] < 0).tolist():
        _look_inside(data, headers, row, facts)
    return DescribedBatches(data=data, headers=headers, facts=facts)


def refuse_unknown_codec(headers: BatchHeaders) -> None:
    unknown = np.flatnonzero(headers.codec > max(Codec))
    if unknown.size:
        headers.codec_at(int(unknown[0]))


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
        self._first_leader_epoch = -1
        self._last_leader_epoch = -1
        self.epochs: list[tuple[int, int]] = []
        """The starts of leader epochs: offset and epoch."""
        self._codec_bytes = np.zeros(_CODECS, np.int64)

    def add(self, batches: DescribedBatches) -> None:
        facts, headers = batches.facts, batches.headers
        if self.base_offset < 0:
            self.base_offset = int(facts.first_offset[0])
            self._first_leader_epoch = int(headers["leader_epoch"][0])
        self._add_epochs(facts.first_offset, headers["leader_epoch"])
        self.end_offset = int(facts.last_offset[-1]) + 1
        self._last_leader_epoch = int(headers["leader_epoch"][-1])
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

    def _add_epochs(self, offsets: NDArray[np.int64], epochs: NDArray[np.int32]) -> None:
        before = np.append(np.int64(self._last_leader_epoch), epochs[:-1])
        new = epochs != before
        new[0] |= not self.epochs
        if new.any():
            self.epochs += zip(offsets[new].tolist(), epochs[new].tolist(), strict=True)

    @property
    def max_timestamp(self) -> int | None:
        """None also if a batch says of itself that its first record is newer: then nobody knows."""
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
            first_leader_epoch=self._first_leader_epoch,
            last_leader_epoch=self._last_leader_epoch,
            aborted=aborted,
            digest=digest,
        )
