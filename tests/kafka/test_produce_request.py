"""The requests that are written by hand are, byte for byte, those that kafka-python would write."""

from __future__ import annotations

from uuid import UUID

import numpy as np
import pytest
from kafka.protocol.producer import ProduceRequest, WriteTxnMarkersRequest

from maxbrod.kafka.produce.lane import RecordsTo, markers_body, produce_body
from maxbrod.kafka.produce.producer_ids import ProducerIdentity
from support.kafka_reads import partition_of

TOPICS = {"a": UUID(int=7), "ä" * 100: UUID(int=(1 << 128) - 1)}


@pytest.mark.parametrize("version", range(9, 14))
def test_a_produce_request_is_what_the_library_would_write(version: int) -> None:
    records = [np.arange(size, dtype=np.uint8) for size in (0, 1, 126, 127, 128)] + [np.zeros(70_000, np.uint8)]
    places = [("a", 0), ("a", 9), ("ä" * 100, 300), ("ä" * 100, 1), ("a", 2), ("ä" * 100, 2)]
    entries = [
        RecordsTo(partition_of(topic, index), TOPICS[topic], data)
        for (topic, index), data in zip(places, records, strict=True)
    ]
    kind = ProduceRequest.TopicProduceData
    library = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=12_345,
        topic_data=[
            kind(
                name=topic,
                topic_id=topic_id,
                partition_data=[
                    kind.PartitionProduceData(index=each.where.partition, records=each.records.tobytes())
                    for each in entries
                    if each.where.topic == topic
                ],
            )
            for topic, topic_id in TOPICS.items()
        ],
    )
    pieces = produce_body(entries, version=version, timeout_ms=12_345)
    assert b"".join(bytes(piece) for piece in pieces) == bytes(library.encode(version=version))
    # The records were not copied.
    assert all(any(piece is each.records for piece in pieces) for each in entries)


@pytest.mark.parametrize("version", [1, 2])
def test_a_request_for_markers_is_what_the_library_would_write(version: int) -> None:
    identity = ProducerIdentity(producer_id=1 << 40, epoch=3)
    counts = [(partition_of("a", 1), 3), (partition_of("ä" * 100, 300), 200)]
    kind = WriteTxnMarkersRequest.WritableTxnMarker
    library = WriteTxnMarkersRequest(
        markers=[
            kind(
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                transaction_result=True,
                topics=[kind.WritableTxnMarkerTopic(name=where.topic, partition_indexes=[where.partition])],
                coordinator_epoch=5,
                transaction_version=0,
            )
            for where, count in counts
            for _ in range(count)
        ]
    )
    pieces = markers_body(counts, identity, version=version, coordinator_epoch=5)
    assert b"".join(bytes(piece) for piece in pieces) == bytes(library.encode(version=version))
