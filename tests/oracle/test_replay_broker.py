"""Kafka's own checks, and a real broker, take every batch of a replay; consumers see exactly the committed records."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from maxbrod.batch.cuts import Cut
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.batch.patch import patch
from maxbrod.batch.replay import Replayed, replay
from maxbrod.model import AbortedTransaction, Codec
from maxbrod.sandbox.topics import create_topic
from support import raw_requests as wire
from support.java_oracle import JavaOracle, JavaRecord
from support.java_records import RECORDS
from support.old_messages import message, wrapper
from support.plain_batches import Record, write_batch
from support.raw_requests import ANY_TIME
from support.replay_cases import Log, packed

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster

FIRST_OFFSET = 300_000
PRODUCER = {"producer_id": 4242, "producer_epoch": 0}
CUTS = {
    "everything": Cut(),
    "part": Cut(first_offset=FIRST_OFFSET + 1, since_ms=-5, until_ms=1_700_000_000_124),
}


def archived() -> Log:
    """Every kind of batch that an archive may hold, in every codec, with holes inside and between."""
    log = Log([], [], [])
    offset = FIRST_OFFSET
    for number, codec in enumerate(Codec):
        dense, holed, timed = (records_at(offset + start, step) for start, step in ((0, 1), (10, 3), (40, 1)))
        lost = records_at(offset + 50)
        horizon = records_at(offset + 60)
        log.entries.append(packed(dense, codec, attributes=0x10, producer_id=number, leader_epoch=4))
        log.entries.append(packed(holed, codec, base_offset=offset + 9, last_offset_delta=25, base_sequence=3))
        log.entries.append(packed(timed, codec, attributes=0x08, max_timestamp=1_600_000_000_000 + number))
        log.entries.append(packed(lost, codec, attributes=0x10, producer_id=66))
        log.entries.append(
            write_batch([Record(offset=offset + 59, timestamp=3, key=bytes(4), value=bytes(6))], attributes=0x30)
        )
        log.entries.append(packed(horizon, codec, attributes=0x40, base_timestamp=1_800_000_000_000))
        log.entries.append(write_batch([], base_offset=offset + 70, last_offset_delta=5))
        log.aborted.append(AbortedTransaction(producer_id=66, first_offset=offset + 50, last_offset=offset + 59))
        timed = [replace(record, timestamp=1_600_000_000_000 + number) for record in timed]
        log.visible.extend([*dense, *holed, *timed, *horizon])
        offset += 80
    old = [replace(record, headers=[]) for record in records_at(offset)]
    log.entries.extend([message(1, old[0]), wrapper(1, Codec.SNAPPY, old[1:])])
    none = [replace(record, headers=[], timestamp=-1) for record in records_at(offset + 10)]
    log.entries.extend([wrapper(0, Codec.GZIP, none[:2]), *(message(0, record) for record in none[2:])])
    log.visible.extend([*old, *none])
    return log


def records_at(offset: int, step: int = 1) -> list[Record]:
    # Not the large value: this is done for many batches.
    given = [*RECORDS[:5], JavaRecord(timestamp_ms=-5, key=b"before 1970", value=b"v")]
    return [
        Record(
            offset=offset + step * row,
            timestamp=record.timestamp_ms,
            key=record.key,
            value=record.value,
            headers=[(key.encode(), value) for key, value in record.headers],
        )
        for row, record in enumerate(given)
    ]


def expected(log: Log, cut: Cut, *, exact: bool, position: int = 0) -> list[JavaRecord]:
    offsets, times = (np.array([getattr(each, name) for each in log.visible]) for name in ("offset", "timestamp"))
    chosen = [record for record, keep in zip(log.visible, cut.keeps(offsets, times), strict=True) if keep]
    return [
        JavaRecord(
            timestamp_ms=record.timestamp,
            key=record.key,
            value=record.value,
            headers=tuple((key.decode(), value) for key, value in record.headers),
            offset=record.offset if exact else position + row,
        )
        for row, record in enumerate(chosen)
    ]


def nulls(count: int) -> np.ndarray:
    """One batch of records that hold nothing."""
    times = pa.array(np.full(count, -1), pa.int64())
    records = {"offset": pa.array(np.arange(count)), "timestamp_ms": times, "key": pa.nulls(count, pa.binary())}
    columns = pa.RecordBatch.from_pydict({**records, "value": pa.nulls(count, pa.binary())})
    return encode(columns, codec=Codec.ZSTD, batch_bytes_max=1 << 30)


def stamped(result: Replayed) -> list[bytes]:
    """The batches as an idempotent producer sends them, each after records that fill the hole before it."""
    taken = result.headers["count"] + result.hole
    sequence = np.cumsum(taken) - taken
    new = patch(result.data, result.headers, **PRODUCER, base_sequence=sequence + result.hole)
    batches = []
    for row, hole in enumerate(result.hole.tolist()):
        if hole:
            filler = nulls(hole)
            patch(filler, walk(filler), **PRODUCER, base_sequence=int(sequence[row]))
            batches.append(filler.tobytes())
        start = int(new.position[row])
        batches.append(result.data[start : start + int(new.size[row])].tobytes())
    return batches


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("codec", [None, Codec.ZSTD])
def test_kafkas_own_validator_finds_nothing_wrong(java: JavaOracle, exact: bool, codec: Codec | None, cut: Cut) -> None:
    log = archived()
    result = replay(
        log.data, walk(log.data), log.aborted, cut=cut, exact=exact, codec=codec, batch_bytes_max=400, position=0
    )
    new = patch(result.data, result.headers, **PRODUCER, base_sequence=0)
    ends = np.cumsum(new["count"] + result.hole)
    records: list[JavaRecord] = []
    for start, size, offset in zip(
        new.position.tolist(), new.size.tolist(), (ends - new["count"]).tolist(), strict=True
    ):
        records += java.parse(java.validated(result.data[start : start + size].tobytes(), offset))
    assert records == expected(log, cut, exact=exact)


def test_kafkas_own_validator_refuses_holes_and_control_records(java: JavaOracle) -> None:
    """Or the test above would prove nothing. Java counts a refusal first, and has no counter here."""
    two = [Record(offset=0, timestamp=1, key=b"k", value=b"v"), Record(offset=2, timestamp=1, key=b"k", value=b"v")]
    for refused in (packed(two), packed(two[:1], attributes=0x20)):
        with pytest.raises(Exception, match="recordInvalidOffset"):
            java.validated(refused, 0)


def test_a_broker_would_take_log_append_time_for_the_hidden_times_of_the_producer(java: JavaOracle) -> None:
    """Why such batches are rewritten although nobody refuses them."""
    archived_batch = packed(records_at(0), attributes=0x08, max_timestamp=777)
    stored = java.parse(java.validated(archived_batch, 0))
    result = replay(archived_batch, walk(archived_batch), [], cut=Cut(), exact=True, batch_bytes_max=1 << 20)

    assert [record.timestamp_ms for record in stored] == [record.timestamp for record in records_at(0)]
    assert {record.timestamp_ms for record in java.parse(java.validated(result.data.tobytes(), 0))} == {777}


@pytest.mark.parametrize("exact", [True, False])
def test_a_broker_takes_every_batch_and_a_consumer_sees_exactly_the_committed_records(
    cluster: Cluster, java: JavaOracle, topic: str, exact: bool
) -> None:
    create_topic(cluster, topic, config=ANY_TIME)
    log = archived()
    cut = CUTS["everything"]
    result = replay(log.data, walk(log.data), log.aborted, cut=cut, exact=exact, batch_bytes_max=400)
    for batch in stamped(result):
        assert wire.produce(cluster, topic, batch) == (0, None)
    wanted = expected(log, cut, exact=exact)
    seen = java.consume(cluster.bootstrap, topic, 0, from_offset=FIRST_OFFSET if exact else 0)
    taken = {record.offset for record in wanted}

    assert [record for record in seen if record.offset in taken] == wanted
    others = [record for record in seen if record.offset not in taken]
    assert all(record[:4] == (-1, None, None, ()) for record in others)
    assert bool(others) == exact, "what fills holes stands there, and nowhere else"
