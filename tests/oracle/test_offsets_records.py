"""Kafka's own classes write records of `__consumer_offsets` in every version, and we read what they meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from maxbrod.layouts.internal_topics import CommitKey, decode_commit, decode_key
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from support.java_oracle import JavaOracle

TOPIC_ID = UUID("12345678-1234-5678-9234-567812345678")


def written(java: JavaOracle, version: int, message: Any) -> bytes:
    return bytes(java.jvm.org.apache.kafka.common.protocol.MessageUtil.toVersionPrefixedBytes(version, message))


def generated(java: JavaOracle) -> Any:
    return java.jvm.org.apache.kafka.coordinator.group.generated


@pytest.mark.parametrize("version", range(5))
def test_java_s_commits_are_read_in_every_version(java: JavaOracle, version: int) -> None:
    value = generated(java).OffsetCommitValue().setOffset(1 << 40).setMetadata("wo · 何処").setCommitTimestamp(1234)
    if version == 1:
        value = value.setExpireTimestamp(5678)
    if version >= 3:
        value = value.setLeaderEpoch(12)
    if version >= 4:
        parts = (int.from_bytes(half, "big", signed=True) for half in (TOPIC_ID.bytes[:8], TOPIC_ID.bytes[8:]))
        value = value.setTopicId(java.jvm.org.apache.kafka.common.Uuid(*parts))
    commit = decode_commit(written(java, version, value))
    assert (commit.offset, commit.metadata, commit.commit_timestamp_ms) == (1 << 40, "wo · 何処", 1234)
    assert commit.expire_timestamp_ms == (5678 if version == 1 else -1)
    assert commit.leader_epoch == (12 if version >= 3 else -1)
    assert commit.topic_id == (TOPIC_ID if version >= 4 else None)


def test_java_s_keys_are_read(java: JavaOracle) -> None:
    classes = generated(java)
    for kind, key in ((0, classes.LegacyOffsetCommitKey()), (1, classes.OffsetCommitKey())):
        data = written(java, kind, key.setGroup("g").setTopic("t").setPartition(5))
        assert decode_key(data) == CommitKey(group_id="g", where=TopicPartition(topic="t", partition=5))
    group = written(java, 2, classes.GroupMetadataKey().setGroup("g"))
    assert decode_key(group) is None
    assert decode_key(written(java, 3, classes.ConsumerGroupMetadataKey().setGroupId("g"))) is None
