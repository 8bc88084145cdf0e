"""Kafka's own classes write records of `__consumer_offsets` in every version, and we read what they meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from maxbrod.layouts.offsets_records import CommitKey, GroupKey, GroupMember, decode_commit, decode_group, decode_key
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


@pytest.mark.parametrize("version", range(5))
def test_java_s_groups_are_read_in_every_version(java: JavaOracle, version: int) -> None:
    classes = generated(java)
    member = (
        getattr(classes, "GroupMetadataValue$MemberMetadata")().setMemberId("m").setClientId("c").setClientHost("/h")
    )
    member = member.setSessionTimeout(10).setSubscription(b"topics").setAssignment(b"")
    if version >= 1:
        member = member.setRebalanceTimeout(20)
    if version >= 3:
        member = member.setGroupInstanceId("static")
    members = java.jvm.java.util.ArrayList()
    members.add(member)
    members.add(member.duplicate())
    value = classes.GroupMetadataValue().setProtocolType("consumer").setGeneration(3).setProtocol("range")
    value = value.setLeader(None).setMembers(members)
    if version >= 2:
        value = value.setCurrentStateTimestamp(99)
    group = decode_group(written(java, version, value))
    assert (group.protocol_type, group.generation, group.protocol, group.leader) == ("consumer", 3, "range", None)
    assert group.state_timestamp_ms == (99 if version >= 2 else -1)
    found = GroupMember(
        member_id="m",
        instance_id="static" if version >= 3 else None,
        client_id="c",
        client_host="/h",
        rebalance_timeout_ms=20 if version >= 1 else -1,
        session_timeout_ms=10,
        subscription=b"topics",
        assignment=b"",
    )
    assert group.members == (found, found)


def test_java_s_keys_are_read(java: JavaOracle) -> None:
    classes = generated(java)
    for kind, key in ((0, classes.LegacyOffsetCommitKey()), (1, classes.OffsetCommitKey())):
        data = written(java, kind, key.setGroup("g").setTopic("t").setPartition(5))
        assert decode_key(data) == CommitKey(group_id="g", where=TopicPartition(topic="t", partition=5))
    group = written(java, 2, classes.GroupMetadataKey().setGroup("g"))
    assert decode_key(group) == GroupKey(group_id="g")
    assert decode_key(written(java, 3, classes.ConsumerGroupMetadataKey().setGroupId("g"))) is None
