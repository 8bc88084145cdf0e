"""A row calls its lowest timestamp exact only if it is: queries leave segments out by it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.layouts.kafka.described_batches import TimestampScan
from maxbrod.layouts.kafka.format import SegmentLimits
from maxbrod.layouts.kafka.slices import verify_slice
from maxbrod.model import Codec
from support.native_logs import Batch, archive, batches, data_batch, new_storage, pack
from support.plain_batches import Record


def records_at(offset: int, *times: int) -> list[Record]:
    return [Record(offset=offset + i, timestamp=at, key=b"k", value=b"v") for i, at in enumerate(times)]


@settings(max_examples=60)
@given(batches(), st.booleans(), st.booleans())
def test_a_lowest_timestamp_is_never_called_exact_when_a_record_is_older(
    log: list[Batch], exact: bool, looking: bool
) -> None:
    look = TimestampScan() if looking else None
    storage = new_storage()
    chunks = [batch.data for batch in log]
    for each in archive(storage, chunks, limits=SegmentLimits(records_max=3), exact=exact, look=look):
        inside = [batch for batch in log if each.base_offset <= batch.first < each.end_offset]
        times = [at for batch in inside for at in batch.times]
        if each.min_timestamp_exact:
            assert each.min_timestamp == min(times)
        # What was looked into is known, but old messages have no time.
        dated = len(times) == sum(batch.records for batch in inside) > 0
        assert each.min_timestamp_exact == dated or not exact
        assert verify_slice(storage, each) == []


@pytest.mark.parametrize(
    ("log", "exact"),
    [
        (data_batch(0) + data_batch(1), True),
        (pack(records_at(0, 9, 5, 7), attributes=0x08), True),
        (pack(records_at(0, 9, 5, 7)), False),
        (data_batch(0) + pack(records_at(1, 9, 5, 7)), False),
    ],
)
def test_headers_alone_tell_the_lowest_timestamp_of_single_records_and_of_log_append_time(
    log: bytes, exact: bool
) -> None:
    (found,) = archive(new_storage(), [log], exact=False)
    assert found.min_timestamp_exact == exact


@pytest.mark.parametrize("codec", list(Codec))
def test_a_look_makes_small_batches_exact_in_every_codec(codec: Codec) -> None:
    storage = new_storage()
    log = pack(records_at(0, 9, 5, 7), codec) + data_batch(3, 40, codec=codec)
    (found,) = archive(storage, [log], exact=False, look=TimestampScan())
    assert (found.min_timestamp, found.min_timestamp_exact) == (5, True)
    assert verify_slice(storage, found) == []


def test_a_row_that_calls_exact_what_is_not_is_found() -> None:
    storage = new_storage()
    (found,) = archive(storage, [pack(records_at(0, 9, 5, 7))], exact=False)
    assert found.min_timestamp == 9
    assert verify_slice(storage, found) == []
    (problem,) = verify_slice(storage, replace(found, min_timestamp_exact=True))
    assert "min timestamp is 5, but the catalog says 9" in problem.message
