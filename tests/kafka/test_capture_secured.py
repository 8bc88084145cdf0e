"""What a user may not read is said with what would allow it, and the rest is captured; no secret ever is."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from kafka.protocol.admin import CreateAclsRequest

from maxbrod.config import from_java_properties
from maxbrod.kafka.produce.transactions import open_transactions
from maxbrod.kafka.state.access import read_acls, read_tokens
from maxbrod.kafka.state.capture import capture
from maxbrod.kafka.state.cluster_state import (
    OPERATIONS,
    PATTERN_TYPES,
    PERMISSIONS,
    RESOURCE_TYPES,
    Acl,
    ClusterState,
    encode_state,
)
from maxbrod.kafka.state.topics import partition_sizes
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.sandbox.jars import run_tool
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, open_transaction, produce
from support.cluster_changes import commit
from support.clusters import start_cluster
from support.kafka_reads import client_of, partition_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full

PASSWORDS = {"admin": "admin-secret", "alice": "alice-secret", "carol": "carol-secret"}


def rule(principal: str, operation: str, kind: str, name: str, **other: str) -> Acl:
    """ALLOW from everywhere, on one name, unless said otherwise."""
    usual = {"pattern_type": "LITERAL", "host": "*", "permission": "ALLOW"}
    return Acl(principal=principal, operation=operation, resource_type=kind, resource_name=name, **{**usual, **other})


# Alice has the least that lets her back `seen` up; Carol may also describe the cluster.
ALICE = (
    rule("User:alice", "READ", "TOPIC", "seen"),
    rule("User:alice", "DESCRIBE", "GROUP", "seen-group"),
)
CAROL = (
    rule("User:carol", "DESCRIBE", "TOPIC", "seen"),
    rule("User:carol", "DESCRIBE_CONFIGS", "TOPIC", "seen"),
    rule("User:carol", "DESCRIBE", "CLUSTER", "kafka-cluster"),
    rule("User:carol", "DESCRIBE", "GROUP", "seen-group"),
)
ODD = (
    rule("User:*", "ALL", "TOPIC", "pre-", pattern_type="PREFIXED", host="10.0.0.1", permission="DENY"),
    rule("User:dave", "TWO_PHASE_COMMIT", "TRANSACTIONAL_ID", "tx"),
    rule("User:dave", "CREATE_TOKENS", "USER", "User:erin"),
    rule("User:CN=\u00e4,O=x", "ALTER_CONFIGS", "CLUSTER", "kafka-cluster"),
)


EVERY = (*ALICE, *CAROL, *ODD)


def known_acls(client: KafkaClient) -> set[Acl]:
    return set(read_acls(client, deadline=Deadline.after(30))[1])


def create_acls(client: KafkaClient, acls: Iterable[Acl]) -> None:
    def number(names: dict[int, str], name: str) -> int:
        return next(key for key, each in names.items() if each == name)

    creations = [
        CreateAclsRequest.AclCreation(
            resource_type=number(RESOURCE_TYPES, each.resource_type),
            resource_name=each.resource_name,
            resource_pattern_type=number(PATTERN_TYPES, each.pattern_type),
            principal=each.principal,
            host=each.host,
            operation=number(OPERATIONS, each.operation),
            permission_type=number(PERMISSIONS, each.permission),
        )
        for each in acls
    ]
    answer = client.ask_any(lambda: CreateAclsRequest(creations=creations))
    assert not any(each.error_code for each in answer.results), answer


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("guarded")
    tokens = {"delegation.token.secret.key": "signs-tokens"}
    with start_cluster(
        folder, listeners=["SASL_PLAINTEXT"], users=PASSWORDS, authorizer=True, config=tokens
    ) as started:
        for topic in ("seen", "secret"):
            create_topic(started, topic)
            produce(started, topic, numbered(5))
            commit(started, "seen-group", topic, {0: (3, "", -1)})
        commit(started, "secret-group", "seen", {0: (4, "", -1)})
        with client_of(started) as client:
            create_acls(client, EVERY)
            wait_for("the broker to know its ACLs", lambda: known_acls(client) == set(EVERY), timeout_s=60)
        yield started


def client_for(cluster: Cluster, user: str) -> KafkaClient:
    return KafkaClient(from_java_properties(cluster.java_properties("SASL_PLAINTEXT", user, mechanism="PLAIN")))


def captured(cluster: Cluster, user: str, *topics: str) -> ClusterState:
    with client_for(cluster, user) as client:
        return capture(client, topics or None)


def offsets_of(state: ClusterState) -> dict[str, Any]:
    return {
        group.group_id: group.offsets and [(each.topic, each.offset) for each in group.offsets]
        for group in state.groups
    }


def test_acls_and_users_are_captured_whole_by_who_may_see_them(guarded: Cluster) -> None:
    state = captured(guarded, "admin")
    assert state.gaps == ()
    assert set(state.acls or ()) == set(EVERY)
    users = [(each.name, each.mechanism) for each in state.users or ()]
    assert users == [(name, f"SCRAM-SHA-{bits}") for name in PASSWORDS for bits in (256, 512)]
    assert all(each.iterations >= 4096 for each in state.users or ())
    assert offsets_of(state) == {"seen-group": [("secret", 3), ("seen", 3)], "secret-group": [("seen", 4)]}


def test_secrets_are_never_captured(guarded: Cluster) -> None:
    text = json.dumps(encode_state(captured(guarded, "admin")))
    assert "secret-group" in text
    assert not [password for password in PASSWORDS.values() if password in text]


def test_a_user_with_few_rights_captures_what_it_may_and_hears_of_the_rest(guarded: Cluster) -> None:
    state = captured(guarded, "alice")
    assert [each.name for each in state.topics] == ["seen"]
    assert [(each.configs, each.effective, each.compacted) for each in state.topics] == [(None, None, None)]
    assert (state.acls, state.quotas, state.users) == (None, None, None)
    assert offsets_of(state) == {"seen-group": [("seen", 3)]}
    assert {each.what: each.hint for each in state.gaps} == {
        "ACLs": "allow this user to Describe the cluster",
        "SCRAM users": "allow this user to Describe the cluster",
        "client quotas": "allow this user to DescribeConfigs on the cluster",
        "configuration of topic seen": "allow this user to DescribeConfigs on the topic",
        "groups that may be hidden": "allow this user to Describe the cluster, and every group",
        "topics that may be hidden": ("allow this user to Describe the cluster, and every topic that is to be kept"),
    }
    refused = [each for each in state.gaps if "may be hidden" not in each.what]
    assert all("AUTHORIZATION_FAILED" in each.why for each in refused)


def test_a_topic_that_is_asked_for_and_denied_is_named(guarded: Cluster) -> None:
    state = captured(guarded, "alice", "seen", "secret")
    assert [each.name for each in state.topics] == ["seen"]
    (gap,) = (each for each in state.gaps if each.what == "topic secret")
    assert gap.why == "TOPIC_AUTHORIZATION_FAILED"


def test_hidden_topics_and_offsets_are_named_to_who_may_describe_the_cluster(guarded: Cluster) -> None:
    state = captured(guarded, "carol")
    assert [each.name for each in state.topics] == ["seen"]
    assert state.topics[0].configs == {}
    assert state.acls is not None
    assert offsets_of(state) == {"seen-group": [("seen", 3)], "secret-group": None}
    said = {each.what: each.why for each in state.gaps if each.what != "client quotas"}
    assert said == {
        "topic secret": "TOPIC_AUTHORIZATION_FAILED",
        "topic __consumer_offsets": "TOPIC_AUTHORIZATION_FAILED",
        "offsets of group secret-group": "GROUP_AUTHORIZATION_FAILED",
    }


def test_sizes_that_may_not_be_known_are_left_out(guarded: Cluster) -> None:
    with client_for(guarded, "alice") as alice, client_for(guarded, "carol") as carol:
        assert partition_sizes(alice, [partition_of("seen"), partition_of("secret")]) == {}
        assert set(partition_sizes(carol, [partition_of("seen"), partition_of("secret")])) == {partition_of("seen")}


def test_an_open_transaction_is_told_as_far_as_a_user_may_know(guarded: Cluster) -> None:
    where = [partition_of("seen"), partition_of("secret")]
    with (
        open_transaction(guarded, "seen", numbered(1), transactional_id="tx") as (offset,),
        client_for(guarded, "admin") as admin,
        client_for(guarded, "alice") as alice,
        client_for(guarded, "carol") as carol,
    ):
        (known,) = open_transactions(admin, where)[partition_of("seen")]
        found = open_transactions(alice, where)
        (unnamed,) = found[partition_of("seen")]
        assert (known.transactional_id, known.start_offset) == ("tx", offset)
        assert list(found) == [partition_of("seen")]
        assert (unnamed.producer_id, unnamed.start_offset) == (known.producer_id, offset)
        assert (unnamed.transactional_id, unnamed.started_at_ms) == (None, None)
        assert open_transactions(carol, where) == {}


def test_delegation_tokens_are_listed_without_their_secrets_to_users_that_have_logged_in(
    guarded: Cluster, tmp_path: Path
) -> None:
    properties = tmp_path / "carol.properties"
    login = guarded.java_properties("SASL_PLAINTEXT", "carol", mechanism="PLAIN")
    properties.write_text("".join(f"{name}={value}\n" for name, value in login.items()))
    where = ("--bootstrap-server", login["bootstrap.servers"], "--command-config", str(properties))
    renewer = ("--renewer-principal", "User:alice")
    shown = run_tool(
        "org.apache.kafka.tools.DelegationTokenCommand", *where, "--create", "--max-life-time-period", "-1", *renewer
    )
    with client_for(guarded, "carol") as client:
        wait_for("the token", lambda: read_tokens(client, deadline=Deadline.after(30)), timeout_s=60)
        state = capture(client, [], (), settings=True)
    (token,) = state.tokens or ()
    assert (token.owner, token.requester, token.renewers) == ("User:carol", "User:carol", ("User:alice",))
    assert token.issued_at_ms < token.expires_at_ms
    (hmac,) = re.findall(rf"^{re.escape(token.token_id)}\s+(\S{{40,}})", shown, re.MULTILINE)
    assert hmac not in json.dumps(encode_state(state))
    with client_of(guarded) as client:
        assert capture(client, [], (), settings=True).tokens is None, "nobody has logged in there"
