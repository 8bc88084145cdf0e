"""Groups come out of their topic with every version of its records; one that cannot be read costs no other."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.errors import MaxbrodError
from maxbrod.layouts.foreign import ForeignGroup
from maxbrod.layouts.internal_topics import decode_commit, decode_key, read_offsets_topic
from maxbrod.model import TopicPartition
from support.offsets_records import COMMIT, Row, as_batch, commit_key, commit_value, group_key, marker, text

TOPIC_ID = UUID("11112222-3333-4444-5555-666677778888")


def at(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic=topic, partition=partition)


@pytest.mark.parametrize("version", range(5))
def test_a_commit_of_any_version_is_read(version: int) -> None:
    value = commit_value(42, version=version, metadata="ä", epoch=7, topic_id=TOPIC_ID.bytes)
    commit = decode_commit(value)
    assert (commit.offset, commit.metadata, commit.commit_timestamp_ms) == (42, "ä", 1_700_000_000_000)
    assert commit.leader_epoch == (7 if version >= 3 else -1)
    assert commit.expire_timestamp_ms == (1_700_000_001_000 if version == 1 else -1)
    assert commit.topic_id == (TOPIC_ID if version == 4 else None)


def test_a_commit_has_the_bytes_of_kafkas_definition() -> None:
    value = bytes.fromhex("0003 000000000000002a 00000007 0002 6f6b 0000018bcfe56800")
    commit = decode_commit(value)
    assert (commit.offset, commit.leader_epoch, commit.metadata) == (42, 7, "ok")
    assert commit.commit_timestamp_ms == 1_700_000_000_000
    assert value == commit_value(42, metadata="ok", epoch=7)


def test_the_last_word_on_each_partition_of_a_group_counts() -> None:
    rows = [
        Row(commit_key("g", "t", 0), commit_value(1)),
        Row(commit_key("g", "t", 1), commit_value(10)),
        Row(commit_key("g", "t", 0, kind=0), commit_value(2, version=0)),
        Row(commit_key("gone", "t", 0), commit_value(5)),
        Row(commit_key("g", "t", 1), None),
        Row(commit_key("gone", "t", 0), None),
        Row(commit_key("old", "t", 0, kind=0), commit_value(5, version=0)),
        Row(commit_key("old", "t", 0), None),
        Row(group_key("g"), b"a group of the classic protocol"),
        Row(struct.pack(">h", 3) + text("g"), b"a group of the new protocol"),
        Row(commit_key("h", "t", 0), commit_value(7), 9),
        marker(9, COMMIT),
        Row(commit_key("h", "t", 0), commit_value(8), 9),
    ]
    topic = read_offsets_topic([[as_batch(rows)]])
    assert topic.groups() == (
        ForeignGroup(group_id="g", offsets={at("t"): 2}),
        ForeignGroup(group_id="h", offsets={at("t"): 7}),
    )
    assert not topic.unreadable


def test_groups_of_several_partitions_come_together_by_name() -> None:
    parts = [[as_batch([Row(commit_key(group, "t", 0), commit_value(3))])] for group in ("z", "a")]
    assert [group.group_id for group in read_offsets_topic(parts).groups()] == ["a", "z"]


def test_a_record_that_cannot_be_read_costs_no_other() -> None:
    rows = [
        Row(commit_key("g", "t", 0), commit_value(1)),
        Row(commit_key("g", "t", 1), b"\x00\x09" + commit_value(1)[2:]),
        Row(commit_key("g", "t", 2), commit_value(1)[:-3]),
        Row(b"\x00", b""),
        Row(struct.pack(">hh", 1, 500) + b"x", commit_value(1)),
    ]
    topic = read_offsets_topic([[as_batch(rows)]])
    assert topic.groups() == (ForeignGroup(group_id="g", offsets={at("t"): 1}),)
    assert [offset for offset, _ in topic.unreadable] == [1, 2, 3, 4]
    assert "version 9" in topic.unreadable[0][1]


@given(data=st.binary(max_size=80), version=st.integers(0, 4))
def test_no_bytes_crash_the_reader(data: bytes, version: int) -> None:
    for decode in (decode_key, decode_commit):
        for prefix in (b"", struct.pack(">h", version)):
            try:
                decode(prefix + data)
            except MaxbrodError:
                continue
