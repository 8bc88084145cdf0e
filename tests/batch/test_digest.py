"""Digests of records: equal for equal records only, whatever the parts that they were made of."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from maxbrod.batch.columns import RECORD_SCHEMA, binary_column
from maxbrod.batch.digest import BASES, PRIME, Digest, Field, join
from maxbrod.batch.hashes import COLUMNS, _values, digest_records, hash_fields

MASK = (1 << 64) - 1
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
BYTES = st.one_of(st.none(), st.binary(max_size=40))
HEADERS = st.lists(st.fixed_dictionaries({"key": st.binary(max_size=20), "value": BYTES}), max_size=4)
RECORDS = st.fixed_dictionaries(
    {
        "timestamp_ms": INT64,
        "timestamp_type": st.sampled_from([-1, 0, 1]),
        "key": BYTES,
        "value": BYTES,
        "headers": HEADERS,
    }
)
COLUMN_OF = {Field.TIMESTAMP: "timestamp_ms"}
# Published with MurmurHash3 (x64, 128 bits, seed 0), and quoted by its ports.
KNOWN = {
    b"": "00000000000000000000000000000000",
    b"hello": "cbd8a7b341bd9b025b1e906a48ae1d19",
    b"hello, world": "342fac623a5ebc8e4cdcbc079642414d",
    b"The quick brown fox jumps over the lazy dog": "e34bbc7bbc071b6c7a433ca9c49a9347",
}

Record = dict[str, Any]


def table(records: list[Record]) -> pa.RecordBatch:
    columns = [{**each, "offset": number} for number, each in enumerate(records)]
    return pa.RecordBatch.from_pylist(columns, schema=pa.schema([RECORD_SCHEMA.field(name) for name in COLUMNS]))


def digest(records: list[Record], *, places: list[int] | None = None, ignored: tuple[Field, ...] = ()) -> Digest:
    found = None if places is None else np.array(places, np.int64)
    return digest_records(hash_fields(table(records)), found, ignored)


def plain_murmur3(data: bytes) -> tuple[int, int]:
    """Word by word, in Python's own integers."""

    def rotated(word: int, left: int) -> int:
        return (word << left | word >> (64 - left)) & MASK

    def finished(word: int) -> int:
        word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & MASK
        word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & MASK
        return word ^ word >> 33

    c1, c2, first, second = 0x87C37B91114253D5, 0x4CF5AD432745937F, 0, 0
    whole = len(data) // 16 * 16
    for at in range(0, whole + 16, 16):
        block = data[at : at + 16]
        a, b = (int.from_bytes(part, "little") for part in (block[:8], block[8:]))
        first ^= rotated(a * c1 & MASK, 31) * c2 & MASK
        if at < whole:
            first = ((rotated(first, 27) + second) * 5 + 0x52DCE729) & MASK
        second ^= rotated(b * c2 & MASK, 33) * c1 & MASK
        if at < whole:
            second = ((rotated(second, 31) + first) * 5 + 0x38495AB5) & MASK
    first, second = first ^ len(data), second ^ len(data)
    first = (first + second) & MASK
    second = (second + first) & MASK
    first, second = finished(first), finished(second)
    first = (first + second) & MASK
    return first, (second + first) & MASK


def test_values_hash_as_published() -> None:
    words = _values(binary_column(pa.array(list(KNOWN), pa.binary())))
    assert [f"{first:016x}{second:016x}" for first, second in words.T.tolist()] == list(KNOWN.values())


@given(values=st.lists(st.binary(max_size=70), min_size=1))
def test_every_length_hashes_as_the_plain_words_do(values: list[bytes]) -> None:
    words = _values(binary_column(pa.array(values, pa.binary())))
    assert [tuple(each) for each in words.T.tolist()] == [plain_murmur3(value) for value in values]


@given(records=st.lists(RECORDS, min_size=1, max_size=8), other=RECORDS, data=st.data())
def test_a_change_of_any_field_of_any_record_is_never_missed(
    records: list[Record], other: Record, data: st.DataObject
) -> None:
    row = data.draw(st.integers(0, len(records) - 1))
    field = data.draw(st.sampled_from(list(Field)))
    name = COLUMN_OF.get(field, str(field))
    assume(other[name] != records[row][name])
    changed = [{**each, name: other[name]} if number == row else each for number, each in enumerate(records)]
    before, after = digest(records), digest(changed)
    assert before.sequence != after.sequence
    assert before.total != after.total
    assert digest(records, ignored=(field,)) == digest(changed, ignored=(field,))


@pytest.mark.parametrize("name", ["key", "value"])
def test_null_and_empty_are_never_the_same(name: str) -> None:
    base: Record = {"timestamp_ms": 0, "timestamp_type": 0, "key": b"k", "value": b"v", "headers": []}
    made = [digest([{**base, name: value}]) for value in (None, b"", b"\0")]
    assert len({each.sequence for each in made}) == 3


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([(b"a", None)], [(b"a", b"")]),
        ([(b"a", b"1"), (b"b", b"2")], [(b"b", b"2"), (b"a", b"1")]),
        ([(b"a", b"1"), (b"a", b"1")], [(b"a", b"1")]),
        ([(b"a", b"b")], [(b"", b"ab")]),
        ([], [(b"", None)]),
        ([(b"", b"")], [(b"", b""), (b"", b"")]),
    ],
)
def test_headers_differ_by_order_by_repetition_and_by_null(
    first: list[tuple[bytes, bytes | None]], second: list[tuple[bytes, bytes | None]]
) -> None:
    base: Record = {"timestamp_ms": 0, "timestamp_type": 0, "key": b"k", "value": b"v"}
    made = [digest([{**base, "headers": [{"key": k, "value": v} for k, v in each]}]) for each in (first, second)]
    assert made[0].sequence != made[1].sequence
    assert made[0].total != made[1].total


def test_a_key_is_never_taken_for_a_value() -> None:
    base: Record = {"timestamp_ms": 0, "timestamp_type": 0, "headers": []}
    swapped = [digest([{**base, "key": key, "value": value}]) for key, value in ((b"a", b"b"), (b"b", b"a"))]
    assert swapped[0].sequence != swapped[1].sequence


@given(records=st.lists(RECORDS, min_size=2, max_size=8), data=st.data())
def test_order_is_seen_by_the_sequence_and_not_by_the_set(records: list[Record], data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(records) - 2))
    assume(records[row] != records[row + 1])
    swapped = [*records[:row], records[row + 1], records[row], *records[row + 2 :]]
    assert digest(records).sequence != digest(swapped).sequence
    assert digest(records).total == digest(swapped).total


@given(records=st.lists(RECORDS, min_size=1, max_size=8), shift=st.integers(1, 100))
def test_offsets_are_seen_where_they_count(records: list[Record], shift: int) -> None:
    places = list(range(len(records)))
    moved = [*places[:-1], places[-1] + shift]
    assert digest(records, places=places).sequence != digest(records, places=moved).sequence
    assert digest(records, places=places).total == digest(records, places=moved).total == digest(records).total


@given(records=st.lists(RECORDS, max_size=12), cuts=st.lists(st.integers(0, 12), max_size=4))
def test_parts_that_follow_each_other_give_the_digest_of_the_whole(records: list[Record], cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(records)) for cut in cuts), len(records)]
    parts = [digest(records[start:end], places=list(range(start, end))) for start, end in pairwise(bounds)]
    assert join(parts) == digest(records, places=list(range(len(records))))


def test_the_sequence_is_the_polynomial_that_it_is_said_to_be() -> None:
    """The compiled product of two 61-bit numbers, against Python's integers, also where it is as large as can be."""
    base: Record = {"timestamp_ms": 0, "timestamp_type": 0, "key": None, "value": None, "headers": []}
    drawn = random.Random(1)
    records = [{**base, "value": drawn.randbytes(20)} for _ in range(500)]
    single = [digest([each]).sequence for each in records]
    expected = [0, 0]
    for words in single:
        expected = [(value * power + word) % PRIME for value, power, word in zip(expected, BASES, words, strict=True)]
    assert list(digest(records).sequence) == expected
