"""Archived logs with all that can be in them, what an application may see of each, and what a broker makes of it."""

from __future__ import annotations

import gzip
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from maxbrod.batch.compression import compress
from maxbrod.batch.cuts import Cut
from maxbrod.batch.decode import decode
from maxbrod.batch.headers import walk
from maxbrod.batch.replay import Replayed, replay
from maxbrod.model import AbortedTransaction, Codec
from support.old_messages import message, wrapper
from support.plain_batches import Record, write_batch, write_record
from support.record_examples import blobs, headers, timestamps, to_records

ABORTED_PRODUCER = 66
OLD_CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
KINDS = ["plain", "committed", "aborted", "marker", "emptied", "log append", "horizon", "message", "wrapper"]


@dataclass(frozen=True)
class Log:
    """Entries in order, the records that an application may see, and the aborted transactions."""

    entries: list[bytes]
    visible: list[Record]
    aborted: list[AbortedTransaction]

    @property
    def data(self) -> bytes:
        return b"".join(self.entries)


def packed(records: list[Record], codec: Codec = Codec.NONE, **fields: Any) -> bytes:
    """A batch of any codec; the fields as `write_batch` has them."""
    base_offset = fields.setdefault("base_offset", records[0].offset)
    base_timestamp = fields.setdefault("base_timestamp", records[0].timestamp)
    raw = b"".join(write_record(record, base_offset, base_timestamp) for record in records)
    # Another gzip than ours, so that records which were packed again without need are not the same bytes.
    body = gzip.compress(raw, mtime=7) if codec is Codec.GZIP else compress(codec, np.frombuffer(raw, np.uint8))
    return write_batch(records, body=body, **{**fields, "attributes": fields.get("attributes", 0) | int(codec)})


@st.composite
def logs(draw: st.DrawFn, kinds: list[str] = KINDS, *, holes: bool = True) -> Log:
    log = Log([], [], [])
    offset = draw(st.one_of(st.integers(0, 100), st.integers(0, 1 << 60)))
    for _ in range(draw(st.integers(1, 6))):
        # Half of the batches without a hole, or few of them would be of the kinds that may stay as they are.
        gaps = st.one_of(st.just(0), st.integers(0, 5)) if holes and draw(st.booleans()) else st.just(0)
        base = offset + draw(gaps)
        records = []
        offset = base
        for _ in range(draw(st.integers(1, 6))):
            offset += draw(gaps)
            records.append(
                Record(
                    offset=offset, timestamp=draw(timestamps), key=draw(blobs), value=draw(blobs), headers=draw(headers)
                )
            )
            offset += 1
        offset += draw(gaps)
        offset = max(offset, _add(draw, log, draw(st.sampled_from(kinds)), base, offset, records))
    return log


def _add(draw: st.DrawFn, log: Log, kind: str, base: int, end: int, records: list[Record]) -> int:
    """One entry more; returns the offset after it."""
    codec = draw(st.sampled_from(list(Codec)))
    span: dict[str, Any] = {"base_offset": base, "last_offset_delta": end - 1 - base}
    match kind:
        case "marker":
            marker = Record(offset=base, timestamp=3, key=b"\0\0\0\1", value=b"\0\0\0\0\0\7")
            log.entries.append(write_batch([marker], attributes=0x30, producer_id=7))
            return base + 1
        case "emptied":
            attributes = 0x10 * draw(st.booleans()) | int(codec)
            log.entries.append(write_batch([], attributes=attributes, **span))
            return end
        case "aborted":
            log.entries.append(packed(records, codec, attributes=0x10, producer_id=ABORTED_PRODUCER, **span))
            aborted = AbortedTransaction(producer_id=ABORTED_PRODUCER, first_offset=base, last_offset=end - 1)
            log.aborted.append(aborted)
            return end
        case "message" | "wrapper":
            magic = draw(st.sampled_from([0, 1]))
            records = [replace(each, headers=[], timestamp=each.timestamp if magic else -1) for each in records]
            if kind == "wrapper":
                log.entries.append(wrapper(magic, draw(st.sampled_from(OLD_CODECS)), records))
            else:
                log.entries.extend(message(magic, each) for each in records)
        case "log append":
            time = draw(timestamps)
            log.entries.append(packed(records, codec, attributes=0x08, max_timestamp=time, **span))
            records = [replace(each, timestamp=time) for each in records]
        case _:
            attributes = {"plain": 0, "committed": 0x10, "horizon": 0x40}[kind]
            base_timestamp = draw(timestamps) if kind == "horizon" else records[0].timestamp
            producer = {"attributes": attributes, "producer_id": 5, "leader_epoch": 3, "base_sequence": 9}
            log.entries.append(packed(records, codec, base_timestamp=base_timestamp, **producer, **span))
    log.visible.extend(records)
    return end


@st.composite
def cuts(draw: st.DrawFn, log: Log) -> Cut:
    """Limits that go through batches: at a record's own offset or time, or one beside it."""
    offsets = [record.offset + beside for record in log.visible for beside in (0, 1)] or [0]
    times = [record.timestamp + beside for record in log.visible for beside in (0, 1)] or [0]
    return Cut(
        first_offset=draw(st.one_of(st.just(0), st.sampled_from(offsets))),
        end_offset=draw(st.one_of(st.none(), st.sampled_from(offsets))),
        since_ms=draw(st.one_of(st.none(), st.sampled_from(times))),
        until_ms=draw(st.one_of(st.none(), st.sampled_from(times))),
    )


def wanted(log: Log, cut: Cut) -> list[Record]:
    """Plainly, one record after another."""
    return [
        record
        for record in log.visible
        if record.offset >= cut.first_offset
        and (cut.end_offset is None or record.offset < cut.end_offset)
        and (cut.since_ms is None or record.timestamp >= cut.since_ms)
        and (cut.until_ms is None or record.timestamp < cut.until_ms)
    ]


def replay_all(log: Log, pieces: list[int], **how: Any) -> list[Replayed]:
    """In several calls: `pieces` are the entries at which a new call begins."""
    edges = [0, *pieces, len(log.entries)]
    results: list[Replayed] = []
    for start, end in pairwise(edges):
        data = b"".join(log.entries[start:end])
        position = results[-1].position if results else how.pop("position", 0)
        results.append(replay(data, walk(data), log.aborted, position=position, **how))
    return results


def appended(results: list[Replayed], position: int = 0) -> list[Record]:
    """What a broker makes of it, after the checks that a broker makes: each batch where the last one ended."""
    records: list[Record] = []
    for result in results:
        found = walk(result.data, whole=True)
        assert {name: column.tolist() for name, column in found.fields.items()} == {
            name: column.tolist() for name, column in result.headers.fields.items()
        }
        assert found.position.tolist() == result.headers.position.tolist()
        for row in range(len(found)):
            one = found.take(slice(row, row + 1))
            refused = broker_refuses(one)
            assert not refused, refused
            inside = to_records(decode(result.data, one))
            assert [record.offset for record in inside] == list(range(len(inside)))
            position += int(result.hole[row])
            assert result.hole[row] >= 0
            records += [replace(record, offset=position + record.offset) for record in inside]
            position += len(inside)
    return records


def broker_refuses(batch: Any) -> str:
    """Why a broker would not take this batch from a client; empty if it would."""
    complaints = {
        "magic": batch["magic"][0] != 2,
        "holes": batch["count"][0] != batch["last_offset_delta"][0] + 1,
        "empty": batch["count"][0] < 1,
        "flags": bool(batch["attributes"][0] & ~7),
        "base offset": batch["base_offset"][0] != 0,
        "leader epoch": batch["leader_epoch"][0] != -1,
    }
    return ", ".join(name for name, wrong in complaints.items() if wrong)
