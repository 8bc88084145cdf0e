"""Damaged and hostile segments: refused by name, never a crash, never memory without bound."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import cramjam
import pytest

from maxbrod.errors import CorruptDataError, MaxbrodError, TruncatedDataError, UnsupportedFormatError
from support import plain_kbak as plain
from support.plain_batches import Record
from support.tool_backups import KBAK, segment_of, some

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.storage.interface import Storage


@pytest.mark.parametrize(
    ("forced", "kind", "complaint"),
    [
        ({"version": 2}, UnsupportedFormatError, "version 2"),
        ({"flags": 1}, UnsupportedFormatError, "flags 1"),
        ({"codec": 3, "packed": b""}, UnsupportedFormatError, "codec 3"),
        ({"count": 4}, CorruptDataError, "the manifest says"),
        ({"end": 9}, CorruptDataError, "the manifest says"),
        ({"start": -1}, CorruptDataError, "reach from offset -1"),
        ({"start": 3}, CorruptDataError, "reach from offset 3"),
        ({"body": b"\0" * 40}, CorruptDataError, "length disagrees"),
        ({"body": struct.pack("<I", 0xFFFFFFFF) + b"x" * 60}, TruncatedDataError, "is cut"),
        ({"codec": 1, "packed": b"no zstd frame"}, CorruptDataError, "decompressed"),
        ({"codec": 1, "packed": b""}, CorruptDataError, "has 0"),
        ({"codec": 2, "packed": b"\1"}, TruncatedDataError, "shorter than its size"),
        ({"codec": 2, "packed": struct.pack("<I", 1 << 31) + b"\0" * 9}, CorruptDataError, "claims to unpack"),
        ({"codec": 2, "packed": struct.pack("<I", 50) + b"\xff" * 9}, CorruptDataError, "cannot be decompressed"),
    ],
)
def test_a_segment_that_lies_with_a_right_checksum_is_refused(
    storage: Storage, forced: dict[str, Any], kind: type[MaxbrodError], complaint: str
) -> None:
    records = some(0, 3)
    error = KBAK.refused(storage, plain.write_segment(records, **{"codec": 0, **forced}), records)

    assert type(error) is kind
    assert complaint in error.message


def test_counts_that_agree_with_the_manifest_and_not_with_the_records_are_refused(storage: Storage) -> None:
    records = some(0, 3)
    for count in (2, 4, 1 << 60):
        stored = plain.write_segment(records, count=count)
        assert "claims to have" in KBAK.refused(storage, stored, records, records=count).message


def test_records_before_the_damage_are_given(storage: Storage) -> None:
    records = some(0, 5)
    body = b"".join(map(plain.write_record, records[:3])) + b"\7\0\0\0" + b"x" * 60
    storage.put("s", plain.write_segment(records, body=body))
    from maxbrod.layouts.kbak.survey import LAYOUT  # noqa: PLC0415 - only here is a single batch read

    batches = LAYOUT.read(storage, segment_of("s", records))
    assert next(batches).num_rows == 3
    with pytest.raises(CorruptDataError) as caught:
        next(batches)
    assert caught.value.offset == 3
    assert caught.value.position == sum(len(plain.write_record(each)) for each in records[:3])


@pytest.mark.parametrize("codec", range(3))
def test_hostile_records_under_a_right_checksum_never_crash(storage: Storage, codec: int) -> None:
    rng = random.Random(codec)
    records = some(0, 4)
    body = b"".join(map(plain.write_record, records))
    for _ in range(400):
        damaged = bytearray(body)
        for _ in range(rng.choice([1, 1, 2, 4])):
            at = rng.randrange(len(damaged))
            damaged[at : at + rng.choice([0, 1, 1, 1, 4])] = rng.choice(
                [b"\0", b"\xff", b"\x7f", rng.randbytes(1), b"\xff\xff\xff\x7f", rng.randbytes(4)]
            )
        storage.replace("s", plain.write_segment(records, codec, body=bytes(damaged)))
        try:
            found = KBAK.read(storage, segment_of("s", records))
        except MaxbrodError as error:
            assert isinstance(error, CorruptDataError)  # noqa: PT017 - either answer is right
        else:
            assert [each.offset for each in found][-1] == 3


def _zstd_bomb(size: int) -> bytes:
    stream = cramjam.zstd.Compressor(level=1)
    for _ in range(size >> 20):
        stream.compress(bytes(1 << 20))
    return bytes(stream.finish())


def test_a_bomb_takes_no_more_memory_than_a_piece(storage: Storage) -> None:
    """A gigabyte of zeros in 32 KB, once as it is and once as one record that claims all of it."""
    records = some(0, 1)
    bomb = _zstd_bomb(1 << 30)
    huge = struct.pack("<I", (1 << 30) + 1)
    stream = cramjam.zstd.Compressor(level=1)
    stream.compress(huge)
    for _ in range(64):
        stream.compress(bytes(1 << 20))
    for packed in (bomb, bytes(stream.finish())):
        tracemalloc.start()
        error = KBAK.refused(storage, plain.write_segment(records, 1, packed=packed), records)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert isinstance(error, CorruptDataError)
        assert peak < 64 << 20


def test_records_that_take_more_than_the_manifest_says_are_refused(storage: Storage) -> None:
    records = some(0, 3)
    details = {"uncompressed_size": 20}
    error = KBAK.refused(storage, plain.write_segment(records, 1), records, details=details)

    assert "more than the 20 bytes" in error.message


def _legacy(records: list[Record]) -> list[dict[str, Any]]:
    def text(value: bytes | None) -> str | None:
        return None if value is None else b64encode(value).decode()

    return [
        {
            "key": text(each.key),
            "value": text(each.value),
            "headers": [{"key": key.decode(), "value": text(value)} for key, value in each.headers],
            "timestamp": each.timestamp,
            "offset": each.offset,
        }
        for each in records
    ]


def _packings() -> dict[str, Callable[[bytes], bytes]]:
    return {
        "s": bytes,
        "s.zst": lambda text: bytes(cramjam.zstd.compress(text)),
        "s.lz4": lambda text: struct.pack("<I", len(text)) + bytes(cramjam.lz4.compress_block(text, store_size=False)),
    }


@pytest.mark.parametrize("path", _packings())
def test_a_legacy_segment_of_json_is_read(storage: Storage, path: str) -> None:
    records = [
        Record(offset=3, timestamp=-5, key=None, value=b"", headers=[("schlüssel".encode(), None), (b"a", b"\0\xff")]),
        *(Record(offset=10 + n, timestamp=n, key=bytes(range(n)), value=None) for n in range(9)),
    ]
    text = json.dumps([{**each, "unknown": 1} for each in _legacy(records)]).encode()
    storage.put(path, _packings()[path](text))

    assert KBAK.read(storage, segment_of(path, records)) == records


def test_a_legacy_record_may_leave_out_what_has_a_default(storage: Storage) -> None:
    storage.put("s", b'[{"timestamp": 1, "offset": 0}]')
    bare = Record(offset=0, timestamp=1, key=None, value=None)

    assert KBAK.read(storage, segment_of("s", [bare])) == [bare]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"hello",
        b"[",
        b"[" * 200_000,
        b"[1]",
        b"[null]",
        b'[{"offset": 0}]',
        b'[{"offset": 0, "timestamp": 0.5}]',
        b'[{"offset": "0", "timestamp": 0}]',
        b'[{"offset": -1, "timestamp": 0}]',
        b'[{"offset": 99999999999999999999, "timestamp": 0}]',
        b'[{"offset": 0, "timestamp": 0, "key": "a"}]',
        b'[{"offset": 0, "timestamp": 0, "key": "===="}]',
        b'[{"offset": 0, "timestamp": 0, "key": "a=bc"}]',
        b'[{"offset": 0, "timestamp": 0, "key": 7}]',
        b'[{"offset": 0, "timestamp": 0, "headers": [null]}]',
        b'[{"offset": 0, "timestamp": 0, "headers": [{"value": null}]}]',
        b'[{"offset": 0, "timestamp": 0}, {"offset": 0, "timestamp": 0}]',
        b'[{"offset": 5, "timestamp": 0}]',
        b'[{"offset": 0, "timestamp": 0, "key": "\\ud800"}]',
        b"\xff\xfe[",
        bytes.fromhex("28b52ffd") + b"garbage",
    ],
)
def test_a_hostile_legacy_segment_is_refused(storage: Storage, text: bytes) -> None:
    assert isinstance(KBAK.refused(storage, text, some(0, 1)), CorruptDataError)
