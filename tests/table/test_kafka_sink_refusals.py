"""What a cluster does not take is told with topic, row and way out, and nothing of it is left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.config import KafkaConfig
from maxbrod.errors import RefusedError, UsageError
from maxbrod.kafka.admin import create_acls
from maxbrod.kafka.state.access import read_acls
from maxbrod.kafka.state.cluster_state import Acl
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.spec import SASL_PLAINTEXT
from maxbrod.sandbox.topics import create_topic
from support.kafka_writes import KEEP, Query, released, rows, values, write

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster
    from support.java_oracle import JavaOracle


def test_a_topic_that_is_not_there_is_named_or_created_on_request(
    cluster: Cluster, topic: str, java: JavaOracle
) -> None:
    with pytest.raises(UsageError, match=f"there is no topic {topic}") as caught:
        write(cluster, rows(topic, ["a"]))
    assert "createTopics" in str(caught.value.hint)
    options = {"createTopics": "true", "newTopicPartitions": "2", "newTopicReplicas": "1"}
    write(cluster, rows(topic, ["a"]), rows(topic, ["b"], partition=1), **options)
    assert values(java, cluster, topic) == ["a"]
    assert values(java, cluster, topic, 1) == ["b"]


@pytest.mark.parametrize(
    ("config", "words", "hint"),
    [
        ({"max.message.bytes": "1000"}, "exceeds the size limit of the topic", "max.message.bytes"),
        ({"message.timestamp.before.max.ms": "1000"}, "does not accept the timestamp of a record", "before.max.ms"),
    ],
)
def test_a_record_that_the_topic_refuses_is_told_with_its_row(
    cluster: Cluster, topic: str, config: dict[str, str], words: str, hint: str
) -> None:
    create_topic(cluster, topic, config=KEEP | config)
    with pytest.raises(RefusedError, match=words) as caught:
        write(cluster, rows(topic, ["x" * 3000]))
    assert caught.value.object_name == f"{topic}-0"
    assert caught.value.offset == 0
    assert hint in str(caught.value.hint)
    released(cluster, topic)


def test_batches_are_never_larger_than_the_topic_takes(cluster: Cluster, topic: str, java: JavaOracle) -> None:
    create_topic(cluster, topic, config=KEEP | {"max.message.bytes": "1000"})
    words = [f"{number:0100}" for number in range(50)]
    write(cluster, rows(topic, words))
    assert values(java, cluster, topic) == words


def test_a_user_needs_to_write_the_topic_and_the_transactional_ids_and_no_more(
    fenced: Cluster, topic: str, java: JavaOracle, tmp_path: Path
) -> None:
    create_topic(fenced, topic, config=KEEP)
    login = {f"kafka.{name}": value for name, value in fenced.java_properties(SASL_PLAINTEXT, "carol").items()}

    def allow(kind: str, name: str, pattern: str) -> None:
        rule = Acl(
            resource_type=kind,
            resource_name=name,
            pattern_type=pattern,
            principal="User:carol",
            host="*",
            operation="WRITE",
            permission="ALLOW",
        )
        with KafkaClient(KafkaConfig(bootstrap=fenced.bootstrap)) as admin:
            assert all(each.done for each in create_acls(admin, [rule]).values())
            wait_for("the rule", lambda: rule in read_acls(admin, deadline=Deadline.after(60))[1], timeout_s=60)

    options = {**login, "transactionalIdPrefix": topic, "transactionTimeout": "1m"}
    query = Query(fenced, tmp_path, **options)
    query.begin()
    with pytest.raises(UsageError, match="TOPIC_AUTHORIZATION_FAILED"):
        query.task([rows(topic, ["a"])], 0)
    allow("TOPIC", topic, "LITERAL")
    with pytest.raises(UsageError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED") as caught:
        query.task([rows(topic, ["a"])], 0)
    assert "Write the transactional id" in str(caught.value.hint)
    allow("TRANSACTIONAL_ID", f"{topic}-", "PREFIXED")
    query.begin()
    query.task([rows(topic, ["a"])], 0)  # lost
    query.batch(0, rows(topic, ["a"]))
    assert values(java, fenced, topic) == ["a"]
