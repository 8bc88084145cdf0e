"""Buffers larger than one group of `decode`, and guesses of `decode` that prove too small."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.batch import compression as unpack_module
from maxbrod.batch.compression import Arena, compress, unpack
from maxbrod.batch.decode import Found, decode, scan
from maxbrod.batch.headers import BatchHeaders, walk
from maxbrod.errors import CorruptDataError, RefusedError
from maxbrod.model import Codec
from support.memory import peak_bytes
from support.plain_batches import Record, write_batch, write_record
from support.record_examples import record_lists, to_records

if TYPE_CHECKING:
    pass

GROUP_BYTES = 256 << 10


def batch_of(records: list[Record], codec: Codec, **fields: int) -> bytes:
    base = records[0]
    body = b"".join(write_record(record, base.offset, base.timestamp) for record in records)
    squeezed = compress(codec, np.frombuffer(body, np.uint8), 9 if codec is Codec.GZIP else 19)
    return write_batch(records, attributes=int(codec), body=squeezed, **fields)


def varied(batches: int, seed: int, *, value_bytes: int = 3000) -> list[list[Record]]:
    """Batches of 10 records with all there is: nulls, empties, headers, values that hardly compress."""
    rng = random.Random(seed)

    def record(offset: int) -> Record:
        return Record(
            offset=offset,
            timestamp=rng.randrange(1 << 41),
            key=rng.choice([None, b"", rng.randbytes(9)]),
            value=rng.choice([None, b"", rng.randbytes(value_bytes), rng.randbytes(value_bytes)]),
            headers=[
                (rng.randbytes(rng.randrange(5)), rng.choice([None, b"", rng.randbytes(7)]))
                for _ in range(rng.choice([0, 0, 1, 3]))
            ],
        )

    return [[record(10 * batch + i) for i in range(10)] for batch in range(batches)]


def test_records_of_many_groups_come_out_whole_and_in_order() -> None:
    batches = varied(100, 1)
    buffer = b"".join(batch_of(batch, list(Codec)[number % 5]) for number, batch in enumerate(batches))
    decoded = decode(buffer)

    assert len(buffer) > 4 * GROUP_BYTES
    decoded.validate(full=True)
    assert to_records(decoded) == [record for batch in batches for record in batch]


@given(batches=st.lists(record_lists(), min_size=1, max_size=5), codec=st.sampled_from(list(Codec)), data=st.data())
def test_it_does_not_matter_where_groups_end(batches: list[list[Record]], codec: Codec, data: st.DataObject) -> None:
    buffer = b"".join(batch_of(batch, codec, base_sequence=number % 2 - 1) for number, batch in enumerate(batches))
    whole = decode(buffer)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(unpack_module, "_GROUP_BYTES", data.draw(st.integers(1, len(buffer))))
        assert decode(buffer).equals(whole)
    assert to_records(whole) == [record for batch in batches for record in batch]


def test_values_that_unpack_to_far_more_than_the_first_guess_follow_what_was_there() -> None:
    first, last = varied(25, 2), varied(1, 3)[0]
    large = [[Record(offset=i, timestamp=0, key=b"k" * 50_000, value=b"v" * 300_000)] for i in range(10)]
    batches = [*first, *large, last]
    buffer = b"".join(batch_of(batch, Codec.ZSTD) for batch in batches)
    decoded = decode(buffer)

    assert len(b"".join(batch_of(batch, Codec.ZSTD) for batch in first)) > GROUP_BYTES
    assert sum(len(record.value or b"") for batch in large for record in batch) > 2 * len(buffer)
    assert to_records(decoded) == [record for batch in batches for record in batch]


def test_more_records_than_bytes_are_found_all_the_same() -> None:
    count, batches = 8000, 48
    records = [Record(offset=i, timestamp=0, key=None, value=b"") for i in range(count)]
    body = b"".join(write_record(record, 0, 0) for record in records)
    squeezed = compress(Codec.ZSTD, np.frombuffer(body, np.uint8), 19)
    buffer = b"".join(
        write_batch(
            records, attributes=int(Codec.ZSTD), body=squeezed, base_offset=number * count, last_offset_delta=count - 1
        )
        for number in range(batches)
    )
    rows = np.arange(count * batches)
    decoded = decode(buffer)

    assert GROUP_BYTES < len(buffer) < len(rows)
    assert np.array_equal(decoded.column("offset").to_numpy(), rows)
    assert decoded.column("key").null_count == len(rows)
    assert decoded.column("value").equals(pa.array([b""] * len(rows), pa.binary()))


def test_room_for_records_grows_from_any_first_guess_and_keeps_what_is_there() -> None:
    found = Found(0)
    for rows in (1, 7, 3, 40):
        first = found.add_rows(rows)
        found.since("offset", first)[:] = np.arange(first, first + rows)
        found.since("key_ends", first)[1:] = np.arange(first, first + rows) + 1

    assert found["offset"].tolist() == list(range(51))
    assert found["key_ends"].tolist() == list(range(52))


def test_an_error_in_a_later_group_names_its_batch_and_spoils_nothing() -> None:
    sound = [batch_of(batch, Codec.LZ4) for batch in varied(30, 4)]
    record = Record(offset=900, timestamp=0, key=b"k", value=b"v")
    damaged = write_batch([record], attributes=int(Codec.LZ4), body=compress(Codec.LZ4, np.zeros(40, np.uint8)))
    before, after = b"".join(sound[:25]), b"".join(sound[25:])
    expected = decode(before)

    assert len(before) > GROUP_BYTES
    with pytest.raises(CorruptDataError) as caught:
        decode(before + damaged + after)
    assert (caught.value.offset, caught.value.position) == (900, len(before))
    assert decode(before).equals(expected)


def test_an_error_names_its_batch_also_where_only_some_batches_are_asked_for() -> None:
    sound = [write_batch([Record(offset=i, timestamp=0, key=None, value=b"v")]) for i in range(6)]
    damaged = write_batch([Record(offset=9, timestamp=0, key=None, value=b"v")], body=b"\0" * 8)
    buffer = b"".join(sound) + damaged
    headers = walk(buffer).take(np.array([1, 4, 6]))

    with pytest.raises(CorruptDataError) as caught:
        decode(buffer, headers)
    assert (caught.value.offset, caught.value.position) == (9, len(buffer) - len(damaged))


def test_threads_decode_at_once_without_touching_each_others_scratch() -> None:
    buffers = [b"".join(batch_of(batch, Codec.LZ4) for batch in varied(40, seed)) for seed in range(4)]
    expected = [decode(buffer) for buffer in buffers]
    with ThreadPoolExecutor(4) as pool:
        decoded = list(pool.map(decode, buffers * 10))

    assert all(one.equals(expected[number % 4]) for number, one in enumerate(decoded))


def test_unpacked_bytes_of_one_group_make_room_for_the_next() -> None:
    rng = random.Random(5)
    records = [Record(offset=0, timestamp=0, key=None, value=bytes(rng.choices(range(8), k=500_000)))]
    buffer = batch_of(records, Codec.ZSTD) * 40

    assert peak_bytes(lambda: decode(buffer, columns=["offset"])) < 12 << 20  # 20 MB are unpacked in all


def test_a_count_alone_allocates_nothing() -> None:
    one = Record(offset=5, timestamp=0, key=None, value=None)
    bad = write_batch([one], count=(1 << 31) - 1, last_offset_delta=(1 << 31) - 2)

    def refused() -> None:
        with pytest.raises(CorruptDataError, match="more than its bytes can"):
            decode(bad)

    assert peak_bytes(refused) < 8 << 20


def repeated(record: Record, times: int) -> tuple[np.ndarray, BatchHeaders]:
    """One batch named many times over: a column can be filled past 2 GiB without having as many bytes."""
    data = np.frombuffer(write_batch([record]), np.uint8)
    return data, walk(data).take(np.zeros(times, np.int64))


MEGABYTE = bytes(1 << 20)


@pytest.mark.parametrize(
    "record",
    [
        Record(offset=3, timestamp=0, key=MEGABYTE, value=None),
        Record(offset=3, timestamp=0, key=None, value=MEGABYTE),
        Record(offset=3, timestamp=0, key=None, value=None, headers=[(MEGABYTE, None)]),
        Record(offset=3, timestamp=0, key=None, value=None, headers=[(b"", MEGABYTE)]),
    ],
    ids=["keys", "values", "header keys", "header values"],
)
@pytest.mark.parametrize("groups", [1, 2])
def test_more_than_one_arrow_column_holds_is_refused_with_a_way_out(record: Record, groups: int) -> None:
    data, headers = repeated(record, 2048 // groups)
    found = Found(2048)
    for _ in range(groups - 1):
        scan(data, headers, unpack(data, headers, Arena(0)), found)

    with pytest.raises(RefusedError, match="more than 2 GiB") as caught:
        scan(data, headers, unpack(data, headers, Arena(0)), found)
    assert (caught.value.offset, caught.value.position) == (3, 0)
    assert caught.value.hint == "decode fewer batches at a time"
