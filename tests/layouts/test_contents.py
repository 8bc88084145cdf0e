"""The table of contents of an object says what a catalog would say of it, and no other program stumbles over it."""

from __future__ import annotations

import cramjam
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.batch.headers import walk
from maxbrod.errors import CorruptDataError
from maxbrod.layouts.kafka.contents import CONTROL_TYPE, read_contents
from maxbrod.layouts.kafka.format import is_framed, parse_segment_path, run_of_pack
from support.native_logs import NAME, Batch, archive, batches, data_batch, marker, new_storage


@settings(max_examples=50)
@given(log=batches(), mode=st.sampled_from(["auto", "source", "zstd"]), packed=st.booleans())
def test_it_says_what_the_catalog_says_of_every_slice(log: list[Batch], mode: str, packed: bool) -> None:
    storage = new_storage()
    slices = archive(storage, [batch.data for batch in log], mode=mode, packed=packed)
    for path in {each.path for each in slices}:
        contents = read_contents(storage, path, storage.head(path).size)
        if not packed and not is_framed(path):
            assert contents is None
            found = parse_segment_path(path)
            assert found is not None
            assert (found.topic, found.topic_id, found.partition) == (NAME.topic, NAME.topic_id, NAME.partition)
            continue
        assert contents is not None
        assert contents.run_id == "run-1"
        assert not packed or run_of_pack(path) == "run-1"
        assert [each.slice for each in contents.entries] == [each for each in slices if each.path == path]
        for each in contents.entries:
            assert (each.topic, each.topic_id, each.partition) == (NAME.topic, NAME.topic_id, NAME.partition)
            assert each.epochs[0] == (each.slice.base_offset, each.slice.first_leader_epoch)


def test_a_pack_is_still_one_log_and_its_table_is_a_control_batch_that_consumers_pass_over() -> None:
    storage = new_storage()
    log = data_batch(0, 5) + marker(5, 7, 0)
    (row,) = archive(storage, [log], packed=True)
    stored = bytes(storage.get(row.path))
    headers = walk(stored, whole=True)
    assert len(headers) == 3
    assert headers.control.tolist() == [False, True, True]
    assert headers["producer_id"].tolist()[-1] == -1
    assert CONTROL_TYPE.to_bytes(2, "big") in stored[row.bytes :]


def test_a_log_in_frames_decompresses_to_the_log_alone() -> None:
    storage = new_storage()
    log = data_batch(0, 50, value=b"a" * 100)
    for packed in (False, True):
        (row,) = archive(storage, [log], mode="zstd", packed=packed)
        stored = np.frombuffer(storage.get(row.path), np.uint8)
        assert bytes(cramjam.zstd.decompress(stored)) == log


@pytest.mark.parametrize("mode", ["source", "zstd"])
def test_a_cut_or_damaged_end_is_recognised(mode: str) -> None:
    storage = new_storage()
    (row,) = archive(storage, [data_batch(0, 5)], mode=mode, packed=True)
    stored = bytes(storage.get(row.path))
    for cut in range(1, len(stored)):
        storage.replace(row.path, stored[:-cut])
        assert read_contents(storage, row.path, len(stored) - cut) is None
    first = len(stored) - int.from_bytes(stored[-16:-8], "big")
    for at in range(first + 17, len(stored) - 16):
        storage.replace(row.path, stored[:at] + bytes([stored[at] ^ 1]) + stored[at + 1 :])
        with pytest.raises(CorruptDataError):
            read_contents(storage, row.path, len(stored))
