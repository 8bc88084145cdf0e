from __future__ import annotations

from typing import Any

import pytest

from maxbrod.errors import UsageError
from maxbrod.layouts.kafka.format import Compression, CompressionMode, is_framed, new_nonce, pack_path, segment_path

SEGMENT: dict[str, Any] = {"topic": "orders", "topic_id": "aBc_-1", "partition": 7, "base_offset": 42, "framed": False}


def test_a_segment_is_named_by_topic_incarnation_partition_and_offset() -> None:
    path = segment_path(**{**SEGMENT, "nonce": "00ff"})

    assert path == "segments/orders/aBc_-1/7/00000000000000000042-00ff.log"
    assert pack_path(run_id="run-1", nonce="00ff", framed=True) == "packs/run-1-00ff.log.zst"


def test_the_largest_offset_sorts_last() -> None:
    last = segment_path(**{**SEGMENT, "base_offset": (1 << 63) - 1})

    assert last > segment_path(**{**SEGMENT, "base_offset": 999_999_999_999})


def test_no_name_is_given_twice() -> None:
    assert len({segment_path(**SEGMENT) for _ in range(1000)}) == 1000
    assert len(new_nonce()) >= 8


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a b", "ä", "a\n", "x" * 250, "../../etc", "a\0"])
def test_a_name_that_kafka_would_refuse_never_reaches_a_path(name: str) -> None:
    for field in ("topic", "topic_id", "nonce"):
        with pytest.raises(UsageError):
            segment_path(**{**SEGMENT, field: name})
    with pytest.raises(UsageError):
        pack_path(run_id=name, framed=False)


@pytest.mark.parametrize("name", ["a", "...", ".hidden", "-x", "x" * 249, "__consumer_offsets", "A.b_c-9"])
def test_every_name_that_kafka_allows_is_allowed(name: str) -> None:
    assert f"/{name}/" in segment_path(**{**SEGMENT, "topic": name})


@pytest.mark.parametrize("wrong", [{"partition": -1}, {"base_offset": -1}, {"base_offset": 1 << 63}])
def test_numbers_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        segment_path(**{**SEGMENT, **wrong})


def test_the_ending_tells_whether_there_are_frames() -> None:
    assert is_framed(segment_path(**{**SEGMENT, "framed": True}))
    assert not is_framed(segment_path(**SEGMENT))
    with pytest.raises(UsageError):
        is_framed("snapshots/1.json.zst")


def test_compression_is_said_in_one_word() -> None:
    assert Compression.parse("auto") == Compression()
    assert Compression.parse("source").mode is CompressionMode.SOURCE
    assert Compression.parse("zstd:9") == Compression(mode=CompressionMode.ZSTD, level=9)
    assert [str(Compression.parse(text)) for text in ("auto", "source", "zstd:9")] == ["auto", "source", "zstd:9"]


@pytest.mark.parametrize(
    "text", ["", "gzip", "ZSTD", "zstd:", "zstd:x", "zstd:0", "zstd:20", "zstd:-1", "auto:3", "zstd:²"]
)
def test_compression_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Compression.parse(text)
