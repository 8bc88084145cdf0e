"""Damaged and hostile files: refused with their place, never a crash, never memory without bound."""

from __future__ import annotations

import bz2
import json
import lzma
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.errors import CorruptDataError, MaxbrodError, TruncatedDataError, UnsupportedFormatError
from maxbrod.layouts.avro import format as container
from maxbrod.layouts.avro.format import CODECS, MARK, SCHEMA, encode_block, encode_header
from maxbrod.layouts.avro.program import compile_records
from maxbrod.layouts.avro.survey import LAYOUT
from maxbrod.layouts.foreign import ForeignSegment, WriteOptions
from maxbrod.layouts.varints import encode_long
from maxbrod.model import TopicPartition
from support.given_records import Given, batch, given_of
from support.storages import fresh_storage

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

WHERE = TopicPartition(topic="t", partition=0)
PATH = "t/0/t-0-000000000000000.avro"
SYNC = bytes(range(16))
RECORDS = [Given(offset=i, value=b"value %d" % i, headers=((b"h", b"v"), (b"h", None))) for i in range(9)]


def written(codec: str, *, block: int = 60) -> bytes:
    """A file of several blocks, without the mark that says what is in it."""
    with fresh_storage() as storage, pytest.MonkeyPatch.context() as patched:
        patched.setattr("maxbrod.layouts.avro.writer.BLOCK_BYTES", block)
        (segment,) = LAYOUT.write(
            storage, WHERE, [batch(RECORDS)], WriteOptions(codec=codec), survey=LAYOUT.survey(storage)
        )
        return bytes(storage.get(segment.path)).replace(MARK.encode(), b"unmarked.versio")


def body(offset: int) -> bytes:
    return b"\x02t\x00" + encode_long(offset) + bytes([2, 2, 2, 0, 0, 0, 0])


def made(*blocks: bytes, codec: str = "null", schema: str = SCHEMA) -> bytes:
    return encode_header(schema, codec, {}, SYNC) + b"".join(blocks)


def block(count: int, data: bytes) -> bytes:
    return encode_block(count, data, SYNC)


def segment(text: bytes) -> ForeignSegment:
    return ForeignSegment(where=WHERE, path=PATH, base_offset=0, end_offset=9, records=None, bytes=len(text))


def read(storage: Storage, text: bytes) -> list[Given]:
    storage.replace(PATH, text)
    return given_of(LAYOUT.read(storage, segment(text)))


def test_the_hand_made_file_is_sound() -> None:
    with fresh_storage() as storage:
        text = made(block(2, body(0) + body(1)), block(0, b""), block(1, body(2)))
        assert [record.offset for record in read(storage, text)] == [0, 1, 2]


@pytest.mark.parametrize("codec", CODECS)
def test_a_damaged_block_is_named_and_those_before_it_are_given(codec: str) -> None:
    text = written(codec)
    sync = text[-16:]
    third = [at for at in range(len(text)) if text.startswith(sync, at)][2] + 16
    broken = text[: third + 8] + bytes(byte ^ 0x5A for byte in text[third + 8 : third + 30]) + text[third + 30 :]
    with fresh_storage() as storage:
        storage.put(PATH, broken)
        batches: list[Any] = []
        with pytest.raises(CorruptDataError) as raised:
            batches.extend(LAYOUT.read(storage, segment(broken)))
        found = given_of(batches)
        assert found == RECORDS[: len(found)]
        assert raised.value.position == third
        assert raised.value.offset == len(found)
        assert str(raised.value.object_name).endswith(PATH)
        assert any(fault.fatal for fault in LAYOUT.check(storage, LAYOUT.survey(storage), deep=True))


@pytest.mark.parametrize("codec", ["null", "snappy"])
def test_a_file_cut_anywhere_gives_a_beginning_and_says_so(codec: str) -> None:
    text = written(codec)
    begin = text.index(text[-16:]) + 16
    ends = {at + 16 for at in range(len(text)) if text.startswith(text[-16:], at)}
    with fresh_storage() as storage:
        for size in range(begin, len(text), 7):
            cut = text[:size]
            storage.replace(PATH, cut)
            found: list[Given] = []
            try:
                for each in LAYOUT.read(storage, segment(cut)):
                    found += given_of([each])
                complete = True
            except TruncatedDataError:
                complete = False
            assert complete == (size in ends)
            assert found == RECORDS[: len(found)]


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 20, 300])
def test_a_header_that_is_cut_is_refused(size: int) -> None:
    text = written("null")[:size]
    with fresh_storage() as storage:
        with pytest.raises(TruncatedDataError):
            read(storage, text)
        survey = LAYOUT.survey(storage)
        assert (survey.segments, survey.faults[0].fatal) == ((), True)


@pytest.mark.parametrize(
    "text",
    [
        made(block(3, body(0) + body(1))),
        made(block(1, body(0) + body(1))),
        made(block(-1, body(0))),
        made(encode_long(1) + encode_long(-1)),
        made(encode_long(1) + encode_long(1 << 62)),
        made(block(1 << 62, body(0))),
        made(b"\xff" * 30),
        made(encode_block(1, body(0), bytes(16))),
        made(block(1, b"\x02t\x00\x00\x02\x08")),
        made(block(1, b"\x02t\x00\x00\x02\x00\x01" + bytes(5))),
        made(block(1, b"\x02t\x00\x00\x02\x00" + encode_long(1 << 40) + bytes(5))),
        made(block(1, b"\x02t\x00\x00\x02\x02\x02\x00" + encode_long(1 << 62) + bytes(5))),
        made(block(1, b"\x02t\x00\x00\x02\x02\x02\x00" + encode_long(-(1 << 63)) + bytes(12))),
        made(block(1, b"\x02t\x00\x00\x02\x02\x02\x00\x00" + encode_long(7) + b"\x00")),
        made(schema="{"),
        made(schema="[" * 100_000),
    ],
)
def test_impossible_files_are_refused(text: bytes) -> None:
    with fresh_storage() as storage, pytest.raises(CorruptDataError):
        read(storage, text)


@pytest.mark.parametrize("text", [b"Obj\x02" + bytes(50), b"PAR1" + bytes(50), made(block(1, b""), codec="lzo")])
def test_what_is_not_known_is_refused(text: bytes) -> None:
    with fresh_storage() as storage, pytest.raises(UnsupportedFormatError):
        read(storage, text)


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("codec", "pack"),
    [
        ("deflate", raw_deflate),
        ("bzip2", bz2.compress),
        ("xz", lzma.compress),
        ("zstandard", lambda data: bytes(cramjam.zstd.compress(data))),
        ("snappy", lambda data: bytes(cramjam.snappy.compress_raw(data)) + zlib.crc32(data).to_bytes(4, "big")),
    ],
)
def test_a_block_that_unpacks_without_end_is_refused(codec: str, pack: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "BLOCK_BYTES_MAX", 1 << 20)
    assert callable(pack)
    text = made(block(1, pack(bytes(4 << 20))), codec=codec)
    with fresh_storage() as storage, pytest.raises(CorruptDataError, match=r"unpacks? to"):
        read(storage, text)


def test_a_block_of_snappy_with_another_checksum_is_refused() -> None:
    packed = bytes(cramjam.snappy.compress_raw(body(0)))
    text = made(block(1, packed + zlib.crc32(body(1)).to_bytes(4, "big")), codec="snappy")
    with fresh_storage() as storage, pytest.raises(CorruptDataError, match="checksum"):
        read(storage, text)


def test_a_mark_that_tells_nonsense_is_a_fault() -> None:
    for metadata in ({}, {"maxbrod.base_offset": "x"}, {"maxbrod.base_offset": "5", "maxbrod.end_offset": "3"}):
        text = encode_header(SCHEMA, "null", {MARK: "1", **metadata}, SYNC)
        with fresh_storage() as storage:
            storage.put(PATH, text)
            survey = LAYOUT.survey(storage)
            assert (survey.segments, [fault.fatal for fault in survey.faults]) == ((), [True])


def test_a_deep_check_finds_a_file_that_holds_less_than_it_says() -> None:
    with fresh_storage() as storage:
        (found,) = LAYOUT.write(storage, WHERE, [batch(RECORDS)], WriteOptions(), survey=LAYOUT.survey(storage))
        text = bytes(storage.get(found.path))
        storage.replace(found.path, text[: text.index(text[-16:]) + 16])
        survey = LAYOUT.survey(storage)
        assert list(LAYOUT.check(storage, survey, deep=False)) == []
        assert [fault.fatal for fault in LAYOUT.check(storage, survey, deep=True)] == [True]
        storage.delete([found.path])
        assert [fault.fatal for fault in LAYOUT.check(storage, survey, deep=False)] == [True]


@settings(max_examples=200)
@given(data=st.data())
def test_any_damage_is_refused_or_harmless_and_never_a_crash(data: st.DataObject) -> None:
    text = bytearray(written(data.draw(st.sampled_from(CODECS))))
    if data.draw(st.booleans()):
        del text[data.draw(st.integers(0, len(text) - 1)) :]
    for at in data.draw(st.lists(st.integers(0, max(len(text) - 1, 0)), max_size=3)) if text else []:
        text[at] ^= data.draw(st.integers(1, 255))
    with fresh_storage() as storage:
        try:
            offsets = [record.offset for record in read(storage, bytes(text))]
            assert offsets == sorted(set(offsets))
        except MaxbrodError:
            pass
        list(LAYOUT.check(storage, LAYOUT.survey(storage), deep=True))


_JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.sampled_from(["map", "array", "record", "bytes", "null", "x"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["type", "name", "fields", "items", "values", "size"]), inner, max_size=4),
    ),
    max_leaves=8,
)


def places(node: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON document: what holds it, and under which key."""
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else []
    return [place for key in keys for place in ((node, key), *places(node[key]))]


@settings(max_examples=300)
@given(data=st.data())
def test_any_schema_is_read_or_refused(data: st.DataObject) -> None:
    schema = json.loads(SCHEMA)
    for _ in range(data.draw(st.integers(1, 2))):
        holder, key = data.draw(st.sampled_from(places(schema)))
        if data.draw(st.booleans()) or isinstance(holder, list):
            holder[key] = data.draw(_JSON)
        else:
            holder["other"] = holder.pop(key)
    with suppress(UnsupportedFormatError):
        compile_records(schema)


@settings(max_examples=200)
@given(data=st.binary(max_size=120), count=st.integers(0, 5))
def test_any_bytes_as_records_are_refused_or_read(data: bytes, count: int) -> None:
    fields = json.loads(SCHEMA)
    fields["fields"] = [each for each in fields["fields"] if each["name"] not in {"topic", "partition"}]
    with fresh_storage() as storage:
        try:
            read(storage, made(block(count, data), schema=json.dumps(fields)))
        except CorruptDataError:
            return
