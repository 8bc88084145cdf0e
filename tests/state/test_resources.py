"""The state of a cluster as resources of other tools: complete, valid, and without secrets."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.kafka.state.cluster_state import Acl, ClusterState, Quota, QuotaEntity, ScramUser
from maxbrod.state.resources import resource_name, strimzi_resources, terraform_resources
from maxbrod.state.verb import changes_between
from support.restore_plans import cluster, topic


def acl(name: str = "orders", **changes: Any) -> Acl:
    values = {
        "resource_type": "TOPIC",
        "pattern_type": "LITERAL",
        "principal": "User:alice",
        "host": "*",
        "operation": "READ",
        "permission": "ALLOW",
        **changes,
    }
    return Acl(resource_name=name, **values)


def quota(value: float, *entities: tuple[str, str | None]) -> Quota:
    return Quota(
        entities=tuple(QuotaEntity(type=kind, name=name) for kind, name in entities),
        values={"producer_byte_rate": value},
    )


def state(**changes: Any) -> ClusterState:
    return replace(cluster(topic()), **changes)


def test_a_topic_and_a_user_are_resources_of_strimzi() -> None:
    rules = (acl(), acl(operation="DESCRIBE_CONFIGS"), acl("ord", pattern_type="PREFIXED", permission="DENY"))
    users = (ScramUser(name="alice", mechanism="SCRAM-SHA-512", iterations=4096),)
    found = strimzi_resources(state(acls=rules, users=users, quotas=(quota(1e6, ("user", "alice")),)), "prod")
    kinds = {document["kind"]: document for document in yaml.safe_load_all(yaml.safe_dump_all(found.documents))}
    assert kinds["KafkaTopic"]["spec"]["topicName"] == "orders"
    assert kinds["KafkaTopic"]["metadata"]["labels"] == {"strimzi.io/cluster": "prod"}
    assert kinds["KafkaUser"]["spec"] == {
        "authentication": {"type": "scram-sha-512"},
        "authorization": {
            "type": "simple",
            "acls": [
                {
                    "resource": {"type": "topic", "name": "ord", "patternType": "prefix"},
                    "operations": ["Read"],
                    "host": "*",
                    "type": "deny",
                },
                {
                    "resource": {"type": "topic", "name": "orders", "patternType": "literal"},
                    "operations": ["DescribeConfigs", "Read"],
                    "host": "*",
                    "type": "allow",
                },
            ],
        },
        "quotas": {"producerByteRate": 1_000_000},
    }
    assert found.left_out == ()


def test_what_a_tool_cannot_express_is_named() -> None:
    everybody, token = acl(principal="User:*"), acl(resource_type="DELEGATION_TOKEN")
    users = (ScramUser(name="bob", mechanism="SCRAM-SHA-256", iterations=4096),)
    quotas = (quota(5, ("user", None)), quota(5, ("user", "a"), ("client-id", "b")))
    odd = state(acls=(everybody, token), users=users, quotas=quotas)
    assert len(strimzi_resources(odd, "prod").left_out) == 5
    assert [line.split(":")[0] for line in terraform_resources(odd).left_out] == ["SCRAM user bob", "quota", "quota"]


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=70), min_size=1, max_size=8, unique=True))
def test_any_names_become_different_valid_names(names: list[str]) -> None:
    found = [resource_name(name) for name in names]
    assert len(set(found)) == len(found)
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", name) and len(name) <= 63 for name in found)


def test_terraform_reads_a_hostile_name_as_it_is() -> None:
    (document,) = terraform_resources(state(acls=(acl(principal='User:${file("/etc/passwd")}"%{if}'),))).documents
    (rule,) = json.loads(json.dumps(document))["resource"]["kafka_acl"].values()
    assert rule["acl_principal"] == 'User:$${file("/etc/passwd")}"%%{if}'


def test_the_difference_of_two_runs_is_what_was_added_removed_and_changed() -> None:
    before = state(acls=(acl(),), features={"metadata.version": 29})
    wider = replace(before.topics[0], replicas=(*before.topics[0].replicas, (1,)))
    after = replace(before, topics=(wider, replace(wider, name="new")), acls=(), features={"metadata.version": 30})
    found = [(change.what, change.name.split()[0], change.change) for change in changes_between(before, after)]
    assert found == [
        ("topic", "new", "added"),
        ("topic", "orders", "changed"),
        ("ACL", "TOPIC", "removed"),
        ("feature", "metadata.version", "changed"),
    ]
    assert list(changes_between(before, before)) == []


def test_what_a_run_could_not_read_is_not_called_removed() -> None:
    before = state(acls=(acl(),))
    assert list(changes_between(before, replace(before, acls=None))) == []
