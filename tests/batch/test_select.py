from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from examples import record_lists, to_arrow, to_records
from hypothesis import given
from hypothesis import strategies as st
from reference import Record, write_batch

from maxbrod.batch.decode import decode
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.batch.select import select
from maxbrod.errors import UsageError
from maxbrod.model import Codec


@st.composite
def cuts(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    batches = draw(st.lists(record_lists(), min_size=1, max_size=4))
    codecs = [draw(st.sampled_from(list(Codec))) for _ in batches]
    buffer = np.concatenate([encode(to_arrow(b), codec=c) for b, c in zip(batches, codecs, strict=True)])
    rows = sum(len(batch) for batch in batches)
    style = draw(st.sampled_from(["any", "all", "none"]))
    keep = [draw(st.booleans()) if style == "any" else style == "all" for _ in range(rows)]
    return buffer, np.array(keep, np.bool_)


@given(case=cuts())
def test_exactly_the_kept_records_remain_at_their_offsets(case: tuple[np.ndarray, np.ndarray]) -> None:
    buffer, keep = case
    chosen = select(buffer, walk(buffer), keep)

    assert decode(chosen).equals(decode(buffer).filter(pa.array(keep)))


@given(case=cuts())
def test_a_dense_cut_keeps_all_but_the_offsets_and_leaves_no_holes(case: tuple[np.ndarray, np.ndarray]) -> None:
    buffer, keep = case
    chosen = select(buffer, walk(buffer), keep, dense=True)
    headers = walk(chosen)
    fields = ["timestamp_ms", "timestamp_type", "key", "value", "headers", "producer_id"]

    assert decode(chosen, columns=fields).equals(decode(buffer, columns=fields).filter(pa.array(keep)))
    assert (headers["count"] == headers["last_offset_delta"] + 1).all()
    assert (headers["count"] > 0).all()


@given(case=cuts())
def test_batches_that_lose_nothing_are_the_same_bytes(case: tuple[np.ndarray, np.ndarray]) -> None:
    buffer, _ = case
    headers = walk(buffer)

    assert select(buffer, headers, np.ones(headers["count"].sum(), np.bool_)).tobytes() == buffer.tobytes()


def test_only_the_batch_that_loses_a_record_is_rewritten() -> None:
    first, second = (
        write_batch([Record(offset=o + i, timestamp=i, key=None, value=b"v" * 50) for i in range(4)]) for o in (0, 10)
    )
    buffer = np.frombuffer(first + second, np.uint8)
    keep = np.array([True] * 4 + [True, False, True, True])
    chosen = select(buffer, walk(buffer), keep)

    assert chosen[: len(first)].tobytes() == first
    assert decode(chosen).column("offset").to_pylist() == [0, 1, 2, 3, 10, 12, 13]


def test_a_cut_batch_keeps_its_header_but_for_count_and_newest_time() -> None:
    records = [Record(offset=5 + i, timestamp=t, key=b"k", value=b"v") for i, t in enumerate([100, 900, 300])]
    buffer = np.frombuffer(
        write_batch(
            records, attributes=0x10, leader_epoch=2, producer_id=8, producer_epoch=1, base_sequence=40, base_offset=3
        ),
        np.uint8,
    )
    before, after = walk(buffer), walk(select(buffer, walk(buffer), np.array([False, False, True])))
    changed = {name for name in before.fields if before[name].tolist() != after[name].tolist()}

    assert changed == {"batch_length", "crc", "count", "max_timestamp"}
    assert (after["count"].tolist(), after["max_timestamp"].tolist()) == ([1], [300])


def test_log_append_time_survives_a_cut() -> None:
    records = [Record(offset=i, timestamp=0, key=None, value=b"v") for i in range(3)]
    buffer = np.frombuffer(write_batch(records, attributes=0x08, max_timestamp=777), np.uint8)
    chosen = decode(select(buffer, walk(buffer), np.array([True, False, True])))

    assert chosen.column("timestamp_ms").to_pylist() == [777, 777]


def test_a_dense_cut_drops_emptied_batches_and_the_delete_horizon() -> None:
    tombstone = [Record(offset=2, timestamp=50, key=b"k", value=None)]
    buffer = np.frombuffer(
        write_batch([], base_offset=0, last_offset_delta=1) + write_batch(tombstone, attributes=0x40, base_timestamp=9),
        np.uint8,
    )
    kept = select(buffer, walk(buffer), np.array([True]))
    dense = select(buffer, walk(buffer), np.array([True]), dense=True)

    assert kept.tobytes() == buffer.tobytes()
    assert walk(dense)["attributes"].tolist() == [0]
    assert to_records(decode(dense)) == tombstone


def test_a_dense_cut_numbers_hundreds_of_records_anew() -> None:
    """From the 65th on a delta takes two bytes, from the 8193rd on three, and so may a record's length."""
    records = [
        Record(offset=3 * i, timestamp=i, key=b"k", value=bytes(i % 130), headers=[(b"h", None)]) for i in range(20_000)
    ]
    buffer = np.frombuffer(write_batch(records), np.uint8)
    keep = np.arange(len(records)) % 2 == 1
    chosen = select(buffer, walk(buffer), keep, dense=True)
    kept = [replace(record, offset=i) for i, record in enumerate(records[1::2])]

    assert to_records(decode(chosen)) == kept
    assert walk(chosen)["last_offset_delta"].tolist() == [len(kept) - 1]


def test_the_newest_time_of_a_cut_batch_may_be_before_1970() -> None:
    records = [Record(offset=i, timestamp=t, key=None, value=b"v") for i, t in enumerate([-900, -100, -500])]
    buffer = np.frombuffer(write_batch(records), np.uint8)
    chosen = select(buffer, walk(buffer), np.array([True, False, True]))

    assert walk(chosen)["max_timestamp"].tolist() == [-500]


@pytest.mark.parametrize("dense", [False, True])
def test_markers_pass_through_a_cut_untouched(dense: bool) -> None:
    marker = Record(offset=9, timestamp=3, key=bytes(4), value=b"\0\0\0\0\0\7")
    control = write_batch([marker], attributes=0x30, producer_id=5, producer_epoch=2, leader_epoch=1)
    plain = write_batch([Record(offset=i, timestamp=0, key=None, value=b"v") for i in range(3)])
    buffer = np.frombuffer(plain + control, np.uint8)
    chosen = select(buffer, walk(buffer), np.array([True, False, False, True]), dense=dense)

    assert chosen[-len(control) :].tobytes() == control
    assert select(buffer, walk(buffer), np.array([True] * 3 + [False]), dense=dense).tobytes() == plain


@pytest.mark.parametrize(("codec", "levels"), [(Codec.GZIP, (1, 9)), (Codec.ZSTD, (1, 19))])
def test_a_cut_batch_is_packed_at_the_asked_level(codec: Codec, levels: tuple[int, int]) -> None:
    text = [b'{"user": %d, "page": %d}' % (i * 7919 % 1000, i * 104729 % 5000) for i in range(3000)]
    records = [Record(offset=i, timestamp=i, key=None, value=value) for i, value in enumerate(text)]
    buffer = encode(to_arrow(records), codec=codec)
    keep = np.arange(len(records)) > 0
    low, high = (select(buffer, walk(buffer), keep, level=level) for level in levels)

    assert high.size < low.size
    assert to_records(decode(high)) == to_records(decode(low)) == records[1:]


def test_a_mask_of_the_wrong_length_is_refused() -> None:
    buffer = np.frombuffer(write_batch([Record(offset=0, timestamp=0, key=None, value=None)]), np.uint8)

    for rows in (0, 2):
        with pytest.raises(UsageError, match="the mask is for"):
            select(buffer, walk(buffer), np.ones(rows, np.bool_))


def test_nothing_selects_to_nothing() -> None:
    assert select(b"", walk(b""), np.empty(0, np.bool_)).size == 0
