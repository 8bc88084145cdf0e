"""Schema ids are exchanged in place; whatever is no frame stays, and what may be one is refused by its offset."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.batch.schema_ids import HEADER_NAMES, Framing, SchemaIdMap, find_ids, with_mapped_ids
from maxbrod.errors import RefusedError
from support.framed_records import Headers, batch, frame

IDS = {1: 100001, 2: 7, 0x01020304: 0x7FFFFFFF, 9: 9}
OLD, NEW = UUID(int=5), UUID(int=6)


def parts(records: pa.RecordBatch) -> list[tuple[Any, Any, Headers]]:
    return [
        (row["key"], row["value"], [(header["key"], header["value"]) for header in row["headers"]])
        for row in records.to_pylist()
    ]


def both(**given_ids: Any) -> SchemaIdMap:
    return SchemaIdMap(**{"ids": IDS, "key": Framing.FRAMED, "value": Framing.FRAMED, **given_ids})


FRAMES = st.builds(frame, st.sampled_from(sorted(IDS)), st.binary(max_size=12))
PLAIN = st.one_of(st.none(), st.just(b""), st.binary(min_size=1, max_size=8).filter(lambda data: data[0] != 0))
VALUES = st.one_of(FRAMES, PLAIN)


def mapped(data: bytes | None) -> bytes | None:
    """A second implementation, in plain Python."""
    if not data or data[0] != 0:
        return data
    return b"\x00" + IDS[int.from_bytes(data[1:5], "big")].to_bytes(4, "big") + data[5:]


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=20), st.data())
def test_every_frame_gets_the_new_id_and_nothing_else_changes(
    pairs: list[tuple[bytes | None, bytes | None]], data: st.DataObject
) -> None:
    records = batch(*((key, value, [(b"h", key)]) for key, value in pairs))
    first = data.draw(st.integers(0, len(pairs) - 1))
    # A slice keeps the buffers of the whole.
    for rows, chosen in ((records, pairs), (records.slice(first), pairs[first:])):
        made = with_mapped_ids(rows, both(), where="t-0")
        assert parts(made) == [(mapped(key), mapped(value), [(b"h", key)]) for key, value in chosen]
        assert made.drop_columns(["key", "value"]).equals(rows.drop_columns(["key", "value"]))
    assert parts(records) == [(key, value, [(b"h", key)]) for key, value in pairs], "the source stays"


def test_message_indexes_of_protobuf_stay() -> None:
    records = batch((None, frame(1, b"\x04\x02\x00payload"), []))
    made = with_mapped_ids(records, both(), where="t-0")
    assert parts(made) == [(None, frame(100001, b"\x04\x02\x00payload"), [])]


@pytest.mark.parametrize("part", ["key", "value"])
def test_an_id_that_was_not_captured_is_refused_by_topic_and_offset(part: str) -> None:
    rows = [(frame(1), frame(1), list[Any]()) for _ in range(4)]
    rows[2] = (frame(55), frame(1), []) if part == "key" else (frame(1), frame(55), [])
    with pytest.raises(RefusedError, match=f"a {part} has schema id 55") as told:
        with_mapped_ids(batch(*rows), both(), where="orders-3")
    assert (told.value.object_name, told.value.offset) == ("orders-3", 12)


def test_a_zero_byte_without_an_id_behind_it_is_refused_where_ids_are_known_to_be() -> None:
    with pytest.raises(RefusedError, match="too short") as told:
        with_mapped_ids(batch((None, b"x", []), (None, b"\x00\x00", [])), both(), where="orders-3")
    assert told.value.offset == 11


@pytest.mark.parametrize("value", [frame(1), frame(55, b"rest"), struct.pack(">q", 1 << 30)])
def test_what_may_be_a_frame_is_refused_where_nothing_says_so(value: bytes) -> None:
    unknown = both(key=Framing.UNKNOWN)
    with pytest.raises(RefusedError, match="may begin with schema id") as told:
        with_mapped_ids(batch((b"a", None, []), (value, None, [])), unknown, where="orders-3")
    assert told.value.offset == 11
    assert "--unframed" in (told.value.hint or "")


@pytest.mark.parametrize("key", [struct.pack(">q", 42), struct.pack(">q", -1), b"\x00\x00\x00\x07", b"\x00", b"", None])
def test_numbers_that_cannot_be_ids_stay_where_nothing_says_what_they_are(key: bytes | None) -> None:
    records = batch((key, frame(1), []))
    made = with_mapped_ids(records, both(key=Framing.UNKNOWN), where="t-0")
    assert parts(made) == [(key, frame(100001), [])]


def test_unframed_keys_stay_whatever_they_begin_with() -> None:
    records = batch((frame(1), frame(2), []))
    assert parts(with_mapped_ids(records, both(key=Framing.UNFRAMED), where="t-0")) == [(frame(1), frame(7), [])]


def test_ids_and_guids_in_headers_are_exchanged_and_such_values_have_no_prefix() -> None:
    """A value whose id is in a header may begin with a zero byte of its own."""
    value = b"\x00\x00\x00\x00\x01 own bytes"
    name = HEADER_NAMES["value"]
    records = batch(
        (None, value, [(b"a", b"\x01"), (name, b"\x01" + OLD.bytes), (b"b", None)]),
        (None, value, [(name, frame(2))]),
        (frame(2), frame(1), [(b"a", frame(1))]),
        (frame(2), None, [(HEADER_NAMES["key"], b"\x01" + OLD.bytes + b"\x00")]),
    )
    ids = both(guids={OLD.bytes: NEW.bytes})
    made = with_mapped_ids(records, ids, where="t-0")
    assert parts(made) == [
        (None, value, [(b"a", b"\x01"), (name, b"\x01" + NEW.bytes), (b"b", None)]),
        (None, value, [(name, frame(7))]),
        (frame(7), frame(100001), [(b"a", frame(1))]),
        (frame(2), None, [(HEADER_NAMES["key"], b"\x01" + NEW.bytes + b"\x00")]),
    ]


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"\x01" + OLD.bytes, "GUID"),
        (frame(55), "schema id 55"),
        (b"\x02", "neither"),
        (None, "neither"),
        (b"", "neither"),
    ],
)
def test_a_header_that_cannot_be_mapped_is_refused_by_topic_and_offset(header: bytes | None, words: str) -> None:
    name = HEADER_NAMES["value"]
    with pytest.raises(RefusedError, match=words) as told:
        with_mapped_ids(batch((None, b"x", []), (None, b"x", [(name, header)])), both(), where="orders-3")
    assert (told.value.object_name, told.value.offset) == ("orders-3", 11)


@given(st.lists(st.tuples(VALUES, VALUES, st.booleans()), min_size=1, max_size=20), st.data())
def test_all_ids_of_records_are_found_with_their_offsets(
    rows: list[tuple[bytes | None, bytes | None, bool]], data: st.DataObject
) -> None:
    in_header = (HEADER_NAMES["value"], frame(7))
    records = batch(*((key, value, [(b"h", key), *([in_header] if named else [])]) for key, value, named in rows))
    first = data.draw(st.integers(0, len(rows) - 1))
    keys, values = (find_ids(records.slice(first), part) for part in ("key", "value"))
    chosen = [(offset, *row) for offset, row in enumerate(rows, start=10)][first:]

    def ids(pairs: list[tuple[int, bytes | None]]) -> list[tuple[int, int]]:
        return [(offset, int.from_bytes(text[1:5], "big")) for offset, text in pairs if text and text[0] == 0]

    assert list(zip(keys.offsets, keys.ids, strict=True)) == ids([(offset, key) for offset, key, _, _ in chosen])
    plain = [(offset, value) for offset, _, value, named in chosen if not named]
    assert list(zip(values.offsets, values.ids, strict=True)) == ids(plain)
    named_offsets = [offset for offset, _, _, named in chosen if named]
    assert (values.header_offsets.tolist(), values.header_ids.tolist()) == (named_offsets, [7] * len(named_offsets))
    assert not len(keys.header_ids)


def test_guids_in_headers_are_found_and_what_is_too_short_is_none() -> None:
    name = HEADER_NAMES["key"]
    whole = (name, b"\x01" + OLD.bytes)
    records = batch((b"\x00\x00", b"v", [whole]), (frame(3), None, [(name, b"\x01\x02")]), (b"", b"", [(name, None)]))
    found = find_ids(records, "key")
    assert found.guids == ((OLD.bytes, 10),)
    assert not len(found.ids)
    assert not len(found.header_ids)
