"""An answer to a Produce request is read as kafka-python reads it, or left to kafka-python; never misread."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceResponse

from maxbrod.kafka.produce.lane import Answer, read_produce_answer

VERSIONS = range(9, 14)
TOPIC = ProduceResponse.TopicProduceResponse
PARTITION = TOPIC.PartitionProduceResponse
int16, int32, int64 = (st.integers(-(1 << bits), (1 << bits) - 1) for bits in (15, 31, 63))


def partition(index: int, **fields: Any) -> Any:
    known = {"error_code": 0, "base_offset": 7, "log_append_time_ms": -1, "log_start_offset": 3}
    return PARTITION(index=index, **{**known, "record_errors": [], "error_message": None, **fields})


def frame(version: int, topics: dict[str, list[Any]], *, throttle_ms: int = 0, **fields: Any) -> np.ndarray:
    responses = [
        TOPIC(name=name, topic_id=id_of(name), partition_responses=partitions) for name, partitions in topics.items()
    ]
    answer = ProduceResponse(responses=responses, throttle_time_ms=throttle_ms, version=version, **fields)
    answer.with_header(correlation_id=5)
    return np.frombuffer(bytes(answer.encode(header=True)), np.uint8)


def id_of(name: str) -> UUID:
    return UUID(bytes=name.encode().ljust(16, b"-")[:16])


def key_of(name: str, version: int) -> bytes:
    return id_of(name).bytes if version >= 13 else name.encode()


@given(
    st.sampled_from(VERSIONS),
    st.dictionaries(
        st.text("abcü.-", min_size=1, max_size=200),
        st.dictionaries(int32, st.tuples(int16, int64, int64), max_size=5),
        max_size=3,
    ),
    int32,
)
def test_every_field_of_every_version_is_read(
    version: int, told: dict[str, dict[int, tuple[int, int, int]]], throttle_ms: int
) -> None:
    told = {name: each for name, each in told.items() if [id_of(other) for other in told].count(id_of(name)) == 1}
    topics = {
        name: [
            partition(index, error_code=code, base_offset=base_offset, log_append_time_ms=time_ms)
            for index, (code, base_offset, time_ms) in each.items()
        ]
        for name, each in told.items()
    }
    answer = read_produce_answer(frame(version, topics, throttle_ms=throttle_ms), version)
    assert answer is not None
    assert answer.throttle_ms == throttle_ms
    assert answer.partitions == {
        (key_of(name, version), index): Answer(*values) for name, each in told.items() for index, values in each.items()
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_that_tells_more_is_left_to_the_library(version: int) -> None:
    refused = PARTITION.BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="bad")
    more: list[dict[str, Any]] = [{"record_errors": [refused]}, {"error_message": "no"}, {"error_message": ""}]
    if version >= 10:
        more.append({"current_leader": PARTITION.LeaderIdAndEpoch(leader_id=2, leader_epoch=9)})
    for each in more:
        assert read_produce_answer(frame(version, {"t": [partition(0), partition(1, **each)]}), version) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_that_is_cut_or_goes_on_is_never_believed(version: int) -> None:
    whole = frame(version, {"t": [partition(0), partition(1)], "u": [partition(0)]})
    for size in range(len(whole)):
        assert read_produce_answer(whole[:size], version) is None, size
    assert read_produce_answer(np.append(whole, np.uint8(0)), version) is None
