"""Records that were erased: found by offset or by keyed hash, and batches without them cover the same offsets."""

from __future__ import annotations

import hashlib
import hmac
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.batch.columns import number_array, number_column
from maxbrod.batch.decode import decode
from maxbrod.batch.erased import ErasedPart, ErasedRecords, hash_key, hash_keys_sorted
from maxbrod.batch.erasure import _has_key, as_ranges, find_erased, without_erased, without_offsets
from maxbrod.batch.headers import walk
from maxbrod.layouts.kafka.described_batches import describe
from support.keyed_archives import batch
from support.native_logs import batches, marker

if TYPE_CHECKING:
    from support.native_logs import Batch

SALT = b"s" * 32


@given(st.lists(st.none() | st.binary(max_size=150), max_size=20), st.binary(min_size=1, max_size=64))
def test_compiled_hashes_are_those_of_python_itself(keys: list[bytes | None], salt: bytes) -> None:
    wanted = [key for key in keys if key is not None][::2]
    hashes = b"".join(sorted({hmac.new(salt, key, hashlib.sha256).digest() for key in wanted}))
    assert hashes == hash_keys_sorted(salt, wanted)
    part = ErasedPart(salt=salt, hashes=hashes)
    found = _has_key(pa.array(keys, pa.binary()), part) if hashes else np.zeros(len(keys), np.bool_)
    assert found.tolist() == [key is not None and key in wanted for key in keys]


@settings(max_examples=100)
@given(batches(), st.data())
def test_batches_without_some_records_have_the_others_unchanged_and_cover_the_same_offsets(
    log: list[Batch], data: st.DataObject
) -> None:
    raw = np.frombuffer(b"".join(found.data for found in log), np.uint8)
    headers = walk(raw)
    before = decode(raw, headers)
    offsets = number_column(before.column("offset"))
    users = offsets[~number_column(before.column("control"))].tolist()
    gone = np.array(sorted(data.draw(st.sets(st.sampled_from(users)) if users else st.just(set()))), np.int64)
    new, found = without_offsets(raw, headers, gone)
    after = decode(new, walk(new, check_crc=True, whole=True))
    left = before.filter(number_array(~np.isin(offsets, gone)))
    # Timestamp types of magic 0 become create time where a message is encoded anew, as in every other place.
    names = ["offset", "timestamp_ms", "key", "value", "headers", "producer_id", "sequence", "leader_epoch", "control"]
    assert after.select(names).equals(left.select(names))
    old, covering = describe(raw, headers, exact=True).facts, describe(new, found, exact=True).facts
    spans = [(int(first), int(last)) for first, last in zip(covering.first_offset, covering.last_offset, strict=True)]
    assert spans == sorted(spans)
    for first, last in zip(old.first_offset.tolist(), old.last_offset.tolist(), strict=True):
        inside = [span for span in spans if first <= span[0] and span[1] <= last]
        assert inside[0][0] == first
        assert inside[-1][1] == last
        assert all(this[1] + 1 == following[0] for this, following in pairwise(inside))
    again, _ = without_offsets(new, found, gone)
    assert again is new or bytes(again) == bytes(new)


def test_offsets_decide_where_the_erasure_looked_and_keys_where_it_could_not() -> None:
    log = b"".join([batch(0, (b"a", b"1"), (b"b", b"1")), batch(2, (b"a", b"2"), (b"b", b"2")), marker(4, 9, 0)])
    raw = np.frombuffer(log, np.uint8)
    part = ErasedPart(offsets=((1, 2),), unseen=((2, 4),), salt=SALT, hashes=hash_key(SALT, b"a"))
    erased = ErasedRecords(parts=(part,))
    assert find_erased(raw, walk(raw), erased).tolist() == [1, 2]
    new, headers = without_erased(raw, walk(raw), erased)
    assert number_column(decode(new, headers).column("offset")).tolist() == [0, 3, 4]


def test_records_of_a_later_leader_epoch_took_the_offsets_of_others_and_are_not_meant() -> None:
    log = batch(0, (b"a", b"1"), leader_epoch=4) + batch(1, (b"a", b"other"), leader_epoch=5)
    raw = np.frombuffer(log, np.uint8)
    for part in (
        ErasedPart(offsets=((0, 2),), offsets_epoch=4),
        ErasedPart(unseen=((0, 2),), salt=SALT, hashes=hash_key(SALT, b"a"), epoch=4),
    ):
        assert find_erased(raw, walk(raw), ErasedRecords(parts=(part,))).tolist() == [0]


def test_nothing_is_copied_where_nothing_is_erased() -> None:
    raw = np.frombuffer(batch(0, (b"a", b"1")), np.uint8)
    headers = walk(raw)
    erased = ErasedRecords(parts=(ErasedPart(offsets=((7, 9),)),))
    assert without_erased(raw, headers, erased) == (raw, headers)


@given(st.sets(st.integers(0, 30)))
def test_ranges_have_exactly_the_offsets(offsets: set[int]) -> None:
    ranges = as_ranges(np.array(sorted(offsets), np.int64))
    assert [offset for first, end in ranges for offset in range(first, end)] == sorted(offsets)
    assert all(this[1] < following[0] for this, following in pairwise(ranges))
