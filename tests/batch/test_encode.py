from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.batch.columns import conform
from maxbrod.batch.decode import decode
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.errors import UsageError
from maxbrod.model import Codec
from support.plain_batches import Record, read_batches, write_batch
from support.record_examples import record_lists, to_arrow, to_records


@given(records=record_lists())
def test_an_encoded_batch_is_byte_for_byte_what_a_plain_writer_writes(records: list[Record]) -> None:
    assert encode(to_arrow(records), batch_bytes_max=1 << 30).tobytes() == write_batch(records)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@given(records=record_lists(), bound=st.integers(62, 2000))
def test_a_plain_reader_sees_every_encoded_record(codec: Codec, records: list[Record], bound: int) -> None:
    batches = read_batches(encode(to_arrow(records), codec=codec, batch_bytes_max=bound).tobytes())

    assert [record for batch in batches for record in batch] == records


@pytest.mark.parametrize("codec", list(Codec))
@given(records=record_lists(), bound=st.integers(62, 2000))
def test_what_is_encoded_decodes_equal_in_every_codec(codec: Codec, records: list[Record], bound: int) -> None:
    buffer = encode(to_arrow(records), codec=codec, batch_bytes_max=bound)

    assert decode(buffer).equals(conform(to_arrow(records)))
    assert set(walk(buffer).codec.tolist()) == {int(codec)}


@given(records=record_lists(size_max=30), bound=st.integers(100, 1000))
def test_no_batch_is_larger_than_its_bound_unless_one_record_is(records: list[Record], bound: int) -> None:
    headers = walk(encode(to_arrow(records), batch_bytes_max=bound))

    assert all(size <= bound or count == 1 for size, count in zip(headers.size, headers["count"], strict=True))


@given(records=record_lists(size_max=30), bound=st.integers(300, 1000))
def test_a_batch_is_filled_before_the_next_begins(records: list[Record], bound: int) -> None:
    headers = walk(encode(to_arrow(records), batch_bytes_max=bound))
    spans = headers["base_offset"][1:] - headers["base_offset"][:-1]
    # A neighbour would not have fitted, or its offset is out of reach of a 32-bit delta.
    joined = headers.size[:-1] + headers.size[1:] - 61
    assert ((joined + 24 > bound) | (headers["count"][1:] > 1) | (spans >= 1 << 31)).all()


def test_offsets_too_far_apart_for_one_batch_get_two() -> None:
    far = (1 << 31) + 5
    records = [Record(offset=offset, timestamp=0, key=None, value=b"v") for offset in (0, far)]
    headers = walk(encode(to_arrow(records)))

    assert headers["base_offset"].tolist() == [0, far]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("timestamp_type", [0, 1]),
        ("leader_epoch", [1, 2]),
        ("producer_id", [5, 6]),
        ("producer_epoch", [0, 1]),
        ("transactional", [False, True]),
        ("control", [False, True]),
        ("control", [True, True]),
        ("sequence", [4, 9]),
        ("sequence", [-1, 0]),
    ],
)
def test_records_that_one_header_cannot_describe_get_batches_of_their_own(column: str, values: list[object]) -> None:
    records = [Record(offset=i, timestamp=0, key=None, value=None) for i in range(2)]
    wanted = conform(to_arrow(records, **{column: values}))
    buffer = encode(wanted)

    assert len(walk(buffer)) == 2
    assert decode(buffer).equals(wanted)


def test_log_append_times_that_differ_get_batches_of_their_own() -> None:
    records = [Record(offset=i, timestamp=t, key=None, value=None) for i, t in enumerate([7, 7, 8])]
    wanted = conform(to_arrow(records, timestamp_type=1))
    buffer = encode(wanted)

    assert walk(buffer)["count"].tolist() == [2, 1]
    assert decode(buffer).equals(wanted)


def test_a_producers_sequence_stays_in_one_batch_across_its_wrap() -> None:
    records = [Record(offset=i, timestamp=0, key=None, value=None) for i in range(3)]
    wanted = conform(to_arrow(records, producer_id=1, producer_epoch=0, sequence=[(1 << 31) - 2, (1 << 31) - 1, 0]))
    buffer = encode(wanted)

    assert len(walk(buffer)) == 1
    assert decode(buffer).equals(wanted)


def test_a_producers_sequence_stays_in_one_batch_across_the_holes_of_compaction() -> None:
    records = [Record(offset=offset, timestamp=0, key=None, value=None) for offset in (0, 2, 9)]
    wanted = conform(to_arrow(records, producer_id=1, producer_epoch=0, sequence=[4, 6, 13]))
    buffer = encode(wanted)

    assert len(walk(buffer)) == 1
    assert decode(buffer).equals(wanted)


@pytest.mark.parametrize("offsets", [[5, 5], [5, 4], [5, 0]])
def test_offsets_that_do_not_rise_get_batches_of_their_own(offsets: list[int]) -> None:
    records = [Record(offset=offset, timestamp=0, key=None, value=b"v") for offset in offsets]
    buffer = encode(to_arrow(records))

    assert walk(buffer)["base_offset"].tolist() == offsets
    assert to_records(decode(buffer)) == records


@pytest.mark.parametrize(("span", "batches"), [((1 << 31) - 1, 1), (1 << 31, 2)])
def test_a_batch_reaches_as_far_as_a_32_bit_delta(span: int, batches: int) -> None:
    records = [Record(offset=offset, timestamp=0, key=None, value=b"v") for offset in (3, 3 + span)]
    buffer = encode(to_arrow(records))

    assert len(walk(buffer)) == batches
    assert to_records(decode(buffer)) == records


def test_a_batch_may_be_exactly_as_large_as_its_bound() -> None:
    records = [Record(offset=i, timestamp=0, key=None, value=b"v" * 70) for i in range(2)]
    exact = len(write_batch(records))

    assert walk(encode(to_arrow(records), batch_bytes_max=exact))["count"].tolist() == [2]
    assert walk(encode(to_arrow(records), batch_bytes_max=exact - 1))["count"].tolist() == [1, 1]


@pytest.mark.parametrize(("codec", "levels"), [(Codec.GZIP, (1, 9)), (Codec.ZSTD, (1, 19))])
def test_a_higher_level_compresses_better(codec: Codec, levels: tuple[int, int]) -> None:
    text = [b'{"user": %d, "page": %d}' % (i * 7919 % 1000, i * 104729 % 5000) for i in range(3000)]
    records = to_arrow([Record(offset=i, timestamp=i, key=None, value=value) for i, value in enumerate(text)])
    low, high = (encode(records, codec=codec, level=level) for level in levels)

    assert high.size < low.size
    assert decode(high).equals(decode(low))


@given(records=record_lists(size_max=20), data=st.data())
def test_boundaries_can_be_kept(records: list[Record], data: st.DataObject) -> None:
    starts = sorted(data.draw(st.sets(st.integers(0, len(records) - 1))))
    buffer = encode(to_arrow(records), starts=np.array(starts, np.int64))

    assert {records[start].offset for start in starts} <= set(walk(buffer)["base_offset"].tolist())
    assert to_records(decode(buffer)) == records


@given(records=record_lists(size_max=20), data=st.data())
def test_a_slice_of_a_larger_arrow_batch_encodes_as_itself(records: list[Record], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(records)))
    part = to_arrow(records).slice(start)

    assert to_records(decode(encode(part))) == records[start:]


def test_records_without_a_timestamp_become_create_time_of_minus_one() -> None:
    records = [Record(offset=0, timestamp=-1, key=None, value=b"v")]
    decoded = decode(encode(to_arrow(records, timestamp_type=-1)))

    assert decoded.column("timestamp_ms").to_pylist() == [-1]
    assert decoded.column("timestamp_type").to_pylist() == [0]


def test_nothing_encodes_to_nothing() -> None:
    assert encode(to_arrow([])).size == 0


@pytest.mark.parametrize("column", ["offset", "timestamp_ms", "key", "value"])
def test_records_without_a_needed_column_are_refused(column: str) -> None:
    with pytest.raises(UsageError, match=f"lack the column {column}"):
        encode(to_arrow([]).drop_columns([column]))


def test_a_null_where_none_may_be_is_refused() -> None:
    records = to_arrow([Record(offset=0, timestamp=0, key=None, value=None)])
    broken = records.set_column(0, "offset", pa.array([None], pa.int64()))

    with pytest.raises(UsageError, match="offset must not be null"):
        encode(broken)


def test_larger_arrow_types_are_accepted() -> None:
    records = [Record(offset=0, timestamp=0, key=b"k", value=b"v")]
    wide = to_arrow(records).set_column(3, "value", pa.array([b"v"], pa.large_binary()))

    assert to_records(decode(encode(wide))) == records


def test_a_key_column_without_any_value_is_all_nulls() -> None:
    records = [Record(offset=i, timestamp=0, key=None, value=b"v") for i in range(3)]

    assert to_records(decode(encode(to_arrow(records).set_column(2, "key", pa.nulls(3))))) == records


@given(records=record_lists(size_max=20), data=st.data())
def test_a_slice_keeps_the_batch_fields_of_its_own_rows(records: list[Record], data: st.DataObject) -> None:
    rows = range(len(records))
    whole = conform(
        to_arrow(
            records,
            leader_epoch=[row // 2 for row in rows],
            producer_id=[1000 + row // 3 for row in rows],
            producer_epoch=[row % 5 for row in rows],
            transactional=[row % 3 == 0 for row in rows],
            control=[row % 7 == 0 for row in rows],
        )
    )
    start = data.draw(st.integers(0, len(records)))
    part = whole.slice(start, data.draw(st.integers(0, len(records))))

    assert decode(encode(part)).equals(part)
