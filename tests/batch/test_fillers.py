"""Filler batches: as many null records as asked for, in a batch that a broker takes."""

from __future__ import annotations

import numpy as np
import pytest
from examples import to_records
from reference import Record, write_batch

from maxbrod.batch.compression import decompress
from maxbrod.batch.decode import decode
from maxbrod.batch.fillers import COUNT_MAX, filler_batch
from maxbrod.batch.headers import HEADER_BYTES, walk
from maxbrod.batch.patch import patch
from maxbrod.model import Codec


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 8191, 8192, 8193, 20_000])
def test_a_filler_is_byte_for_byte_a_batch_of_null_records(count: int) -> None:
    """Around 64 and 8192 the offset deltas, and with them the records, grow by a byte."""
    batch = filler_batch(count, timestamp_ms=123)
    records = [Record(offset=i, timestamp=123, key=None, value=None) for i in range(count)]

    assert to_records(decode(batch)) == records
    assert decompress(Codec.ZSTD, batch[HEADER_BYTES:]).tobytes() == write_batch(records)[HEADER_BYTES:]


def test_the_largest_filler_stays_below_what_a_broker_takes_by_default() -> None:
    batch = filler_batch(COUNT_MAX)
    headers = walk(batch)

    assert (headers["count"].tolist(), headers.last_offset.tolist()) == ([COUNT_MAX], [COUNT_MAX - 1])
    assert batch.size < 1_048_588
    offset = decode(batch, columns=["offset"]).column("offset")
    assert np.array_equal(np.frombuffer(offset.buffers()[1], np.int64)[:COUNT_MAX], np.arange(COUNT_MAX))


def test_patching_one_filler_leaves_the_next_as_it_was() -> None:
    first = filler_batch(100)
    before = first.tobytes()
    patch(first, walk(first), producer_id=9, producer_epoch=0, base_sequence=0)

    assert filler_batch(100).tobytes() == before


@pytest.mark.parametrize("count", [0, -1, COUNT_MAX + 1])
def test_a_filler_of_no_size_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="records"):
        filler_batch(count)
