"""Java's own classes answer, so that other tests may trust them as an oracle."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import Message, produce, produce_transaction
from support.java_oracle import CODECS, CREATE_TIME, LOG_APPEND_TIME, JavaOracle, JavaRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.sandbox.cluster import Cluster

RECORDS = [
    JavaRecord(timestamp_ms=1_700_000_000_123, key=None, value=None, headers=()),
    JavaRecord(timestamp_ms=0, key=b"", value=b"", headers=(("", b""), ("a", None), ("a", b"\xff\x00"))),
    JavaRecord(timestamp_ms=1_700_000_000_999, key=b"\x80key", value=b"value" * 100, headers=(("ä", b"1"),)),
]


def without_offsets(records: list[JavaRecord]) -> list[JavaRecord]:
    return [record._replace(offset=None) for record in records]


@pytest.mark.parametrize("codec", CODECS)
def test_java_reads_back_every_field_of_the_batches_that_it_builds(java: JavaOracle, codec: str) -> None:
    data = java.memory_records(
        2, codec, CREATE_TIME, RECORDS, base_offset=2**40, producer_id=7, producer_epoch=3, base_sequence=11
    )
    (batch,) = java.parse_batches(data)
    assert (batch.magic, batch.codec, batch.base_offset, batch.last_offset) == (2, codec, 2**40, 2**40 + 2)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 3, 11)
    assert batch.size_bytes == len(data)
    assert without_offsets(list(batch.records)) == RECORDS


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
def test_java_builds_the_old_formats_too(java: JavaOracle, magic: int, codec: str) -> None:
    old = [record._replace(headers=(), timestamp_ms=-1 if magic == 0 else record.timestamp_ms) for record in RECORDS]
    data = java.memory_records(magic, codec, CREATE_TIME, old, base_offset=100)
    assert without_offsets(java.parse(data)) == old
    assert [record.offset for record in java.parse(data)] == [100, 101, 102]


def test_log_append_time_replaces_every_timestamp(java: JavaOracle) -> None:
    data = java.memory_records(2, "lz4", LOG_APPEND_TIME, RECORDS, log_append_time_ms=42)
    assert [record.timestamp_ms for record in java.parse(data)] == [42, 42, 42]


def test_a_marker_is_a_control_batch(java: JavaOracle) -> None:
    (batch,) = java.parse_batches(java.transaction_marker(9, 1, commit=False, base_offset=5))
    assert (batch.is_control, batch.is_transactional, batch.producer_id, batch.base_offset) == (True, True, 9, 5)


def test_java_refuses_a_flipped_bit(java: JavaOracle) -> None:
    data = bytearray(java.memory_records(2, "none", CREATE_TIME, RECORDS))
    data[-1] ^= 1
    with pytest.raises(Exception, match="corrupt"):
        java.parse(bytes(data))


@pytest.mark.parametrize("codec", CODECS)
def test_what_java_produces_java_consumes(java: JavaOracle, cluster: Cluster, topic: str, codec: str) -> None:
    with cluster.admin() as admin:
        admin.create_topics({topic: {"num_partitions": 2}}, wait_for_metadata=True)
    assert java.produce(cluster.bootstrap, topic, 1, RECORDS, codec) == [0, 1, 2]
    assert without_offsets(java.consume(cluster.bootstrap, topic, 1)) == RECORDS


def test_an_aborted_transaction_of_java_is_not_committed(java: JavaOracle, cluster: Cluster, topic: str) -> None:
    with cluster.admin() as admin:
        admin.create_topics([topic], wait_for_metadata=True)
    java.produce(cluster.bootstrap, topic, 0, RECORDS[:1], transactional_id=topic, commit=False)
    java.produce(cluster.bootstrap, topic, 0, RECORDS[1:], transactional_id=topic)
    assert without_offsets(java.consume(cluster.bootstrap, topic, 0)) == RECORDS[1:]
    assert len(java.consume(cluster.bootstrap, topic, 0, isolation_level="read_uncommitted")) == 3


def test_the_records_of_one_call_form_one_batch_however_slowly_they_come(
    java: JavaOracle, cluster: Cluster, topic: str
) -> None:
    def slowly() -> Iterator[Message]:
        for number in range(5):
            yield Message(value=b"%d" % number)
            # Longer than a sender thread sleeps that has something to send.
            time.sleep(0.2)

    create_topic(cluster, topic)
    produce(cluster, topic, slowly())
    produce_transaction(cluster, topic, slowly(), transactional_id=topic)
    java.produce(cluster.bootstrap, topic, 0, [JavaRecord(timestamp_ms=1, value=b"%d" % row) for row in range(200)])
    log = cluster.log_dir(cluster.broker_ids[0]) / f"{topic}-0" / f"{0:020}.log"
    batches = java.parse_batches(log.read_bytes())
    assert [len(each.records) for each in batches if not each.is_control] == [5, 5, 200]
