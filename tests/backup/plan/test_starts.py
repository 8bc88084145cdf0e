"""Where a backup begins the first time: read from words, resolved to offsets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.backup.plan.starts import (
    AtOffsets,
    AtTime,
    Earliest,
    Latest,
    Start,
    StartOffset,
    parse_start,
    resolve_start,
)
from maxbrod.errors import UsageError
from maxbrod.model import TopicPartition

WHERE = TopicPartition(topic="orders", partition=3)


def resolved(start: Start, offset_for_time: int = -1) -> StartOffset:
    return resolve_start(start, WHERE, log_start=10, end=90, high_watermark=100, offset_for_time=offset_for_time)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("earliest", Earliest()),
        (["latest"], Latest()),
        ("0", AtTime(timestamp_ms=0)),
        ("1700000000123", AtTime(timestamp_ms=1_700_000_000_123)),
        ("1970-01-01T00:00:01.5Z", AtTime(timestamp_ms=1500)),
        ("1970-01-01T02:00:00+02:00", AtTime(timestamp_ms=0)),
        ("2026-02-28T23:59:59.999-01:00", AtTime(timestamp_ms=1_772_326_799_999)),
        ("1970-01-01T00:00:00.000001Z", AtTime(timestamp_ms=1)),
        ("1970-01-01T00:00:00.001Z", AtTime(timestamp_ms=1)),
        ("a.b:0:7", AtOffsets(offsets={TopicPartition(topic="a.b", partition=0): 7})),
        (
            ["a:0:7", "a:1:0"],
            AtOffsets(offsets={TopicPartition(topic="a", partition=0): 7, TopicPartition(topic="a", partition=1): 0}),
        ),
        ({"a": {0: 7}}, AtOffsets(offsets={TopicPartition(topic="a", partition=0): 7})),
    ],
)
def test_a_start_is_read_from_words(words: str | list[str] | dict[str, dict[int, int]], expected: Start) -> None:
    assert parse_start(words) == expected


@pytest.mark.parametrize(
    "words",
    [
        "",
        "Earliest",
        "yesterday",
        "-1",
        "-2",
        "1.5",
        "2026-01-01",
        "2026-01-01T00:00:00",
        "1969-12-31T23:59:59Z",
        "9" * 20,
        "a:b:c",
        "a:-1:3",
        ":0:3",
        "a:0:99999999999999999999",
        "a:4294967296:1",
        [],
        ["earliest", "latest"],
        ["a:0:1", "latest"],
        ["a:0:1", "a:0:2"],
        {"a": {0: -1}},
    ],
)
def test_words_that_do_not_say_where_are_refused(words: str | list[str] | dict[str, dict[int, int]]) -> None:
    with pytest.raises(UsageError):
        parse_start(words)


@given(st.datetimes(timezones=st.timezones()).filter(lambda time: time.year > 1970))
def test_a_time_never_lets_a_record_in_that_is_older(time: datetime) -> None:
    start = parse_start(time.isoformat())
    assert isinstance(start, AtTime)
    late = start.timestamp_ms * timedelta(milliseconds=1) - (time - datetime(1970, 1, 1, tzinfo=UTC))
    assert timedelta(0) <= late < timedelta(milliseconds=1)


def test_starts_become_offsets() -> None:
    assert resolved(Earliest()) == StartOffset(offset=10)
    assert resolved(Latest()) == StartOffset(offset=90)
    assert resolved(AtTime(timestamp_ms=5)) == StartOffset(offset=90)
    assert resolved(AtTime(timestamp_ms=5), offset_for_time=40) == StartOffset(offset=40)
    assert resolved(AtTime(timestamp_ms=5), offset_for_time=4) == StartOffset(offset=10)


def test_an_offset_that_is_gone_begins_where_the_log_does_and_says_so() -> None:
    found = resolved(AtOffsets(offsets={WHERE: 4}))
    assert found.offset == 10
    assert found.note is not None
    assert "orders-3" in found.note
    assert resolved(AtOffsets(offsets={WHERE: 50})) == StartOffset(offset=50)


def test_an_offset_within_an_open_transaction_is_only_too_early() -> None:
    assert resolved(AtOffsets(offsets={WHERE: 100})) == StartOffset(offset=100)


def test_an_offset_that_the_log_has_not_reached_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        resolved(AtOffsets(offsets={WHERE: 101}))
    assert (caught.value.object_name, caught.value.offset) == ("orders-3", 101)


def test_a_partition_that_no_offset_was_given_for_is_never_left_out() -> None:
    assert resolved(AtOffsets(offsets={})) == StartOffset(offset=10)
