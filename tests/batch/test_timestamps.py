from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.batch.compression import compress
from maxbrod.batch.decode import lowest_timestamps
from maxbrod.batch.headers import walk
from maxbrod.model import Codec
from support.plain_batches import Record, write_batch, write_record
from support.record_examples import record_lists


def batch(records: list[Record], codec: Codec, **fields: int) -> bytes:
    base_timestamp = fields.get("base_timestamp", records[0].timestamp)
    body = b"".join(write_record(record, records[0].offset, base_timestamp) for record in records)
    attributes = int(codec) | fields.pop("flags", 0)
    return write_batch(records, attributes=attributes, body=compress(codec, np.frombuffer(body, np.uint8)), **fields)


@given(st.lists(st.tuples(record_lists(), st.sampled_from(list(Codec))), min_size=1, max_size=5))
def test_the_lowest_is_found_wherever_it_stands(drawn: list[tuple[list[Record], Codec]]) -> None:
    log = b"".join(batch(records, codec) for records, codec in drawn)
    lowest, sound = lowest_timestamps(log, walk(log))

    assert lowest.tolist() == [min(record.timestamp for record in records) for records, _ in drawn]
    assert sound.all()


@given(record_lists(), st.integers(0, 1 << 45))
def test_a_delete_horizon_is_not_taken_for_a_timestamp(records: list[Record], horizon: int) -> None:
    log = batch(records, Codec.LZ4, flags=0x40, base_timestamp=horizon)

    assert lowest_timestamps(log, walk(log))[0].tolist() == [min(record.timestamp for record in records)]


def test_with_log_append_time_every_record_has_the_batchs_own() -> None:
    log = batch([Record(offset=0, timestamp=5, key=b"", value=b"")], Codec.NONE, flags=0x08, max_timestamp=99)

    assert lowest_timestamps(log, walk(log))[0].tolist() == [99]


def test_more_than_one_group_of_batches_is_unpacked() -> None:
    large = bytes(300_000)
    log = b"".join(
        batch(
            [
                Record(offset=2 * i, timestamp=1000, key=b"", value=large),
                Record(offset=2 * i + 1, timestamp=i, key=b"", value=b""),
            ],
            Codec.ZSTD,
        )
        for i in range(12)
    )
    lowest, sound = lowest_timestamps(log, walk(log))

    assert lowest.tolist() == list(range(12))
    assert sound.all()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x0e\0\0\0\x01\x01\0",  # says 7 bytes, has 6
        b"\x0c\0\0\0\x01\x01\0\0",  # a byte too many
        b"\x01\0\0\0\x01\x01\0",  # a negative length
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",  # a number without end
        b"\x0c\0\xff\xff\xff\xff\xff",  # a delta that runs out of its record
    ],
)
def test_records_that_do_not_add_up_are_never_believed(body: bytes) -> None:
    good = write_batch([Record(offset=9, timestamp=4, key=None, value=None)])
    log = write_batch([], base_offset=5, base_timestamp=50, body=body, count=1) + good
    lowest, sound = lowest_timestamps(log, walk(log))

    assert sound.tolist() == [False, True]
    assert lowest[1] == 4


def test_records_that_cannot_be_unpacked_are_never_believed() -> None:
    log = write_batch([], base_offset=5, body=b"\x99 no frame", attributes=3, count=1)

    assert lowest_timestamps(log, walk(log))[1].tolist() == [False]


def test_an_emptied_batch_has_no_lowest() -> None:
    log = write_batch([], base_offset=5, attributes=3, last_offset_delta=9)

    assert lowest_timestamps(log, walk(log))[1].tolist() == [False]
