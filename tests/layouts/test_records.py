"""Arrow records into a native archive and back: nothing changes, wherever batches, portions and slices end."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.batch.headers import walk
from maxbrod.errors import RefusedError
from maxbrod.layouts.kafka import records as records_module
from maxbrod.layouts.kafka.format import SegmentLimits
from maxbrod.layouts.kafka.reader import read_log
from maxbrod.layouts.kafka.records import append_records
from maxbrod.layouts.kafka.slices import verify_slice
from maxbrod.layouts.kafka.writer import ArchiveWriter
from maxbrod.layouts.reader import read_records
from maxbrod.model import Codec
from support.given_records import Given, batch
from support.storages import fresh_storage

NAME: dict[str, Any] = {"topic": "orders", "topic_id": "0123456789abcdefghijkl", "partition": 0}


@st.composite
def partitions(draw: st.DrawFn) -> list[Given]:
    steps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 99, 100, 101, 5000, 1 << 33]), min_size=1, max_size=30))
    offset = draw(st.sampled_from([0, 5, 1 << 40]))
    found = []
    for step in steps:
        key, value = (draw(st.sampled_from([None, b"", b"x", b"y" * 300])) for _ in range(2))
        headers = draw(st.sampled_from([(), ((b"h", None),), ((b"h", b""), (b"h", b"2"))]))
        found.append(
            Given(
                offset=offset,
                timestamp=draw(st.sampled_from([-5, 0, 7, 1_600_000_000_001])),
                timestamp_type=draw(st.sampled_from([0, 0, 1])),
                key=key,
                value=value,
                headers=headers,
            )
        )
        offset += step
    return found


@settings(max_examples=100)
@given(
    log=partitions(),
    cut=st.integers(0, 30),
    codec=st.sampled_from(list(Codec)),
    portion_bytes=st.sampled_from([1, 200, 1 << 20]),
    batch_bytes_max=st.sampled_from([100, 1_000_000]),
)
def test_records_come_back_as_they_went_in(
    log: list[Given], cut: int, codec: Codec, portion_bytes: int, batch_bytes_max: int
) -> None:
    with fresh_storage() as storage, patch.object(records_module, "_PART_BYTES", portion_bytes):
        with ArchiveWriter(storage, run_id="r", limits=SegmentLimits(hole_offsets_min=100)) as archive:
            writer = archive.partition(**NAME, packed=False)
            for part in (log[:cut], log[cut:]):
                append_records(writer, batch(part), codec=codec, batch_bytes_max=batch_bytes_max)

        found = pa.Table.from_batches(each for part in writer.slices for each in read_records(storage, part))
        assert found.equals(pa.Table.from_batches([batch(log)]))
        for each in writer.slices:
            assert verify_slice(storage, each) == []
            headers = walk(read_log(storage, each))
            # What is wide enough for a row of its own lies within no slice.
            assert (headers["base_offset"][1:] - headers.last_offset[:-1] <= 100).all()
            assert each.end_offset - each.base_offset <= 100 * each.records


@pytest.mark.parametrize("offsets", [[0, 1, 1], [0, 2, 1]])
def test_an_offset_is_never_written_twice_nor_backwards(offsets: list[int]) -> None:
    with fresh_storage() as storage, ArchiveWriter(storage, run_id="r") as archive:
        writer = archive.partition(**NAME, packed=False)
        with pytest.raises(RefusedError, match="offsets must rise") as caught:
            append_records(writer, batch([Given(offset=offset) for offset in offsets]))
        assert (caught.value.object_name, caught.value.offset) == ("orders-0", 1)
