"""A fetch answer is read as kafka-python reads it, and a damaged one is never mistaken for a sound one."""

from __future__ import annotations

from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchResponse

from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.kafka.fetch.request import announced_bytes, read_answer, select
from maxbrod.sandbox.events import orders

NAME = "örders"
TOPIC_ID = UUID(int=7)
TOPIC = FetchResponse.FetchableTopicResponse
PARTITION = TOPIC.PartitionData
RECORDS = encode(orders(300), batch_bytes_max=10_000).tobytes()
# Offset and leader epoch of a batch stand before what its CRC covers.
UNPROTECTED = {*range(8), *range(12, 16)}


def partition(index: int, **fields: object) -> object:
    known = {"error_code": 0, "high_watermark": 9, "last_stable_offset": 8, "log_start_offset": 1}
    return PARTITION(partition_index=index, **{**known, "aborted_transactions": None, "records": None, **fields})


def frame(*partitions: object, version: int = 13, throttle_ms: int = 0) -> bytes:
    answer = FetchResponse(
        throttle_time_ms=throttle_ms,
        error_code=0,
        session_id=0,
        responses=[TOPIC(topic=NAME, topic_id=TOPIC_ID, partitions=list(partitions))],
        version=version,
    )
    answer.with_header(correlation_id=5)
    encoded: bytes = answer.encode(header=True)
    return encoded


def as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


@pytest.mark.parametrize("version", range(12, 19))
def test_every_field_of_every_version_is_read(version: int) -> None:
    aborted = [PARTITION.AbortedTransaction(producer_id=1 << 40, first_offset=1 << 50)]
    diverging = PARTITION.EpochEndOffset(epoch=3, end_offset=1 << 41)
    leader = PARTITION.LeaderIdAndEpoch(leader_id=2, leader_epoch=9)
    answer = read_answer(
        as_array(
            frame(
                partition(0, aborted_transactions=aborted, records=RECORDS),
                partition(1, error_code=6, current_leader=leader, records=b""),
                partition(2, diverging_epoch=diverging),
                version=version,
                throttle_ms=1234,
            )
        ),
        {NAME: TOPIC_ID} if version == 12 else None,
    )
    assert (answer.throttle_ms, answer.error_code, len(answer.partitions)) == (1234, 0, 3)
    first, second, third = (answer.partitions[TOPIC_ID, index] for index in range(3))
    assert (first.high_watermark, first.last_stable_offset, first.log_start_offset) == (9, 8, 1)
    assert (first.aborted, first.diverging, first.error_code) == (((1 << 40, 1 << 50),), None, 0)
    assert first.records.tobytes() == RECORDS
    assert (second.error_code, second.records.size, second.diverging) == (6, 0, None)
    assert (third.diverging, third.aborted, third.records.size) == ((3, 1 << 41), (), 0)


def test_a_topic_that_was_not_requested_by_its_name_is_corrupt() -> None:
    with pytest.raises(CorruptDataError, match="not requested"):
        read_answer(as_array(frame(partition(0), version=12)), {"another": TOPIC_ID})


def test_an_answer_cut_at_any_byte_is_corrupt() -> None:
    whole = frame(partition(0, records=RECORDS[:500]), partition(1))
    for size in range(len(whole)):
        with pytest.raises(CorruptDataError):
            read_answer(as_array(whole[:size]))
    with pytest.raises(CorruptDataError, match="bytes after its end"):
        read_answer(as_array(whole + b"\0"))


@given(bit=st.integers(0, 8 * len(frame(partition(0, records=RECORDS))) - 1))
def test_a_flipped_bit_never_changes_what_a_batch_holds(bit: int) -> None:
    damaged = np.frombuffer(frame(partition(0, records=RECORDS)), np.uint8).copy()
    damaged[bit // 8] ^= 1 << bit % 8
    try:
        found = read_answer(damaged).partitions.get((TOPIC_ID, 0))
        if found is None or found.error_code or not found.records.size:
            return
        headers = walk(found.records, check_crc=False)
        if not len(headers):
            assert announced_bytes(found.records) != len(RECORDS)
            return
        chunk = select(found, headers, 0, 300).checked("topic-0")
    except (CorruptDataError, UnsupportedFormatError):
        return
    sound = walk(RECORDS)
    wrong = np.flatnonzero(chunk.data != as_array(RECORDS)[: chunk.data.size])
    starts = sound.position[np.searchsorted(sound.position, wrong, side="right") - 1]
    assert set((wrong - starts).tolist()) <= UNPROTECTED
