"""Every door of the sandbox opens for those who may enter and for nobody else: in Python and in Java."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kafka.admin import ACL, ACLOperation, ACLPermissionType, KafkaAdminClient, ResourcePattern, ResourceType
from py4j.protocol import Py4JJavaError

from maxbrod.errors import UsageError
from maxbrod.sandbox import topics
from maxbrod.sandbox.spec import OPTIONAL_LISTENERS
from support.clusters import start_cluster
from support.java_oracle import JavaOracle, JavaRecord

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full

# Every character that a properties file or a JAAS line might trip over.
PASSWORD = 'p"a\\s =:#!\u00e4\u20ac;'
DOORS = [
    ("PLAINTEXT", "PLAIN"),
    ("SSL", "PLAIN"),
    *(
        (listener, m)
        for listener in ("SASL_PLAINTEXT", "SASL_SSL")
        for m in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    ),
    ("SASL_SSL", "OAUTHBEARER"),
]
RECORD = JavaRecord(timestamp_ms=1, value=b"v")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("guarded")
    users = {"admin": PASSWORD, "alice": "alice-secret"}
    with start_cluster(folder, listeners=OPTIONAL_LISTENERS, users=users, authorizer=True) as started:
        yield started


@pytest.mark.parametrize(("listener", "mechanism"), DOORS)
def test_a_python_client_gets_in_by_every_door(guarded: Cluster, listener: str, mechanism: str) -> None:
    with KafkaAdminClient(**guarded.client_properties(listener, "admin", mechanism=mechanism)) as admin:
        (broker,) = admin.describe_cluster()["brokers"]
    # The broker sends its clients back to the door they came by.
    assert f"{broker['host']}:{broker['port']}" == guarded.bootstrap_for(listener)


@pytest.mark.parametrize(("listener", "mechanism"), DOORS)
def test_a_java_client_gets_in_by_every_door(
    java: JavaOracle, guarded: Cluster, topic: str, listener: str, mechanism: str
) -> None:
    topics.create_topic(guarded, topic)
    client = guarded.java_properties(listener, "admin", mechanism=mechanism)
    assert java.produce(client, topic, 0, [RECORD]) == [0]
    assert java.consume(client, topic, 0) == [RECORD._replace(offset=0)]


@pytest.mark.parametrize(("listener", "mechanism"), DOORS[1:])
def test_a_user_without_an_acl_is_refused(
    java: JavaOracle, guarded: Cluster, topic: str, listener: str, mechanism: str
) -> None:
    topics.create_topic(guarded, topic)
    client = guarded.java_properties(listener, "alice", mechanism=mechanism)
    with pytest.raises(Py4JJavaError, match="TopicAuthorizationException"):
        java.produce(client, topic, 0, [RECORD], max_block_ms="10000")


def test_an_acl_admits_a_user_by_password_and_by_certificate(java: JavaOracle, guarded: Cluster, topic: str) -> None:
    topics.create_topic(guarded, topic)
    where = ResourcePattern(ResourceType.TOPIC, topic)
    with guarded.admin() as admin:
        admin.create_acls([ACL("User:alice", "*", ACLOperation.ALL, ACLPermissionType.ALLOW, where)])
    assert java.produce(guarded.java_properties("SASL_SSL", "alice"), topic, 0, [RECORD]) == [0]
    assert java.produce(guarded.java_properties("SSL", "alice"), topic, 0, [RECORD]) == [1]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_refused(java: JavaOracle, guarded: Cluster, topic: str, mechanism: str) -> None:
    topics.create_topic(guarded, topic)
    client = guarded.java_properties("SASL_SSL", "admin", mechanism=mechanism)
    client["sasl.jaas.config"] = client["sasl.jaas.config"].replace(" password=", ' password="wrong" was=')
    with pytest.raises(Py4JJavaError, match="SaslAuthenticationException"):
        java.produce(client, topic, 0, [RECORD], max_block_ms="10000")


def test_the_tls_door_wants_a_certificate(java: JavaOracle, guarded: Cluster, topic: str) -> None:
    topics.create_topic(guarded, topic)
    client = {k: v for k, v in guarded.java_properties("SSL", "admin").items() if "keystore" not in k}
    with pytest.raises(Py4JJavaError, match=r"SslAuthenticationException|TimeoutException"):
        java.produce(client, topic, 0, [RECORD], max_block_ms="5000")


def test_passwords_stand_in_no_repr_and_in_no_readable_file(guarded: Cluster) -> None:
    assert PASSWORD not in repr(guarded.spec)
    secret = [path for path in guarded.directory.rglob("*") if path.is_file() and b"alice-secret" in path.read_bytes()]
    assert {path.name for path in secret} == {"sandbox.json", "server.properties"}
    assert {path.stat().st_mode & 0o777 for path in secret} == {0o600}


def test_a_listener_nobody_asked_for_is_not_there(cluster: Cluster) -> None:
    with pytest.raises(UsageError, match="no listener SSL"):
        cluster.bootstrap_for("SSL")


def test_an_unknown_listener_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such listener: FTP"):
        start_cluster(tmp_path / "c", listeners=["ftp"])
    assert not (tmp_path / "c").exists()
