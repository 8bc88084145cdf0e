"""Bytes, columns and masks that nobody should hand in, and the damage they must not do."""

from __future__ import annotations

import gzip

import numpy as np
import pyarrow as pa
import pytest

from maxbrod.batch.columns import RECORD_SCHEMA, conform
from maxbrod.batch.compression import compress
from maxbrod.batch.decode import decode
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.batch.patch import patch
from maxbrod.batch.transactions import Transactions, committed_batches, from_markers
from maxbrod.errors import CorruptDataError, UnsupportedFormatError, UsageError
from maxbrod.model import Codec
from support.memory import peak_bytes
from support.old_messages import message
from support.plain_batches import Record, write_batch
from support.record_examples import to_arrow
from support.transactions import ABORT, COMMIT, data, marker

ONE = Record(offset=5, timestamp=0, key=b"k", value=b"v")


def test_an_abort_without_records_does_not_take_back_what_was_committed_before() -> None:
    log = data(0, 9, transactional=False) + data(1, 1) + marker(2, 1, COMMIT) + marker(3, 1, ABORT)
    headers = walk(log)

    assert committed_batches(headers, from_markers(log, headers).aborted).tolist() == [True, True, False, False]


@pytest.mark.parametrize("attributes", [0x10, 0x30])
def test_a_batch_that_compaction_emptied_opens_no_transaction(attributes: int) -> None:
    log = write_batch([], base_offset=5, attributes=attributes, producer_id=1)

    assert from_markers(log, walk(log)) == Transactions(aborted=(), undecided=())


def test_a_control_record_with_another_key_is_not_taken_for_a_marker() -> None:
    log = write_batch([Record(offset=0, timestamp=0, key=b"\0\0", value=b"")], attributes=0x30, producer_id=1)

    with pytest.raises(CorruptDataError):
        from_markers(log, walk(log))


def test_a_marker_that_cannot_be_unpacked_is_named() -> None:
    log = data(0, 1) + write_batch([ONE], attributes=0x33, producer_id=1, body=b"garbage")

    with pytest.raises(CorruptDataError) as caught:
        from_markers(log, walk(log))
    assert (caught.value.offset, caught.value.position) == (5, len(data(0, 1)))


def test_what_stands_before_the_position_of_an_error_is_sound() -> None:
    wrong_crc, wrong_magic = bytearray(write_batch([ONE])), bytearray(write_batch([ONE]))
    wrong_crc[-1] ^= 1
    wrong_magic[16] = 9
    with pytest.raises(CorruptDataError, match="checksum") as caught:
        walk(wrong_crc + wrong_magic)
    assert caught.value.position == 0

    with pytest.raises(UnsupportedFormatError, match="0x0080") as flags:
        walk(write_batch([ONE], attributes=0x80) + wrong_crc)
    assert flags.value.position == 0


@pytest.mark.parametrize(("outer", "inner"), [((1 << 63) - 1, [-5]), (3, [0, 9])])
def test_offsets_inside_an_old_wrapper_cannot_leave_it(outer: int, inner: list[int]) -> None:
    value = gzip.compress(b"".join(message(1, Record(offset=i, timestamp=0, key=None, value=b"v")) for i in inner))
    with pytest.raises(CorruptDataError):
        decode(message(1, Record(offset=outer, timestamp=0, key=None, value=value), attributes=1))


def test_many_small_bombs_are_not_held_at_once() -> None:
    body = compress(Codec.ZSTD, np.zeros(32 << 20, np.uint8), 1)
    bombs = write_batch([ONE], attributes=int(Codec.ZSTD), body=body) * 16

    def refused() -> None:
        with pytest.raises(CorruptDataError):
            decode(bombs, decompressed_bytes_max=32 << 20)

    assert peak_bytes(refused) < 200 << 20


def test_nulls_where_none_may_be_are_refused_in_the_very_schema_too() -> None:
    whole = conform(to_arrow([ONE, ONE]))
    kind = RECORD_SCHEMA.field("headers").type
    for column, values in (
        (0, pa.array([None, 1], pa.int64())),
        (5, pa.array([None, []], kind)),
        (5, pa.array([[{"key": None, "value": b"x"}], []], kind)),
        (5, pa.array([[None], []], kind)),
    ):
        with pytest.raises(UsageError, match="must not be null"):
            encode(whole.set_column(column, RECORD_SCHEMA.field(column), values))


def test_a_value_that_does_not_fit_its_field_is_not_cut_to_fit() -> None:
    buffer = np.frombuffer(write_batch([ONE]), np.uint8).copy()
    with pytest.raises(ValueError, match="base_sequence"):
        patch(buffer, walk(buffer), base_sequence=np.array([(1 << 31) + 5]))


def test_a_legacy_wrapper_bomb_is_unpacked_one_at_a_time() -> None:
    inner = message(1, Record(offset=0, timestamp=0, key=None, value=bytes(24 << 20)))
    value = gzip.compress(inner, 1)
    bombs = b"".join(
        message(1, Record(offset=row, timestamp=0, key=None, value=value), attributes=1) for row in range(12)
    )

    assert decode(bombs, columns=["offset"]).column("offset").to_pylist() == list(range(12))
    assert peak_bytes(lambda: decode(bombs, columns=["offset"])) < 250 << 20


@pytest.mark.parametrize("inner", [[0, 5, 2], [3, 3], [-1, 4]])
def test_offsets_inside_an_old_wrapper_must_rise(inner: list[int]) -> None:
    value = gzip.compress(b"".join(message(1, Record(offset=i, timestamp=0, key=None, value=b"v")) for i in inner))

    with pytest.raises(CorruptDataError, match="do not rise") as caught:
        decode(message(1, Record(offset=9, timestamp=0, key=None, value=value), attributes=1))
    assert caught.value.offset == 9


def test_an_old_wrapper_without_messages_gives_no_rows() -> None:
    empty = message(1, Record(offset=(1 << 63) - 1, timestamp=0, key=None, value=gzip.compress(b"")), attributes=1)

    assert decode(empty).num_rows == 0


def test_a_negative_offset_of_an_old_message_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="negative offset"):
        walk(message(1, Record(offset=-5, timestamp=0, key=None, value=b"v")))


@pytest.mark.parametrize(("column", "value"), [("offset", -1), ("timestamp_type", 7), ("timestamp_type", -2)])
def test_values_that_kafka_does_not_know_are_not_encoded(column: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"the record column {column} has {value}"):
        encode(to_arrow([ONE], **{column: value}))


def test_a_column_of_another_kind_is_refused() -> None:
    text = to_arrow([ONE]).set_column(0, "offset", pa.array(["five"]))

    with pytest.raises(UsageError, match="offset does not fit int64"):
        encode(text)


def test_the_codec_of_a_batch_cannot_be_patched() -> None:
    buffer = np.frombuffer(write_batch([ONE]), np.uint8).copy()

    with pytest.raises(ValueError, match="cannot patch the codec"):
        patch(buffer, walk(buffer), attributes=int(Codec.LZ4))
    patch(buffer, walk(buffer), attributes=0x10)
    assert walk(buffer).transactional.tolist() == [True]


def test_asking_for_no_column_is_refused_with_the_way_to_count() -> None:
    with pytest.raises(UsageError, match="no record column") as caught:
        decode(write_batch([ONE]), columns=[])
    assert "count" in (caught.value.hint or "")


def test_any_array_of_bytes_and_any_choice_of_batches_will_do() -> None:
    buffer = np.frombuffer(write_batch([ONE]) * 4, np.int8)

    assert decode(buffer).num_rows == 4
    assert decode(buffer, walk(buffer).take(slice(None, None, 2))).num_rows == 2
