"""Every door of a cluster opens for those who may enter; who may not is told why, and no secret is shown."""

from __future__ import annotations

import hashlib
import logging
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from kafka.protocol.admin import AlterUserScramCredentialsRequest
from pydantic import SecretStr

from maxbrod.config import KafkaConfig, SaslConfig, TlsConfig, from_java_properties
from maxbrod.errors import EXIT_FAILED, AccessDeniedError, MaxbrodError, UsageError
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.connection import Connection
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.security import find_protocol
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.security import UnsecuredToken
from maxbrod.sandbox.spec import OPTIONAL_LISTENERS
from maxbrod.sandbox.topics import create_topic
from support.clusters import start_cluster
from support.kafka_reads import bounds, client_of, fill, joined, log_bytes, partition_of, read_all
from support.token_endpoint import serving_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full

# Every character that SCRAM, a properties file or a JAAS line might trip over.
PASSWORD = 'p"a\\s =:#!\u00e4\u20ac;,'
WRONG = "wrong-secret-4711"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
DOORS = [
    ("PLAINTEXT", "PLAIN"),
    ("SSL", "PLAIN"),
    *((listener, mechanism) for listener in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in MECHANISMS),
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("guarded")
    users = {"admin": PASSWORD, "alice": "alice-secret"}
    short_logins = {"connections.max.reauth.ms": "2000"}
    with start_cluster(
        folder, listeners=OPTIONAL_LISTENERS, users=users, authorizer=True, config=short_logins
    ) as started:
        create_topic(started, "guarded", config={"retention.ms": "-1"})
        fill(started, "guarded", 5000)
        yield started


def config_of(cluster: Cluster, listener: str, user: str = "admin", mechanism: str = "PLAIN") -> KafkaConfig:
    return from_java_properties(cluster.java_properties(listener, user, mechanism=mechanism))


def with_sasl(config: KafkaConfig, sasl: SaslConfig) -> KafkaConfig:
    return config.model_copy(update={"sasl": sasl})


def refusal(config: KafkaConfig, *, secret: str) -> MaxbrodError:
    """The error that a client with this configuration ends with at once; no trace of it holds the secret."""
    with KafkaClient(config) as client, pytest.raises(MaxbrodError) as caught:
        client.metadata(deadline=Deadline.after(60))
    everything = "".join(traceback.format_exception(caught.value)) + repr(caught.value.as_dict())
    assert secret not in everything
    return caught.value


@pytest.mark.parametrize(("listener", "mechanism"), DOORS)
def test_data_comes_through_every_door(guarded: Cluster, listener: str, mechanism: str) -> None:
    with KafkaClient(config_of(guarded, listener, mechanism=mechanism)) as client:
        where = partition_of("guarded")
        assert bounds(client, where) == (0, 5000)
        assert read_all(client, where, fetch_bytes=300_000) == log_bytes(guarded, "guarded")
        # The broker sends its clients back to the door they came by.
        (broker,) = client.metadata().brokers.values()
    assert f"{broker.host}:{broker.port}" == guarded.bootstrap_for(listener)


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_a_bearer_token_opens_the_door(guarded: Cluster, listener: str) -> None:
    sasl = SaslConfig(mechanism="OAUTHBEARER", token=SecretStr(UnsecuredToken("admin").token()))
    with KafkaClient(with_sasl(config_of(guarded, listener), sasl)) as client:
        assert read_all(client, partition_of("guarded"))


def test_a_token_from_an_endpoint_opens_the_door(guarded: Cluster) -> None:
    answer = {"access_token": UnsecuredToken("admin").token(), "expires_in": 3600}
    with serving_tokens(lambda: (200, answer)) as endpoint:
        sasl = SaslConfig(
            mechanism="OAUTHBEARER",
            token_endpoint=endpoint.url,
            client_id="backups",
            client_secret=SecretStr("hunter2"),
            extensions={"logicalCluster": "lkc-1"},
        )
        with KafkaClient(with_sasl(config_of(guarded, "SASL_SSL"), sasl)) as client:
            assert read_all(client, partition_of("guarded"))
    # One token serves the connections to the bootstrap and to the leader.
    assert len(endpoint.asked) == 1


def test_a_read_outlives_its_login(guarded: Cluster) -> None:
    with KafkaClient(config_of(guarded, "SASL_SSL", mechanism="SCRAM-SHA-256")) as client:
        where = partition_of("guarded")
        received, connections = [], set[Connection]()
        for chunk in read_range(client, where, *bounds(client, where), fetch_bytes=300_000):
            received.append(chunk)
            connections |= {*client._connections.values()}
            time.sleep(0.9)
    assert joined(received) == log_bytes(guarded, "guarded")
    assert len(connections) > 1


def test_a_user_name_with_the_characters_that_scram_escapes_gets_in(guarded: Cluster) -> None:
    name, password = "o=d,d", "odd-secret"
    with client_of(guarded) as admin:
        (result,) = admin.ask_any(lambda: new_scram_user(name, password)).results
        assert result.error_code == 0
    sasl = SaslConfig(mechanism="SCRAM-SHA-256", username=name, password=SecretStr(password))
    config = with_sasl(config_of(guarded, "SASL_SSL"), sasl)

    def gets_in() -> bool:
        with KafkaClient(config) as client, suppress(AccessDeniedError):
            return bool(client.metadata([]).brokers)
        return False

    wait_for("the broker to know the new user", gets_in, timeout_s=60)


def new_scram_user(name: str, password: str) -> Any:
    salt, iterations = b"salt", 4096
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=name,
        mechanism=1,  # SCRAM-SHA-256
        iterations=iterations,
        salt=salt,
        salted_password=hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations),
    )
    return AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion])


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_a_clear_error_without_the_password(
    guarded: Cluster, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    config = config_of(guarded, "SASL_SSL", mechanism=mechanism)
    assert config.sasl is not None
    wrong = config.sasl.model_copy(update={"password": SecretStr(WRONG)})
    error = refusal(with_sasl(config, wrong), secret=WRONG)
    assert isinstance(error, AccessDeniedError)
    assert error.exit_code == EXIT_FAILED
    assert f"refuses the login by {mechanism}" in error.message
    assert WRONG not in caplog.text


def test_a_token_that_is_no_token_is_a_clear_error_without_the_token(guarded: Cluster) -> None:
    sasl = SaslConfig(mechanism="OAUTHBEARER", token=SecretStr(WRONG))
    error = refusal(with_sasl(config_of(guarded, "SASL_SSL"), sasl), secret=WRONG)
    assert isinstance(error, AccessDeniedError)
    assert "OAUTHBEARER" in error.message


def test_the_certificate_door_says_that_it_wants_one(guarded: Cluster) -> None:
    config = config_of(guarded, "SSL")
    error = refusal(config.model_copy(update={"tls": TlsConfig(ca_file=config.tls.ca_file)}), secret=PASSWORD)
    assert isinstance(error, UsageError)
    assert "requires one and got none" in error.message


def test_a_broker_that_an_unknown_authority_vouches_for_is_refused(guarded: Cluster) -> None:
    config = config_of(guarded, "SASL_SSL")
    error = refusal(config.model_copy(update={"tls": TlsConfig()}), secret=PASSWORD)
    assert isinstance(error, UsageError)
    assert "certificate is refused" in error.message
    assert "tls.ca_file" in (error.hint or "")


def test_a_certificate_for_another_host_is_refused_unless_told_otherwise(guarded: Cluster) -> None:
    config = config_of(guarded, "SASL_SSL")
    # The same address, written as no certificate has it.
    elsewhere = config.model_copy(update={"bootstrap": config.bootstrap.replace("127.0.0.1", "127.1")})
    error = refusal(elsewhere, secret=PASSWORD)
    assert isinstance(error, UsageError)
    assert "certificate is refused" in error.message
    assert "issued for" in (error.hint or "")
    unchecked = config.tls.model_copy(update={"check_hostname": False})
    with KafkaClient(elsewhere.model_copy(update={"tls": unchecked})) as client:
        assert client.metadata().brokers


@pytest.mark.parametrize("spoken", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("listener", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_whoever_speaks_another_protocol_to_a_listener_is_told_which_it_is(
    guarded: Cluster, spoken: str, listener: str
) -> None:
    if spoken == listener:
        assert find_protocol(*address_of(guarded, listener), Deadline.after(60)) == listener
        return
    config = config_of(guarded, spoken).model_copy(update={"bootstrap": guarded.bootstrap_for(listener)})
    error = refusal(config, secret=PASSWORD)
    assert isinstance(error, UsageError)
    if (spoken, listener) == ("SASL_SSL", "SSL"):
        # The broker asks for the certificate before anything else.
        assert "requires one and got none" in error.message
    else:
        assert "the configuration" in error.message
        assert "security.protocol" in (error.hint or "")


def address_of(cluster: Cluster, listener: str) -> tuple[str, int]:
    host, _, port = cluster.bootstrap_for(listener).partition(":")
    return host, int(port)


def test_a_file_that_is_missing_is_named_by_its_setting(guarded: Cluster, tmp_path: Path) -> None:
    config = config_of(guarded, "SSL")
    error = refusal(config.model_copy(update={"tls": TlsConfig(ca_file=tmp_path / "none")}), secret=PASSWORD)
    assert isinstance(error, UsageError)
    assert "tls.ca_file" in error.message


def test_who_may_not_read_a_topic_is_told_which_right_is_missing(guarded: Cluster) -> None:
    with (
        KafkaClient(config_of(guarded, "SASL_SSL", "alice")) as client,
        pytest.raises(UsageError, match="TOPIC_AUTHORIZATION_FAILED") as caught,
    ):
        client.metadata(["guarded"], deadline=Deadline.after(60))
    assert caught.value.object_name == "guarded"
    assert "ACL" in str(caught.value.hint)
