"""Kafka's own Java classes read what we write, and we read what they write."""

from __future__ import annotations

import numpy as np
import pytest

from maxbrod.batch.decode import decode
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.batch.patch import patch
from maxbrod.batch.transactions import from_markers
from maxbrod.model import AbortedTransaction, Codec
from support.java_oracle import CODECS, CREATE_TIME, LOG_APPEND_TIME, JavaOracle, JavaRecord
from support.java_records import RECORDS, at_offsets, to_arrow, to_java

OFFSETS = [0, 1 << 33, (1 << 62) + 7]


@pytest.mark.parametrize("base_offset", OFFSETS)
@pytest.mark.parametrize("codec", CODECS)
def test_batches_that_java_builds_decode_equal(java: JavaOracle, codec: str, base_offset: int) -> None:
    data = java.memory_records(
        2,
        codec,
        CREATE_TIME,
        RECORDS,
        base_offset,
        producer_id=1 << 40,
        producer_epoch=5,
        base_sequence=77,
        is_transactional=True,
        partition_leader_epoch=9,
    )
    records = decode(data)

    assert to_java(records) == at_offsets(RECORDS, base_offset)
    assert records.column("sequence").to_pylist() == [77 + row for row in range(len(RECORDS))]
    for name, value in {"producer_id": 1 << 40, "producer_epoch": 5, "leader_epoch": 9, "transactional": True}.items():
        assert set(records.column(name).to_pylist()) == {value}


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time_of_java_decodes_equal(java: JavaOracle, codec: str) -> None:
    records = decode(java.memory_records(2, codec, LOG_APPEND_TIME, RECORDS, log_append_time_ms=1_234))

    assert set(records.column("timestamp_ms").to_pylist()) == {1_234}
    assert set(records.column("timestamp_type").to_pylist()) == {1}


@pytest.mark.parametrize("timestamp_type", [CREATE_TIME, LOG_APPEND_TIME])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_that_java_builds_decode_equal(
    java: JavaOracle, magic: int, codec: str, timestamp_type: str
) -> None:
    old = [record._replace(headers=(), timestamp_ms=record.timestamp_ms if magic else -1) for record in RECORDS]
    data = java.memory_records(magic, codec, timestamp_type, old, 1 << 35, log_append_time_ms=55)
    records = decode(data)

    assert to_java(records) == java.parse(data)
    assert [record.offset for record in to_java(records)] == [(1 << 35) + row for row in range(len(old))]
    wanted = -1 if magic == 0 else int(timestamp_type == LOG_APPEND_TIME)
    assert set(records.column("timestamp_type").to_pylist()) == {wanted}


@pytest.mark.parametrize("bound", [100, 5_000, 1_000_000])
@pytest.mark.parametrize("codec", list(Codec))
def test_java_reads_every_record_that_we_encode(java: JavaOracle, codec: Codec, bound: int) -> None:
    data = encode(to_arrow(RECORDS, 1 << 33), codec=codec, batch_bytes_max=bound).tobytes()
    batches = java.parse_batches(data)

    assert [record for batch in batches for record in batch.records] == at_offsets(RECORDS, 1 << 33)
    assert {batch.codec for batch in batches} == {codec.name.lower()}
    assert max(batch.max_timestamp_ms for batch in batches) == max(record.timestamp_ms for record in RECORDS)


@pytest.mark.parametrize("codec", list(Codec))
def test_java_finds_a_patched_batch_valid(java: JavaOracle, codec: Codec) -> None:
    data = encode(to_arrow(RECORDS), codec=codec, batch_bytes_max=300)
    headers = walk(data)
    patch(
        data,
        headers,
        base_offset=headers["base_offset"] + 1_000,
        producer_id=42,
        producer_epoch=3,
        base_sequence=np.arange(len(headers)),
        leader_epoch=8,
    )
    batches = java.parse_batches(data.tobytes())

    assert [batch.base_sequence for batch in batches] == list(range(len(headers)))
    assert {(b.producer_id, b.producer_epoch, b.partition_leader_epoch) for b in batches} == {(42, 3, 8)}
    assert [record for batch in batches for record in batch.records] == at_offsets(RECORDS, 1_000)


def test_markers_that_java_writes_are_understood(java: JavaOracle) -> None:
    def batch(producer_id: int, offset: int) -> bytes:
        one = [JavaRecord(timestamp_ms=1, value=b"v")]
        producer = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
        return java.memory_records(2, "none", CREATE_TIME, one, offset, **producer, is_transactional=True)

    log = (
        batch(7, 0)
        + batch(8, 1)
        + java.transaction_marker(7, 0, commit=False, base_offset=2)
        + java.transaction_marker(8, 0, commit=True, base_offset=3)
    )
    found = from_markers(log, walk(log))

    assert found.aborted == (AbortedTransaction(producer_id=7, first_offset=0, last_offset=2),)
    assert found.undecided == ()
    assert decode(log).column("control").to_pylist() == [False, False, True, True]
