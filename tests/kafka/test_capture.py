"""The state that is captured of a cluster is the state of the cluster, and a group's offsets are where it stands."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from kafka.errors import KafkaError
from kafka.protocol.admin import ElectionType

from maxbrod.errors import UnavailableError
from maxbrod.kafka import groups as groups_module
from maxbrod.kafka.state.capture import capture
from maxbrod.kafka.state.cluster_state import (
    EFFECTIVE_CONFIGS,
    CommittedOffset,
    Group,
    MissingState,
    Quota,
    QuotaEntity,
)
from maxbrod.kafka.state.topics import partition_sizes
from maxbrod.kafka.wire import coordination
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.connection import ApiVersions, Connection
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import topic_id_text
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic, replicas
from maxbrod.sandbox.topics import topic_id as topic_id_in
from maxbrod.sandbox.traffic import numbered, produce
from support.cluster_changes import (
    classic_member,
    commit,
    commit_many,
    consume_by_the_new_protocol,
    make_share_group,
    set_quota,
)
from support.kafka_reads import client_of, log_bytes, partition_of

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster
    from support.java_oracle import JavaOracle

NO_AUTHORIZER = MissingState(
    what="ACLs", why="the cluster has no authorizer", hint="nothing is lost: without one there are no ACLs"
)
OVERRIDES = {"cleanup.policy": "compact,delete", "retention.ms": "86400000", "max.message.bytes": "2000000"}


@pytest.fixture
def cluster3(cluster3: Cluster) -> Cluster:
    """With coordinators on every broker: where other tests have stopped brokers, one of them may lead everything."""
    with cluster3.admin() as admin:

        def elected() -> bool:
            # A broker that was just started again can lead nothing before it has caught up.
            with suppress(KafkaError):
                admin.elect_leaders(ElectionType.PREFERRED, ["__consumer_offsets"])
            (found,) = admin.describe_topics(["__consumer_offsets"])
            return all(each["leader_id"] == each["replica_nodes"][0] for each in found["partitions"])

        if "__consumer_offsets" in admin.list_topics():
            wait_for("the preferred leaders", elected, timeout_s=60)
    return cluster3


def group_of(cluster: Cluster, group_id: str) -> Group:
    with client_of(cluster) as client:
        found = capture(client).group(group_id)
    assert found is not None
    return found


def test_topics_are_captured_with_what_was_set_on_them_and_what_is_in_force(cluster3: Cluster, topic: str) -> None:
    topic_id = create_topic(cluster3, topic, assignments={0: [1, 2], 1: [3, 1], 2: [2, 3]}, config=OVERRIDES)
    create_topic(cluster3, plain := f"{topic}-plain")
    with client_of(cluster3) as client:
        state = capture(client)
    assert state.cluster_id == cluster3.spec.cluster_id
    assert [each.node_id for each in state.brokers] == list(cluster3.broker_ids)
    found, default = state.topic(topic), state.topic(plain)
    assert found is not None
    assert default is not None
    assert (found.topic_id, found.internal, found.compacted) == (topic_id_text(topic_id), False, True)
    assert found.replicas == ((1, 2), (3, 1), (2, 3))
    assert (found.partition_count, found.replication_factor) == (3, 2)
    assert found.configs == OVERRIDES
    assert (default.configs, default.compacted) == ({}, False)
    for each in (found, default):
        assert each.effective is not None
        assert sorted(each.effective) == sorted(EFFECTIVE_CONFIGS)
    assert OVERRIDES.items() <= dict(found.effective or {}).items()
    # The sandbox's own settings, which came from its brokers' configuration and not from the topic.
    assert (default.effective or {})["retention.ms"] == "-1"


def test_only_the_topics_asked_for_are_captured_and_those_that_are_not_there_are_not(
    cluster: Cluster, topic: str
) -> None:
    create_topic(cluster, topic)
    with client_of(cluster) as client:
        state = capture(client, [topic, "no-such-topic"])
    assert [each.name for each in state.topics] == [topic]
    assert state.gaps == (NO_AUTHORIZER,)


def test_a_cluster_without_an_authorizer_has_no_acls_and_says_so(cluster: Cluster) -> None:
    with client_of(cluster) as client:
        state = capture(client)
    assert state.acls == ()
    assert state.gaps == (NO_AUTHORIZER,)


def test_a_topic_id_is_what_java_prints(java: JavaOracle, cluster: Cluster, topic: str) -> None:
    topic_id = create_topic(cluster, topic)
    uuid = java.jvm.org.apache.kafka.common.Uuid.fromString(topic_id_text(topic_id))
    signed = [value - (1 << 64) if value >> 63 else value for value in divmod(topic_id.int, 1 << 64)]
    assert [uuid.getMostSignificantBits(), uuid.getLeastSignificantBits()] == signed


def set_of(quotas: tuple[Quota, ...] | None) -> set[str]:
    return set(map(repr, quotas or ()))


def test_quotas_are_captured_with_defaults_told_from_names(cluster: Cluster, topic: str) -> None:
    named = (QuotaEntity(type="client-id", name=topic),)
    default = (QuotaEntity(type="client-id", name=None), QuotaEntity(type="user", name=topic))
    wanted = (
        Quota(entities=named, values={"consumer_byte_rate": 1e9, "request_percentage": 12.5}),
        Quota(entities=default, values={"producer_byte_rate": 1e9}),
    )
    with client_of(cluster) as client:
        for quota in wanted:
            set_quota(client, quota.entities, quota.values)
        wait_for(
            "the quotas", lambda: all(quota in (capture(client, []).quotas or ()) for quota in wanted), timeout_s=60
        )
        for quota in wanted:
            set_quota(client, quota.entities, dict.fromkeys(quota.values))


def test_a_group_without_members_is_captured_with_metadata_and_leader_epoch(cluster: Cluster, topic: str) -> None:
    topic_id = topic_id_text(create_topic(cluster, topic, partitions=12))
    commit(cluster, topic, topic, {11: (7, "a note: \u00e4\u20ac", 3), 2: (1 << 40, "", -1)})
    assert group_of(cluster, topic) == Group(
        group_id=topic,
        type="classic",
        state="Empty",
        protocol_type="",
        offsets=(
            CommittedOffset(topic=topic, topic_id=topic_id, partition=2, offset=1 << 40, leader_epoch=-1, metadata=""),
            CommittedOffset(
                topic=topic,
                topic_id=topic_id,
                partition=11,
                offset=7,
                leader_epoch=3,
                metadata="a note: \u00e4\u20ac",
            ),
        ),
    )


def test_a_classic_group_with_members_is_captured_as_it_runs(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(20))
    with classic_member(cluster, topic, topic, until=20):
        found = group_of(cluster, topic)
    assert (found.type, found.state, found.protocol_type) == ("classic", "Stable", "consumer")
    assert [(each.where, each.offset) for each in found.offsets or ()] == [(partition_of(topic), 20)]


def test_a_group_of_the_new_protocol_is_captured_as_such(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(20))
    consume_by_the_new_protocol(cluster, topic, topic, 8)
    found = group_of(cluster, topic)
    assert (found.type, found.state, found.protocol_type) == ("consumer", "Empty", "consumer")
    assert [(each.where, each.offset) for each in found.offsets or ()] == [(partition_of(topic), 8)]


@pytest.fixture(scope="module")
def share_group(cluster: Cluster) -> str:
    """A share group at offset 20 of partition 0 of the topic of the same name."""
    name = "captured-share-group"
    create_topic(cluster, name)
    produce(cluster, name, numbered(20))
    with client_of(cluster) as client:
        make_share_group(cluster, client, name, name)
    return name


def test_a_share_group_is_captured_with_its_start_offsets(cluster: Cluster, share_group: str) -> None:
    found = group_of(cluster, share_group)
    assert (found.type, found.state, found.protocol_type) == ("share", "Empty", "share")
    (offset,) = found.offsets or ()
    topic_id = topic_id_text(topic_id_in(cluster, share_group))
    assert (offset.where, offset.topic_id, offset.offset) == (partition_of(share_group), topic_id, 20)


def test_offsets_of_a_topic_that_is_not_captured_stay_with_their_group(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic)
    commit(cluster, topic, topic, {0: (5, "", -1)})
    with client_of(cluster) as client:
        found = capture(client, []).group(topic)
    assert found is not None
    assert [(each.where, each.topic_id, each.offset) for each in found.offsets or ()] == [
        (partition_of(topic), None, 5)
    ]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each request was sent."""
    counts: Counter[str] = Counter()
    ask = Connection.ask

    def counted(connection: Connection, request: Any, deadline: Deadline) -> Any:
        counts[request.name] += 1
        return ask(connection, request, deadline)

    monkeypatch.setattr(Connection, "ask", counted)
    return counts


def test_many_groups_are_a_handful_of_requests(
    cluster3: Cluster, topic: str, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster3, topic)
    groups = commit_many(cluster3, topic, 60)
    with client_of(cluster3) as client:
        state = capture(client, [topic])
        full = len(state.groups) // 200  # other tests leave groups behind, too
        assert asked["FindCoordinatorRequest"] == full + 1
        assert asked["OffsetFetchRequest"] <= full + len(cluster3.broker_ids)
        assert sum(asked.values()) < 50
        monkeypatch.setattr(coordination, "_GROUPS_PER_REQUEST", 7)
        in_portions = capture(client, [topic])
    assert in_portions.groups == state.groups
    offsets = {each.group_id: each.offsets for each in state.groups if each.group_id in groups}
    assert sorted(offsets) == sorted(groups)
    assert all(each and each[0].offset == 9 for each in offsets.values())


def test_a_coordinator_that_has_moved_is_asked_again(
    cluster3: Cluster, topic: str, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster3, topic)
    groups = commit_many(cluster3, topic, 20)
    by_coordinator = coordination._by_coordinator
    lies = 1

    def out_of_date(*arguments: Any) -> Any:
        nonlocal lies
        for node_id, portion in by_coordinator(*arguments):
            yield node_id % 3 + 1 if lies else node_id, portion
        lies = 0

    monkeypatch.setattr(coordination, "_by_coordinator", out_of_date)
    with client_of(cluster3) as client:
        state = capture(client, [topic])
    assert not lies
    assert state.gaps == (NO_AUTHORIZER,)
    assert {each.offsets[0].offset for each in state.groups if each.group_id in groups and each.offsets} == {9}
    assert asked["OffsetFetchRequest"] > 3


def test_groups_are_listed_again_when_coordinators_moved_meanwhile(
    cluster3: Cluster, topic: str, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster3, topic)
    commit(cluster3, topic, topic, {0: (1, "", -1)})
    leaders = groups_module._coordinators
    before = [{0: (1, 0)}]  # what was true a moment ago

    def moving(*arguments: Any) -> Any:
        return before.pop() if before else leaders(*arguments)

    monkeypatch.setattr(groups_module, "_coordinators", moving)
    with client_of(cluster3) as client:
        found, incomplete = groups_module.list_groups(client, deadline=Deadline.after(60))
    assert topic in found
    assert incomplete is None
    assert asked["ListGroupsRequest"] == 2 * len(cluster3.broker_ids)


def test_a_broker_that_does_not_answer_is_said_and_the_groups_of_the_others_are_there(
    cluster3: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster3, topic)
    everyone = set(commit_many(cluster3, topic, 20))
    ask_broker, seen = KafkaClient.ask_broker, dict[int, int]()

    def heard(client: KafkaClient, node_id: int, request: Any, *, deadline: Deadline) -> Any:
        answer = ask_broker(client, node_id, request, deadline=deadline)
        seen[node_id] = len(everyone & {group.group_id for group in getattr(answer, "groups", ())})
        return answer

    # A broker that another test has restarted may not coordinate any group yet.
    with client_of(cluster3) as client, monkeypatch.context() as listening:
        listening.setattr(KafkaClient, "ask_broker", heard)
        groups_module.list_groups(client, deadline=Deadline.after(60))
    silent = min(node_id for node_id, count in seen.items() if count)

    def deaf(client: KafkaClient, node_id: int, request: Any, *, deadline: Deadline) -> Any:
        if node_id == silent:
            raise UnavailableError("could not get an answer", object_name=f"broker {silent}")
        return ask_broker(client, node_id, request, deadline=deadline)

    monkeypatch.setattr(KafkaClient, "ask_broker", deaf)
    with client_of(cluster3) as client:
        state = capture(client, [topic], deadline=Deadline.after(6))
    found = everyone & {each.group_id for each in state.groups}
    assert set() < found < everyone
    assert all(each.offsets for each in state.groups if each.group_id in found)
    (gap,) = (each for each in state.gaps if each.what == "groups")
    assert f"broker {silent}" in gap.why


def test_what_an_older_broker_cannot_tell_is_said_and_the_rest_is_there(
    cluster: Cluster, topic: str, share_group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic)
    commit(cluster, topic, topic, {0: (1, "", -1)})
    choose = ApiVersions.choose

    def older(versions: ApiVersions, request_class: Any) -> int:
        known = {key: each for key, each in versions.ranges.items() if key not in {50, 90}}
        return choose(ApiVersions(broker=versions.broker, ranges=known), request_class)

    monkeypatch.setattr(ApiVersions, "choose", older)
    with client_of(cluster) as client:
        state = capture(client, [topic])
    offsets = {each.group_id: each.offsets for each in state.groups}
    assert state.users is None
    assert offsets[share_group] is None
    assert offsets[topic]
    said = {each.what: each for each in state.gaps}
    assert "too old" in said["SCRAM users"].why
    assert "upgrade the broker" in said["SCRAM users"].hint
    assert "too old" in said[f"offsets of group {share_group}"].why


def test_sizes_are_those_of_the_leaders_logs(cluster3: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create_topic(cluster3, topic, assignments={0: [1, 3], 1: [2, 3], 2: [1, 3]})
    for partition in range(3):
        produce(cluster3, topic, numbered(50 * (partition + 1)), partition=partition)
    heard = set()
    ask_broker = KafkaClient.ask_broker

    def noted(client: KafkaClient, node_id: int, request: Any, *, deadline: Deadline) -> Any:
        heard.add(node_id)
        return ask_broker(client, node_id, request, deadline=deadline)

    monkeypatch.setattr(KafkaClient, "ask_broker", noted)
    with client_of(cluster3) as client:
        sizes = partition_sizes(
            client, [*(partition_of(topic, index) for index in range(3)), partition_of("no-such-topic")]
        )
    leaders = [replicas(cluster3, topic, index).leader for index in range(3)]
    logs = [log_bytes(cluster3, topic, broker=leader, partition=index) for index, leader in enumerate(leaders)]
    assert sizes == {partition_of(topic, index): len(log) for index, log in enumerate(logs)}
    assert heard == set(leaders)


def test_groups_that_nobody_asked_for_are_not_asked_about(cluster: Cluster, topic: str, asked: Counter[str]) -> None:
    create_topic(cluster, topic)
    wanted, other = f"{topic}-wanted", f"{topic}-other"
    for group in (wanted, other):
        commit(cluster, group, topic, {0: (5, "", -1)})
    asked.clear()
    with client_of(cluster) as client:
        state = capture(client, [topic], [wanted, "no-such-group"])
        assert [each.group_id for each in state.groups] == [wanted]
        assert asked["OffsetFetchRequest"] == 1
        asked.clear()
        assert capture(client, [topic], ()).groups == ()
    assert not {"ListGroupsRequest", "FindCoordinatorRequest", "OffsetFetchRequest"} & set(asked)
