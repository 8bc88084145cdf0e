"""Decides which batches of a range are committed, aborted, or still open.

The records of a transaction are whole batches of one producer, followed by a control batch of the same producer. So
the decision is per batch. The aborted list comes from a fetch response (which has only the first offset of each
aborted transaction), from an archive row, or from the markers themselves.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.batch.compression import Arena, append
from maxbrod.batch.headers import HEADER_BYTES, NEWEST_MAGIC, BatchHeaders, as_bytes_array
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.model import AbortedTransaction, Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

MARKER_ABORT: Final = 0
MARKER_COMMIT: Final = 1
_NO_MARKER: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Transactions:
    """The transactions that were aborted in a range, and those without a marker in it."""

    aborted: tuple[AbortedTransaction, ...]
    undecided: tuple[tuple[int, int], ...]
    """Producer id and first offset in the range of transactions without a marker in it."""


def committed_batches(headers: BatchHeaders, aborted: Iterable[AbortedTransaction]) -> NDArray[np.bool_]:
    """True for each batch whose records a consumer sees: neither a control batch nor aborted."""
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for transaction in sorted(aborted, key=lambda span: span.first_offset):
        spans[transaction.producer_id].append((transaction.first_offset, transaction.last_offset))
    committed = ~headers.control
    if spans:
        for row in np.flatnonzero(headers.transactional & committed).tolist():
            offset = int(headers["base_offset"][row])
            committed[row] = not _within(spans.get(int(headers["producer_id"][row]), ()), offset)
    return committed


def committed_records(headers: BatchHeaders, aborted: Iterable[AbortedTransaction]) -> NDArray[np.bool_]:
    """`committed_batches` with one value for each record that `decode` returns for these headers."""
    if (headers["magic"] != NEWEST_MAGIC).any():
        raise UnsupportedFormatError("messages of magic 0 and 1 have no transactions", hint="they are all committed")
    return np.repeat(committed_batches(headers, aborted), headers["count"])


def _within(spans: list[tuple[int, int]] | tuple[()], offset: int) -> bool:
    """Spans of one producer do not overlap: only the last one that starts at or before `offset` can contain it."""
    before = bisect_right(spans, offset, key=lambda span: span[0])
    return before > 0 and offset <= spans[before - 1][1]


def from_markers(buffer: Any, headers: BatchHeaders) -> Transactions:  # noqa: ANN401 - anything with a buffer
    """Read the transactions of a range from its own control batches.

    A transaction that began before the range counts from the first offset of the range.
    """
    started: dict[int, int] = {}
    ended: dict[int, int] = {}
    aborted: list[AbortedTransaction] = []
    first = int(headers["base_offset"][0]) if len(headers) else 0
    for producer_id, offset, aborts in transaction_events(buffer, headers):
        if aborts is None:
            started.setdefault(producer_id, offset)
            continue
        # A marker may end a transaction without records here: none were sent, or compaction removed them.
        began = started.pop(producer_id, ended.get(producer_id, first))
        ended[producer_id] = offset + 1
        if aborts:
            aborted.append(AbortedTransaction(producer_id=producer_id, first_offset=began, last_offset=offset))
    return Transactions(aborted=tuple(aborted), undecided=tuple(sorted(started.items())))


def from_fetch(
    buffer: Any,  # noqa: ANN401 - anything with a buffer
    headers: BatchHeaders,
    aborted: Iterable[tuple[int, int]],
) -> tuple[AbortedTransaction, ...]:
    """Add the end of each to the aborted list (producer id, first offset) of a fetch response.

    The end is the producer's next abort marker in the range, or the last offset of the range.
    """
    ends: dict[int, list[int]] = defaultdict(list)
    for producer_id, offset in abort_markers(buffer, headers):
        ends[producer_id].append(offset)
    last = int(headers.last_offset[-1]) if len(headers) else -1
    found = []
    for producer_id, first_offset in aborted:
        after = bisect_right(ends[producer_id], first_offset)
        end = ends[producer_id][after] if after < len(ends[producer_id]) else last
        found.append(AbortedTransaction(producer_id=producer_id, first_offset=first_offset, last_offset=end))
    return tuple(sorted(found, key=lambda transaction: (transaction.first_offset, transaction.producer_id)))


def transaction_events(buffer: Any, headers: BatchHeaders) -> list[tuple[int, int, bool | None]]:  # noqa: ANN401 - as above
    """Producer id, base offset, and what it is, of every batch of a transaction that has records, in order.

    True: a marker that aborts. False: one that commits. None: records.
    """
    # An emptied batch is decided and holds nothing: the log cleaner stops before open transactions.
    rows = np.flatnonzero(headers.transactional & (headers["count"] > 0))
    if not rows.size:
        return []
    types = _marker_types(as_bytes_array(buffer), headers)[rows].tolist()
    kinds = {_NO_MARKER: None, MARKER_ABORT: True, MARKER_COMMIT: False}
    producers, offsets = headers["producer_id"][rows].tolist(), headers["base_offset"][rows].tolist()
    return [(producer, offset, kinds[kind]) for producer, offset, kind in zip(producers, offsets, types, strict=True)]


def abort_markers(buffer: Any, headers: BatchHeaders) -> list[tuple[int, int]]:  # noqa: ANN401 - as above
    """Producer id and offset of every abort marker, in order."""
    rows = np.flatnonzero(_marker_types(as_bytes_array(buffer), headers) == MARKER_ABORT)
    return list(zip(headers["producer_id"][rows].tolist(), headers["base_offset"][rows].tolist(), strict=True))


def _marker_types(data: NDArray[np.uint8], headers: BatchHeaders) -> NDArray[np.int16]:
    """The marker type of each batch, or -1. Control records other than markers (in a KRaft log) are -1 too."""
    types = np.full(len(headers), _NO_MARKER, np.int16)
    for row in np.flatnonzero(headers.control & (headers["count"] > 0)).tolist():
        types[row] = _marker_type(data, headers, row)
    return types


def _marker_type(data: NDArray[np.uint8], headers: BatchHeaders, row: int) -> int:
    offset, position = int(headers["base_offset"][row]), int(headers.position[row])
    records = data[position + HEADER_BYTES : position + int(headers.size[row])]
    if headers.codec_at(row) is not Codec.NONE:
        arena = Arena(1 << 12)
        append(arena, headers, row, records, 1 << 16)
        records = arena.data[: arena.size]
    # A marker is one record: its length, one byte of attributes, two deltas and the key's length, then the key.
    key_length_at = _skip_varints(records, 2, _skip_varints(records, 1) + 1)
    start = key_length_at + 1
    # A key of 4 to 63 bytes: its length, zig-zag, is one even byte.
    if start + 4 > len(records) or not 8 <= records[key_length_at] < 0x80 or records[key_length_at] & 1:
        raise CorruptDataError("a control record is cut short", offset=offset, position=position)
    version, kind = struct.unpack_from(">hh", records, start)
    if version != 0:
        raise UnsupportedFormatError(f"a control record has version {version}", offset=offset, position=position)
    return int(kind) if kind in (MARKER_ABORT, MARKER_COMMIT) else _NO_MARKER


def _skip_varints(data: NDArray[np.uint8], count: int, start: int = 0) -> int:
    """The position after `count` varints. If they run out it is past the end, which the caller checks."""
    for _ in range(count):
        while start < len(data) and data[start] & 0x80:
            start += 1
        start += 1
    return start
