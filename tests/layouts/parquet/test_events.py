"""The records of the tool's own topics: its bytes are made and understood, and no bytes crash the reader."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.errors import CorruptDataError, MaxbrodError, TruncatedDataError, UnsupportedFormatError, UsageError
from maxbrod.layouts.parquet.events import (
    Checkpoint,
    EventSegment,
    EventType,
    SegmentEvent,
    decode_checkpoint,
    decode_segment_event,
)
from support.samples import samples_of

U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
TIME = st.integers(-(1 << 62), 1 << 62)
TEXT = st.text(max_size=20)
checkpoints = st.builds(Checkpoint, region=TEXT, topic=TEXT, partition=U32, offset=U64, time_ns=TIME)
segments = st.builds(EventSegment, region=TEXT, topic=TEXT, partition=U32, level=U32, start=U64, end=U64)
events = st.builds(SegmentEvent, type=st.sampled_from(EventType), time_ns=TIME, segment=segments, size=U64)


def checkpoint(offset: int = 99) -> Checkpoint:
    return Checkpoint(region="us-east-1", topic="t", partition=7, offset=offset, time_ns=1_600_000_000_123_456_789)


def test_a_checkpoint_has_the_bytes_of_the_format() -> None:
    """Written by hand: tags are `number << 3 | kind`, text and messages have their length before them."""
    expected = bytes.fromhex(
        "0a09 75732d656173742d31"  # 1: "us-east-1"
        "1201 74"  # 2: "t"
        "18 07"  # 3: 7
        "20 63"  # 4: 99
        "2a0b"  # 5: a time of 11 bytes
        "08 80a0f8fa05"  # 1,600,000,000 seconds
        "10 959aef3a"  # 123,456,789 nanoseconds
    )
    assert checkpoint().encode() == expected
    assert checkpoint().key == b"us-east-1:t:7"
    assert decode_checkpoint(expected) == checkpoint()


def nanoseconds(text: str) -> int:
    whole, _, fraction = text.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return seconds * 1_000_000_000 + int(fraction.ljust(9, "0") or 0)


def told(sample: dict[str, Any]) -> Checkpoint | SegmentEvent:
    fields = sample["fields"]
    time = nanoseconds(fields["timestamp"])
    if sample["kind"] == "Checkpoint":
        return Checkpoint(
            region=fields["region"],
            topic=fields["topic"],
            partition=fields.get("partition", 0),
            offset=fields.get("offset", 0),
            time_ns=time,
        )
    segment = fields["segment"]
    return SegmentEvent(
        type=EventType(fields.get("type", 0)),
        time_ns=time,
        segment=EventSegment(
            region=segment["region"],
            topic=segment["topic"],
            partition=segment["partition"],
            level=segment.get("level", 0),
            start=segment["startOffset"],
            end=segment["endOffset"],
        ),
        size=fields.get("segmentSize", 0),
    )


def test_the_tools_own_records_are_understood_and_made_byte_by_byte() -> None:
    found = json.loads((samples_of("crowdstrike") / "manifest.json").read_text())["protobuf"]
    assert {sample["kind"] for sample in found} == {"Checkpoint", "SegmentEvent"}
    for sample in found:
        value, record = bytes.fromhex(sample["kafka_value_hex"]), told(sample)
        decode = decode_checkpoint if isinstance(record, Checkpoint) else decode_segment_event
        assert decode(value) == record
        assert record.encode() == value
        if isinstance(record, Checkpoint):
            assert record.key == sample["kafka_key"].encode()


@given(record=checkpoints)
def test_any_checkpoint_comes_back(record: Checkpoint) -> None:
    assert decode_checkpoint(record.encode()) == record


@given(record=events)
def test_any_event_comes_back(record: SegmentEvent) -> None:
    assert decode_segment_event(record.encode()) == record


@pytest.mark.parametrize("unknown", ["7801", "7a0361 6263", "79 0102030405060708", "7d 01020304"])
def test_fields_of_a_later_version_are_passed_over(unknown: str) -> None:
    assert decode_checkpoint(bytes.fromhex(unknown) + checkpoint().encode()) == checkpoint()


@given(data=st.binary(max_size=60))
def test_no_bytes_crash_the_reader(data: bytes) -> None:
    for decode in (decode_checkpoint, decode_segment_event):
        try:
            record = decode(data)
        except MaxbrodError:
            continue
        assert decode(record.encode()) == record


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ("0aff", TruncatedDataError),
        ("0a05 6162", TruncatedDataError),
        ("0a02 ff6f", CorruptDataError),  # no UTF-8
        ("18 8080808010", CorruptDataError),  # 33 bits for a partition
        ("20 ffffffffffffffffffff01", CorruptDataError),  # eleven bytes
        ("00", CorruptDataError),
        ("0b", CorruptDataError),
        ("2a06 10 8094ebdc03", CorruptDataError),  # 10^9 nanoseconds
    ],
)
def test_what_is_no_checkpoint_is_refused(data: str, error: type[MaxbrodError]) -> None:
    with pytest.raises(error):
        decode_checkpoint(bytes.fromhex(data))


def test_unknown_events_and_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UnsupportedFormatError):
        decode_segment_event(bytes.fromhex("0802"))
    with pytest.raises(UsageError):
        checkpoint(offset=1 << 64)
