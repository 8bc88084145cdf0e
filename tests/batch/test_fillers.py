"""A filler is a sound batch of empty records, of any size that it may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.batch.decode import decode
from maxbrod.batch.fillers import FILLER_RECORDS_MAX, emptied, filler
from maxbrod.batch.headers import walk

# Where the varint of the offset delta grows by a byte.
EDGES = st.sampled_from([1, 2, 63, 64, 65, 8191, 8192, 8193])


@given(count=EDGES | st.integers(1, 20_000), timestamp_ms=st.integers(-1, 1 << 50))
def test_a_filler_decodes_into_so_many_empty_records(count: int, timestamp_ms: int) -> None:
    records = decode(filler(count, timestamp_ms=timestamp_ms))
    assert records.column("offset").to_pylist() == list(range(count))
    assert records.column("key").null_count == records.column("value").null_count == count
    assert set(records.column("timestamp_ms").to_pylist()) == {timestamp_ms}
    assert records.column("headers").flatten().to_pylist() == []


def test_the_largest_filler_fits_into_what_a_broker_takes_by_default() -> None:
    batch = filler(FILLER_RECORDS_MAX, timestamp_ms=0)
    assert walk(batch)["count"].tolist() == [FILLER_RECORDS_MAX]
    assert len(batch) < 1_048_588


@pytest.mark.parametrize("count", [0, FILLER_RECORDS_MAX + 1])
def test_a_filler_that_cannot_be_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="1 to 1000000"):
        filler(count, timestamp_ms=0)


def test_an_emptied_batch_keeps_its_offset_and_its_epoch_and_nothing_else() -> None:
    headers = walk(emptied(1 << 40, leader_epoch=7), whole=True)
    assert (int(headers["base_offset"][0]), int(headers.last_offset[0])) == (1 << 40, 1 << 40)
    assert (int(headers["leader_epoch"][0]), int(headers["count"][0])) == (7, 0)
