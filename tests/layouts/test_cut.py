from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.batch.decode import decode
from maxbrod.errors import CorruptDataError
from maxbrod.layouts.kafka.format import SegmentLimits
from maxbrod.layouts.kafka.slices import cut_slice, verify_slice
from maxbrod.model import Codec
from support.native_logs import NAME, Batch, archive, batches, check_rows, data_batch, logs, new_storage

WHOLE = SegmentLimits(hole_offsets_min=1 << 60)


@given(log=batches(), data=st.data(), mode=st.sampled_from(["auto", "source", "zstd"]))
def test_a_cut_holds_exactly_the_batches_below_the_offset(log: list[Batch], data: st.DataObject, mode: str) -> None:
    storage = new_storage()
    (row,) = archive(storage, [batch.data for batch in log], mode=mode, limits=WHOLE)
    end = data.draw(
        st.sampled_from([log[-1].last + 1, *(batch.first for batch in log), *(batch.last for batch in log)])
    )
    kept = [batch for batch in log if batch.last < end]
    cut = cut_slice(storage, row, end, NAME)

    if not kept:
        assert cut is None
        return
    assert cut is not None
    check_rows(kept, (cut,), None)
    assert verify_slice(storage, cut) == []
    assert (cut.codec, cut.path != row.path) == (row.codec, True)
    stored, came = logs(storage, (cut,)), b"".join(batch.data for batch in kept)
    assert decode(stored).equals(decode(came)) if mode == "zstd" else stored == came


def test_a_cut_of_one_slice_of_a_pack_leaves_the_others_alone() -> None:
    storage = new_storage()
    first, second = archive(storage, [data_batch(0), data_batch(5000) + data_batch(5001)], packed=True)
    before = logs(storage, (first, second))
    cut = cut_slice(storage, second, 5001, NAME)

    assert cut is not None
    assert logs(storage, (cut,)) == data_batch(5000)
    assert logs(storage, (first, second)) == before


def test_a_damaged_slice_is_never_cut_into_a_sound_one() -> None:
    storage = new_storage()
    (row,) = archive(storage, [data_batch(0, codec=Codec.GZIP), data_batch(1)])
    damaged = bytearray(storage.get(row.path))
    damaged[-1] ^= 1
    storage.delete([row.path])
    storage.put(row.path, damaged)

    with pytest.raises(CorruptDataError):
        cut_slice(storage, row, 1, NAME)
    assert [each.path for each in storage.list()] == [row.path]
