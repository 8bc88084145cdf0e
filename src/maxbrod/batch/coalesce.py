"""Joins neighbouring small batches of a partition: the same records, offsets and timestamps in fewer batches.

Brokers and clients pay for each batch, and batches of 16 KiB are the normal case in production. Records in batches of a
megabyte are appended about twice as fast.

Which batches are joined follows from the batches alone, beginning with any group: it does not depend on the buffers in
which they arrive. A restore that resumes where a batch ended therefore sends the batches that the attempt before it
would have sent, and the broker recognizes those that arrive late.

Uncompressed records are copied once, with new deltas. Compressed ones are decompressed and compressed again with their
codec. The compiled loop is loaded with the first group that has several batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.compression import Arena, compress, decompress, unpack
from maxbrod.batch.headers import HEADER_BYTES, BatchHeaders, header_rows, headers_at
from maxbrod.batch.patch import seal
from maxbrod.errors import CorruptDataError
from maxbrod.model import Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GROWTH_BYTES: Final = 17
"""By so much a record can grow: its length, timestamp delta and offset delta are 1 to 5, 10 and 5 bytes."""
_FILL: Final = 0.7
"""The part of the largest batch that is used, by the size before: records of a few bytes grow by a third."""
_RECORDS_MAX: Final = 1 << 24
"""In one batch. Far below the limit of 2**31 - 1, far above what a megabyte holds in practice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRule:
    """The batches that are joined, and the size of a joined batch. Sizes are those of batches as they are stored."""

    target_bytes: int
    """A group ends before the batch that would make it larger."""
    small_bytes: Mapping[Codec, int]
    """Batches of this size or more stay as they are."""


AUTO: Final = JoinRule(
    target_bytes=1 << 20,
    small_bytes={Codec.NONE: 256 << 10, Codec.LZ4: 64 << 10, Codec.SNAPPY: 64 << 10, Codec.ZSTD: 32 << 10},
)
"""The fastest to restore. Compressing gzip again costs more than brokers save."""
JOIN: Final = JoinRule(target_bytes=1 << 20, small_bytes=dict.fromkeys(Codec, 1 << 20))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Batches of one buffer in the order of their source: without holes inside, with as many offsets as records.

    `hole` is the number of offsets without a record before each batch, `source_offset` the source's offset of its first
    record.
    """

    data: NDArray[np.uint8]
    headers: BatchHeaders
    source_offset: NDArray[np.int64]
    hole: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.headers)

    def take(self, rows: slice) -> Batches:
        return Batches(
            data=self.data,
            headers=self.headers.take(rows),
            source_offset=self.source_offset[rows],
            hole=self.hole[rows],
        )

    def copy(self) -> Batches:
        """The same in a new buffer, which the caller may patch."""
        return _side_by_side(self, self.take(slice(0)), _bytes_of(self).copy())


def same_records(tail: NDArray[np.uint8], codec: Codec, batches: Batches) -> bool:
    """True if the records of a batch, the bytes after its header, are those of `batches`, however they were joined."""
    made = batches if len(batches) == 1 else join_groups(batches, np.array([0, len(batches)]), batch_bytes_max=1 << 31)
    if len(made) != 1 or made.headers.codec_at(0) != codec:
        return False
    start = int(made.headers.position[0]) + HEADER_BYTES
    records = made.data[start : start + int(made.headers.size[0]) - HEADER_BYTES]
    if np.array_equal(tail, records):
        return True
    # Another release may compress the same records to other bytes.
    return codec != Codec.NONE and np.array_equal(decompress(codec, tail), decompress(codec, records))


def concatenate(first: Batches, second: Batches) -> Batches:
    """Both in one new buffer."""
    return _side_by_side(first, second, np.concatenate([_bytes_of(first), _bytes_of(second)]))


def _side_by_side(first: Batches, second: Batches, data: NDArray[np.uint8]) -> Batches:
    headers = [first.headers, second.headers]
    size = np.concatenate([header.size for header in headers])
    return Batches(
        data=data,
        headers=BatchHeaders(
            position=np.cumsum(size) - size,
            size=size,
            fields={name: np.concatenate([header[name] for header in headers]) for name in headers[0].fields},
            end=data.size,
        ),
        source_offset=np.concatenate([first.source_offset, second.source_offset]),
        hole=np.concatenate([first.hole, second.hole]),
    )


class Coalescer:
    """Joins the batches of one partition as they arrive. The last group stays open until the next batch is known."""

    def __init__(self, rule: JoinRule, *, batch_bytes_max: int) -> None:
        self._rule = rule
        self._batch_bytes_max = batch_bytes_max
        self._target_bytes = min(rule.target_bytes, int(batch_bytes_max * _FILL))
        self._open: Batches | None = None

    def add(self, batches: Batches) -> list[Batches]:
        """Everything that can be sent now. Its buffers belong to the receiver, those of `batches` to the coalescer."""
        done = []
        if self._open is not None and len(batches):
            rest = self._rows_of_open(self._open, batches)
            self._open = concatenate(self._open, batches.take(slice(rest)))
            if rest == len(batches):
                return []
            done.append(self._joined(self._open, np.array([0, len(self._open)])))
            self._open, batches = None, batches.take(slice(rest, None))
        if len(batches):
            edges = find_groups(batches, self._rule, self._target_bytes)
            last = int(edges[-2])
            self._open = batches.take(slice(last, None))
            done.append(self._joined(batches.take(slice(last)), edges[:-1]))
        return [group for group in done if len(group)]

    def finish(self) -> list[Batches]:
        """The last group. The next batch begins a new one."""
        rest, self._open = self._open, None
        return [] if rest is None else [self._joined(rest, np.array([0, len(rest)]))]

    def _rows_of_open(self, opened: Batches, batches: Batches) -> int:
        """The number of the next batches that belong to the open group."""
        # Only the headers are looked at, and only as many as may fit.
        room = self._target_bytes - int(opened.headers.size.sum())
        some = int(np.searchsorted(np.cumsum(batches.headers.size), room, side="right")) + 1
        both = _side_by_side(opened, batches.take(slice(some)), np.empty(0, np.uint8))
        first = int(find_groups(both, self._rule, self._target_bytes)[1])
        return first - len(opened)

    def _joined(self, batches: Batches, edges: NDArray[np.int64]) -> Batches:
        return join_groups(batches, edges, batch_bytes_max=self._batch_bytes_max)


def find_groups(batches: Batches, rule: JoinRule, target_bytes: int) -> NDArray[np.int64]:
    """The rows at which groups begin, and the number of rows: groups are taken greedily from the first batch on."""
    headers = batches.headers
    size, codec, records = headers.size, headers.codec, headers["count"].astype(np.int64)
    limits = np.zeros(max(Codec) + 1, np.int64)
    for kind, small_bytes in rule.small_bytes.items():
        limits[kind] = small_bytes
    small = size < limits[codec]
    # A batch begins a group by itself if it cannot continue the one before it, whatever the sizes.
    apart = np.ones(len(headers), np.bool_)
    apart[1:] = (batches.hole[1:] > 0) | (codec[1:] != codec[:-1]) | ~small[1:] | ~small[:-1]
    runs = np.append(np.flatnonzero(apart), len(headers))
    total = np.append(0, np.cumsum(size))
    counted = np.append(0, np.cumsum(records))
    edges = [0]
    for end in runs[1:].tolist():
        while edges[-1] < end:
            start = edges[-1]
            by_size = int(np.searchsorted(total, total[start] + target_bytes, side="right")) - 1
            by_count = int(np.searchsorted(counted, counted[start] + _RECORDS_MAX, side="right")) - 1
            edges.append(max(start + 1, min(end, by_size, by_count)))
    return np.array(edges, np.int64)


def join_groups(batches: Batches, edges: NDArray[np.int64], *, batch_bytes_max: int) -> Batches:
    """One batch for each group, in a new buffer. A group that cannot be joined stays as it is.

    That is a group whose records are not what its headers say (the broker refuses it and names the record), or one that
    would be larger than `batch_bytes_max`.
    """
    headers = batches.headers
    # Compressed again, records may need more room than before: a source may have used a higher level.
    growth = np.where(headers.codec == Codec.NONE, _GROWTH_BYTES * headers["count"].astype(np.int64), headers.size)
    data = np.empty(int(headers.size.sum() + growth.sum()), np.uint8)
    kept, position, at = list[int](), list[int](), 0
    for first, end in pairwise(edges.tolist()):
        group = headers.take(slice(first, end))
        room = data[at : at + int(group.size.sum() + growth[first:end].sum())]
        joined = _join(batches.data, group, room, batch_bytes_max) if end - first > 1 else 0
        for row in range(first, first + 1 if joined else end):
            start, size = int(headers.position[row]), joined or int(headers.size[row])
            if not joined:
                data[at : at + size] = batches.data[start : start + size]
            kept.append(row)
            position.append(at)
            at += size
    rows = np.array(kept, np.int64)
    places = np.array(position, np.int64)
    return Batches(
        data=data[:at],
        headers=headers_at(data[:at], places, at),
        source_offset=batches.source_offset[rows],
        hole=batches.hole[rows],
    )


def _join(data: NDArray[np.uint8], headers: BatchHeaders, out: NDArray[np.uint8], batch_bytes_max: int) -> int:
    """Write the batch with the records of all into `out` and return its size; 0 if that cannot be done."""
    from maxbrod.batch.kernels import OK, join_records, sealed  # noqa: PLC0415 - compiled: large batches need none

    codec = headers.codec_at(0)
    arena = Arena(8 * int(headers.size.sum()) if codec != Codec.NONE else 0)
    try:
        unpacked = unpack(data, headers, arena)
    except CorruptDataError:
        return 0
    if len(unpacked) < len(headers):  # more than fits into memory at once
        return 0
    count = headers["count"].astype(np.int64)
    total = int(count.sum())
    records = int((unpacked.end - unpacked.start).sum()) + _GROWTH_BYTES * total
    plain = out if codec == Codec.NONE else np.empty(HEADER_BYTES + records, np.uint8)
    base_timestamp = headers["base_timestamp"]
    with np.errstate(over="ignore"):  # readers add base and delta modulo 2**64 as well
        time_shift = base_timestamp - base_timestamp[0]
    source = sealed(data if codec == Codec.NONE else arena.data)
    shift = np.cumsum(count) - count
    status, end, _ = join_records(source, unpacked.start, unpacked.end, count, shift, time_shift, plain, HEADER_BYTES)
    if status != OK:
        return 0
    if codec != Codec.NONE:
        body = np.frombuffer(compress(codec, plain[HEADER_BYTES:end]), np.uint8)
        end = HEADER_BYTES + body.size
        if end <= out.size:
            out[HEADER_BYTES:end] = body
    if end > min(out.size, batch_bytes_max):
        return 0
    row = header_rows({name: column[:1] for name, column in headers.fields.items()})
    row["max_timestamp"] = headers["max_timestamp"].max()
    row["count"], row["last_offset_delta"] = total, total - 1
    seal(out[:end], np.array([0, end]), row)
    return int(end)


def _bytes_of(batches: Batches) -> NDArray[np.uint8]:
    """The bytes of these batches alone; not copied if they stand side by side."""
    start, end = batches.headers.position, batches.headers.position + batches.headers.size
    if not start.size or (start[1:] == end[:-1]).all():
        return batches.data[start[0] : end[-1]] if start.size else batches.data[:0]
    return np.concatenate([batches.data[first:last] for first, last in zip(start.tolist(), end.tolist(), strict=True)])
