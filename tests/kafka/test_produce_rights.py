"""Who may not write is told which right is missing; who may not write markers has another way; nothing is doubled."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from maxbrod.config import KafkaConfig, from_java_properties
from maxbrod.errors import UnsupportedFormatError, UsageError
from maxbrod.kafka.admin import NewTopic, alter_configs, create_acls, create_topics, set_quotas
from maxbrod.kafka.fetch.offsets import log_end
from maxbrod.kafka.groups import commit_offsets
from maxbrod.kafka.produce.appends import Hole
from maxbrod.kafka.produce.empty_offsets import fill_by_transactions
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.producer_ids import new_producer_id
from maxbrod.kafka.state.access import cluster_operations, group_operations, read_acls, read_quotas, topic_operations
from maxbrod.kafka.state.cluster_state import Acl, CommittedOffset, Quota, QuotaEntity
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.connection import Connection
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.sandbox.events import orders
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.spec import SASL_PLAINTEXT, SASL_SSL
from maxbrod.sandbox.topics import create_topic
from support.clusters import start_cluster
from support.kafka_appends import assert_stored, batches_of, feed_of, produce_orders
from support.kafka_reads import client_of, partition_of
from support.kafka_writes import released, rows, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full

KEEP = {"retention.ms": "-1"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with start_cluster(
        tmp_path_factory.mktemp("rights"), listeners=(SASL_PLAINTEXT, SASL_SSL), authorizer=True
    ) as started:
        yield started


@pytest.fixture
def admin(guarded: Cluster) -> Iterator[KafkaClient]:
    with client_of(guarded) as opened:
        yield opened


@pytest.fixture
def alice(guarded: Cluster) -> Iterator[KafkaClient]:
    with KafkaClient(config_of(guarded, "alice")) as opened:
        yield opened


def config_of(cluster: Cluster, user: str, listener: str = SASL_PLAINTEXT) -> KafkaConfig:
    return from_java_properties(cluster.java_properties(listener, user))


def rule(resource_type: str, name: str, operation: str, *, user: str = "alice") -> Acl:
    return Acl(
        resource_type=resource_type,
        resource_name=name,
        pattern_type="LITERAL",
        principal=f"User:{user}",
        host="*",
        operation=operation,
        permission="ALLOW",
    )


def allow(admin: KafkaClient, *acls: Acl) -> None:
    outcomes = create_acls(admin, acls)
    assert all(each.done for each in outcomes.values()), outcomes
    # The broker hears of it from the controller, a moment later.
    wait_for(
        "the rules",
        lambda: set(acls) <= set(read_acls(admin, deadline=Deadline.after(60))[1]),
        timeout_s=60,
    )


def test_who_may_not_write_is_told_which_right_is_missing(
    guarded: Cluster, admin: KafkaClient, alice: KafkaClient, topic: str
) -> None:
    create_topic(guarded, topic, config=KEEP)
    identity = new_producer_id(admin)
    with pytest.raises(UsageError, match="TOPIC_AUTHORIZATION_FAILED") as caught:
        produce_orders(alice, topic, identity, 100)
    assert caught.value.object_name == topic
    allow(admin, rule("TOPIC", topic, "DESCRIBE"))
    with pytest.raises(UsageError, match="may not write to the topic") as caught:
        produce_orders(alice, topic, identity, 100)
    assert (caught.value.object_name, caught.value.offset) == (f"{topic}-0", 0)
    assert "Write" in str(caught.value.hint)
    assert log_end(admin, partition_of(topic)) == 0


def test_a_dataframe_is_written_over_tls_with_a_login(guarded: Cluster, admin: KafkaClient, topic: str) -> None:
    create_topic(guarded, topic, config=KEEP)
    ids = replace(rule("TRANSACTIONAL_ID", f"{topic}-", "WRITE"), pattern_type="PREFIXED")
    allow(admin, rule("TOPIC", topic, "WRITE"), ids)
    login = {f"kafka.{name}": value for name, value in guarded.java_properties(SASL_SSL, "alice").items()}
    write(guarded, rows(topic, ["a", "b"]), transactionalIdPrefix=topic, **login)
    released(guarded, topic)
    assert log_end(admin, partition_of(topic)) == 3  # with the marker


def test_brokers_tell_what_is_allowed_also_on_what_is_not_there(
    guarded: Cluster, admin: KafkaClient, alice: KafkaClient, topic: str
) -> None:
    create_topic(guarded, topic)
    limit = Deadline.after(30)
    absent = f"{topic}-not-there"
    told = topic_operations(admin, [topic, absent], deadline=limit)
    assert told[topic] == told[absent] >= {"READ", "WRITE", "CREATE", "DELETE", "ALTER_CONFIGS", "DESCRIBE_CONFIGS"}
    assert {"CREATE", "ALTER", "ALTER_CONFIGS", "CLUSTER_ACTION"} <= (
        cluster_operations(admin, deadline=limit) or set()
    )

    assert topic_operations(alice, [topic, absent], deadline=limit) == {topic: frozenset(), absent: frozenset()}
    assert cluster_operations(alice, deadline=limit) is None, "who may not Describe the cluster is told nothing"
    assert group_operations(alice, [topic], deadline=limit) == {topic: frozenset()}
    allow(admin, rule("TOPIC", topic, "WRITE"), rule("TOPIC", absent, "READ"), rule("GROUP", topic, "READ"))
    told = topic_operations(alice, [topic, absent], deadline=limit)
    assert told == {topic: {"WRITE", "DESCRIBE"}, absent: {"READ", "DESCRIBE"}}
    assert group_operations(alice, [topic], deadline=limit) == {topic: {"READ", "DESCRIBE"}}


def test_holes_without_the_right_to_write_markers_are_refused_and_filled_by_transactions(
    guarded: Cluster, admin: KafkaClient, alice: KafkaClient, topic: str
) -> None:
    create_topic(guarded, topic, config=KEEP)
    allow(admin, rule("TOPIC", topic, "WRITE"))
    where = partition_of(topic)
    identity = new_producer_id(alice)
    batches = batches_of(orders(200), identity)
    with pytest.raises(UsageError, match="CLUSTER_AUTHORIZATION_FAILED") as caught:
        list(produce_all(alice, [feed_of(alice, topic, [batches[0], Hole(count=7, source_offset=100), batches[1]])]))
    assert "ClusterAction" in str(caught.value.hint)
    assert caught.value.offset == 100
    assert log_end(admin, where) == 100
    with pytest.raises(UsageError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED") as caught:
        fill_by_transactions(alice, {where: 107}, transactional_id=topic)
    assert "transactional id" in str(caught.value.hint)
    allow(admin, rule("TRANSACTIONAL_ID", topic, "WRITE"))
    fill_by_transactions(alice, {where: 107}, transactional_id=topic)
    assert log_end(alice, where) == 107
    list(produce_all(alice, [feed_of(alice, topic, batches[1:], first_offset=107)]))


def test_changes_that_are_not_allowed_are_outcomes_and_not_errors(
    guarded: Cluster, alice: KafkaClient, topic: str
) -> None:
    create_topic(guarded, topic)
    assert create_topics(alice, [NewTopic(name=f"{topic}-x")])[f"{topic}-x"].code == Code.TOPIC_AUTHORIZATION_FAILED
    assert alter_configs(alice, {topic: {"retention.ms": "1"}})[topic].code == Code.TOPIC_AUTHORIZATION_FAILED
    offset = CommittedOffset(topic=topic, topic_id=None, partition=0, offset=1, leader_epoch=-1, metadata="")
    assert commit_offsets(alice, topic, [offset])[offset.where].code == Code.GROUP_AUTHORIZATION_FAILED
    acl = rule("TOPIC", topic, "ALL")
    assert create_acls(alice, [acl])[acl].code == Code.CLUSTER_AUTHORIZATION_FAILED


def test_rules_and_quotas_come_back_as_they_were(admin: KafkaClient, topic: str) -> None:
    rules = {
        rule("TOPIC", topic, "READ"),
        rule("GROUP", "*", "DESCRIBE", user="bob"),
        rule("CLUSTER", "kafka-cluster", "CLUSTER_ACTION", user=topic),
    }
    allow(admin, *rules)
    quotas = (
        Quota(entities=(QuotaEntity(type="user", name=topic),), values={"producer_byte_rate": 1e6}),
        Quota(
            entities=(QuotaEntity(type="user", name=topic), QuotaEntity(type="client-id", name=None)),
            values={"consumer_byte_rate": 2e6, "request_percentage": 150.0},
        ),
    )
    assert all(each.done for each in set_quotas(admin, quotas).values())
    wait_for(
        "the quotas", lambda: set_of(quotas) <= set_of(read_quotas(admin, deadline=Deadline.after(60))), timeout_s=60
    )
    bad = Quota(entities=(QuotaEntity(type="user", name=topic),), values={"beer_rate": 1.0})
    (outcome,) = set_quotas(admin, [bad]).values()
    assert not outcome.done


def set_of(quotas: tuple[Quota, ...]) -> set[tuple[object, ...]]:
    return {(each.entities, *sorted(each.values.items())) for each in quotas}


def test_a_rule_that_nobody_knows_is_refused(admin: KafkaClient) -> None:
    with pytest.raises(UnsupportedFormatError, match="'99'"):
        create_acls(admin, [rule("TOPIC", "any", "99")])


def test_a_throttled_producer_keeps_silent_and_loses_and_doubles_nothing(
    guarded: Cluster, admin: KafkaClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(guarded, topic, config=KEEP)
    records = orders(1500)
    batches = batches_of(records, new_producer_id(admin))
    # A broker counts over ten seconds: the last tenth of these bytes is too much, and costs about a second.
    rate = sum(len(batch.data) for batch in batches) * 0.9 / 10
    quota = Quota(
        entities=(QuotaEntity(type="client-id", name=topic),), values={"producer_byte_rate": float(int(rate))}
    )
    assert all(each.done for each in set_quotas(admin, [quota]).values())
    wait_for(
        "the quota",
        lambda: set_of((quota,)) <= set_of(read_quotas(admin, deadline=Deadline.after(60))),
        timeout_s=60,
    )
    asked: list[int] = []
    throttle = Connection.throttle

    def noted(self: Connection, milliseconds: int) -> None:
        asked.append(milliseconds)
        throttle(self, milliseconds)

    monkeypatch.setattr(Connection, "throttle", noted)
    with client_of(guarded, client_id=topic) as client:
        list(produce_all(client, [feed_of(client, topic, batches)]))
    assert max(asked) > 0
    assert_stored(guarded, topic, records)


def test_batches_go_through_tls(guarded: Cluster, topic: str) -> None:
    create_topic(guarded, topic, config=KEEP)
    with KafkaClient(config_of(guarded, "admin", SASL_SSL)) as client:
        records = produce_orders(client, topic, new_producer_id(client), 2000)
    assert_stored(guarded, topic, records)
