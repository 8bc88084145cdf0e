from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.batch.crc import crc32c, crc32c_change
from maxbrod.batch.headers import walk
from maxbrod.batch.patch import PATCHABLE, patch
from maxbrod.errors import CorruptDataError
from support.plain_batches import Record, write_batch
from support.record_examples import record_lists

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(
    batches=st.lists(record_lists(), min_size=1, max_size=4),
    producer_id=INT64,
    producer_epoch=st.integers(-1, (1 << 15) - 1),
    base_sequence=st.integers(-1, (1 << 31) - 1),
    leader_epoch=st.integers(-1, (1 << 31) - 1),
)
def test_a_patched_batch_is_what_a_plain_writer_would_have_written(
    batches: list[list[Record]], producer_id: int, producer_epoch: int, base_sequence: int, leader_epoch: int
) -> None:
    data = np.frombuffer(b"".join(map(write_batch, batches)), np.uint8).copy()
    changes: dict[str, Any] = {
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "base_sequence": base_sequence,
        "leader_epoch": leader_epoch,
    }
    patched = patch(data, walk(data), **changes)

    assert data.tobytes() == b"".join(write_batch(batch, **changes) for batch in batches)
    assert (patched.position.tolist(), patched.size.tolist()) == (
        walk(data).position.tolist(),
        walk(data).size.tolist(),
    )
    assert (patched.end, patched.tail) == (data.size, 0)
    assert {name: column.tolist() for name, column in patched.fields.items()} == {
        name: column.tolist() for name, column in walk(data).fields.items()
    }


def test_each_batch_can_get_its_own_value() -> None:
    data = np.frombuffer(
        b"".join(write_batch([Record(offset=i, timestamp=0, key=None, value=b"v")]) for i in range(3)), np.uint8
    ).copy()
    patch(data, walk(data), base_offset=np.array([100, 200, 300]), base_sequence=np.array([0, 1, 2]))

    assert walk(data)["base_offset"].tolist() == [100, 200, 300]
    assert walk(data)["base_sequence"].tolist() == [0, 1, 2]


@given(records=record_lists(), byte=st.integers(61, 10_000))
def test_patching_never_blesses_a_damaged_batch(records: list[Record], byte: int) -> None:
    data = np.frombuffer(write_batch(records), np.uint8).copy()
    headers = walk(data)
    data[61 + byte % (data.size - 61)] ^= 1
    patch(data, headers, producer_id=42, producer_epoch=1, base_sequence=7)

    with pytest.raises(CorruptDataError, match="checksum"):
        walk(data)


def test_records_are_not_touched() -> None:
    batch = write_batch([Record(offset=0, timestamp=0, key=b"k", value=b"v" * 100)])
    data = np.frombuffer(batch, np.uint8).copy()
    patch(data, walk(data), producer_id=9)

    assert data[61:].tobytes() == batch[61:]


@pytest.mark.parametrize("field", ["count", "last_offset_delta", "base_timestamp", "magic", "crc", "batch_length"])
def test_fields_that_the_records_depend_on_cannot_be_patched(field: str) -> None:
    data = np.frombuffer(write_batch([Record(offset=0, timestamp=0, key=None, value=None)]), np.uint8).copy()

    assert field not in PATCHABLE
    with pytest.raises(ValueError, match=f"cannot patch {field}"):
        patch(data, walk(data), **{field: 1})


def test_nothing_can_be_patched_too() -> None:
    data = np.empty(0, np.uint8)

    assert len(patch(data, walk(data), producer_id=1)) == 0


@given(before=st.binary(min_size=1, max_size=60), after=st.binary(max_size=3000), data=st.data())
def test_the_change_of_a_checksum_follows_from_the_changed_bytes_alone(
    before: bytes, after: bytes, data: st.DataObject
) -> None:
    changed = data.draw(st.binary(min_size=len(before), max_size=len(before)))
    old, new = (crc32c(np.frombuffer(head + after, np.uint8)) for head in (before, changed))
    difference = np.frombuffer(before, np.uint8) ^ np.frombuffer(changed, np.uint8)

    assert old ^ int(crc32c_change(difference[None, :], np.array([len(after)]))[0]) == new


def test_the_change_of_a_checksum_is_right_for_the_largest_batches() -> None:
    tail = np.zeros(300_000_001, np.uint8)
    old = crc32c(tail)
    tail[0] = 0xA5
    change = crc32c_change(np.array([[0xA5]], np.uint8), np.array([tail.size - 1]))

    assert old ^ int(change[0]) == crc32c(tail)


def test_the_change_of_many_checksums_is_that_of_each() -> None:
    rng = np.random.default_rng(5)
    size = np.append(rng.integers(61, 3000, 1500), [62, 61, 61 + 255, 61 + 256, 61 + 65536])
    difference = np.zeros((len(size), 40), np.uint8)
    difference[::3, 22:36] = rng.integers(0, 256, (len(difference[::3]), 14))
    difference[1::3, :] = rng.integers(0, 256, (len(difference[1::3]), 40))
    made = crc32c_change(difference, size - 61)
    for row, length in enumerate((size - 61).tolist()):
        before = rng.integers(0, 256, 40 + length, np.uint8)
        after = before.copy()
        after[:40] ^= difference[row]
        assert int(made[row]) == crc32c(before) ^ crc32c(after)
