"""Logs with all that a partition may hold, and the shortest way into an archive and back."""

from __future__ import annotations

import atexit
import shutil
import uuid
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

from maxbrod.batch.compression import compress
from maxbrod.batch.headers import walk
from maxbrod.layouts.kafka.format import Compression, PartitionName, SegmentLimits, Slice
from maxbrod.layouts.kafka.reader import read_log
from maxbrod.layouts.kafka.writer import ArchiveWriter
from maxbrod.model import Codec
from maxbrod.storage.stores import directory_of, open_storage
from maxbrod.storage.urls import parse_url
from support.old_messages import message, messages, wrapper
from support.plain_batches import Record, write_batch, write_record
from support.record_examples import record_lists

if TYPE_CHECKING:
    from maxbrod.layouts.kafka.described_batches import TimestampScan
    from maxbrod.layouts.kafka.format import SegmentLimits, Slice
    from maxbrod.storage.interface import Storage

NAME = PartitionName(topic="orders", topic_id="0123456789abcdefghijkl", partition=3)
ABORT, COMMIT = 0, 1


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Bytes, and what a slow reader knows of them."""

    data: bytes
    first: int
    last: int
    times: list[int] = field(default_factory=list)
    records: int = 0


def pack(records: list[Record], codec: Codec = Codec.NONE, *, attributes: int = 0, **fields: Any) -> bytes:
    base_time = fields.get("base_timestamp", records[0].timestamp)
    body = b"".join(write_record(record, records[0].offset, base_time) for record in records)
    packed = compress(codec, np.frombuffer(body, np.uint8))
    return write_batch(records, attributes=int(codec) | attributes, body=packed, **fields)


def data_batch(
    offset: int, count: int = 1, *, value: bytes = b"value", codec: Codec = Codec.NONE, **more: Any
) -> bytes:
    records = [Record(offset=offset + i, timestamp=1000 + offset + i, key=b"k", value=value) for i in range(count)]
    return pack(records, codec, **more)


def marker(offset: int, producer_id: int, kind: int) -> bytes:
    record = Record(offset=offset, timestamp=5, key=b"\0\0" + kind.to_bytes(2, "big"), value=b"\0\0\0\0\0\0")
    return write_batch([record], attributes=0x30, producer_id=producer_id, producer_epoch=0)


@st.composite
def batches(draw: st.DrawFn, *, legacy: bool = True) -> list[Batch]:
    """A log in order: every codec, holes narrow and wide, emptied batches, markers, log-append, old messages."""
    kinds = ["data", "data", "appended", "horizon", "empty", "marker", *(["old", "wrapper"] if legacy else [])]
    found: list[Batch] = []
    offset = draw(st.sampled_from([0, 7, 1 << 40]))
    for _ in range(draw(st.integers(1, 8))):
        batch = draw(_batch(draw(st.sampled_from(kinds)), offset))
        found.append(batch)
        offset = batch.last + 1 + draw(st.sampled_from([0, 0, 1, 99, 100, 5000]))
    return found


@st.composite
def _batch(draw: st.DrawFn, kind: str, offset: int) -> Batch:
    codec = draw(st.sampled_from(list(Codec)))
    if kind == "empty":
        last = draw(st.integers(0, 50))
        data = write_batch([], base_offset=offset, last_offset_delta=last, attributes=int(codec), leader_epoch=4)
        return Batch(data=data, first=offset, last=offset + last)
    if kind == "marker":
        return Batch(data=marker(offset, 9, COMMIT), first=offset, last=offset, times=[5], records=1)
    if kind in {"old", "wrapper"}:
        return _old(draw, kind, offset)
    records = _moved(draw(record_lists(size_max=6)), offset)
    times = [record.timestamp for record in records]
    more: dict[str, Any] = {"leader_epoch": 3, "producer_id": 11, "producer_epoch": 1, "base_sequence": 5}
    if kind == "appended":
        more |= {"attributes": 0x08, "max_timestamp": 77}
        times = [77] * len(records)
    if kind == "horizon":
        more |= {"attributes": 0x40, "base_timestamp": 1 << 45}
    data = pack(records, codec, **more)
    return Batch(data=data, first=offset, last=records[-1].offset, times=times, records=len(records))


def _old(draw: st.DrawFn, kind: str, offset: int) -> Batch:
    magic = draw(st.sampled_from([0, 1]))
    records = _moved(draw(messages(magic)), offset)
    times = [record.timestamp for record in records] if magic else []
    if kind == "old":
        data = message(magic, records[0])
        return Batch(data=data, first=offset, last=offset, times=times[:1], records=1)
    data = wrapper(magic, draw(st.sampled_from([Codec.GZIP, Codec.SNAPPY, Codec.LZ4])), records)
    return Batch(data=data, first=offset, last=records[-1].offset, times=times, records=len(records))


def _moved(records: list[Record], offset: int) -> list[Record]:
    first = records[0].offset
    return [replace(record, offset=record.offset - first + offset) for record in records]


MEMORY = f"memory://layouts-{uuid.uuid4().hex}"
# Not by a fixture: these storages are also opened many times within one test.
atexit.register(shutil.rmtree, directory_of(parse_url(MEMORY)), ignore_errors=True)


def new_storage() -> Storage:
    return open_storage(f"{MEMORY}/{uuid.uuid4().hex}")


def archive(
    storage: Storage,
    chunks: list[bytes],
    *,
    mode: str = "source",
    packed: bool = False,
    limits: SegmentLimits | None = None,
    aborted: list[list[tuple[int, int]]] | None = None,
    exact: bool = True,
    look: TimestampScan | None = None,
) -> tuple[Slice, ...]:
    """Written chunk by chunk, each from a buffer that is spoilt afterwards."""
    lists = aborted or [[] for _ in chunks]
    options: dict[str, Any] = {"compression": Compression.parse(mode), "limits": limits, "exact_timestamps": exact}
    with ArchiveWriter(storage, run_id="run-1", look=look, **options) as writer:
        partition = writer.partition(topic=NAME.topic, topic_id=NAME.topic_id, partition=NAME.partition, packed=packed)
        for chunk, named in zip(chunks, lists, strict=True):
            buffer = np.frombuffer(chunk, np.uint8).copy()
            partition.append(buffer, walk(buffer), named)
            buffer[:] = 0xEE
        partition.close()
    return partition.slices


def logs(storage: Storage, slices: tuple[Slice, ...]) -> bytes:
    return b"".join(read_log(storage, each).tobytes() for each in slices)


def check_rows(log: list[Batch], slices: tuple[Slice, ...], limits: SegmentLimits | None) -> None:
    """What each row says, against what the slow reader knows of the batches in its range."""
    left = list(log)
    for row in slices:
        mine = [batch for batch in left if batch.first < row.end_offset]
        left = left[len(mine) :]
        times = [time for batch in mine for time in batch.times]
        assert (row.base_offset, row.end_offset) == (mine[0].first, mine[-1].last + 1)
        assert row.records == sum(batch.records for batch in mine)
        assert row.min_timestamp == min(times, default=None)
        assert row.max_timestamp == max(times, default=None)
        if limits is not None:
            assert row.raw_bytes == sum(len(batch.data) for batch in mine)
            assert row.raw_bytes - len(mine[-1].data) < limits.bytes_max
            holes = [after.first - before.last - 1 for before, after in pairwise(mine)]
            assert all(hole < limits.hole_offsets_min for hole in holes)
    assert not left
