"""Who may come in: TLS, client certificates and logins, with a client that is not ours."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import MetadataRequest

from maxbrod.errors import RefusedError
from maxbrod.mount.node_parts import door_of
from maxbrod.mount.options import MountOptions
from maxbrod.mount.users import user_lines
from maxbrod.sandbox.security import write_certificates
from support.bearer_tokens import RSA
from support.mounts import RawClient, mounted
from support.native_logs import NAME, data_batch
from support.table_archives import write


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    url: Path = tmp_path_factory.mktemp("door") / "archive"
    write(url, [data_batch(0, 10)])
    return url


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("users") / "users"
    file.write_text("\n".join(user_lines("alice", "secret")))
    file.chmod(0o600)
    return file


def read(bootstrap: str, **security: Any) -> int:
    """The number of records that a consumer reads."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=10_000, **security
    )
    try:
        place = TopicPartition(NAME.topic, NAME.partition)
        consumer.assign([place])
        return sum(len(records) for records in consumer.poll(timeout_ms=10_000).values())
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_logs_in_and_reads(archive: Path, users: Path, mechanism: str) -> None:
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism, "sasl_plain_username": "alice"}
    with mounted(archive, users=users) as found:
        assert read(found.bootstrap, sasl_plain_password="secret", **login) == 10
        with pytest.raises(KafkaError):
            read(found.bootstrap, sasl_plain_password="wrong", api_version_auto_timeout_ms=2000, **login)


@pytest.mark.parametrize("key", [ApiKey.Metadata, ApiKey.Fetch, ApiKey.ListOffsets, ApiKey.OffsetFetch])
def test_without_a_login_nothing_is_told_but_versions(archive: Path, users: Path, key: int) -> None:
    with mounted(archive, users=users) as found, RawClient(found.bootstrap) as client:
        client.socket.sendall(struct.pack(">ihhih", 10, key, 4, 1, -1))
        assert client.socket.recv(10) == b""


def test_a_client_with_a_certificate_reads_over_tls(archive: Path, tmp_path: Path) -> None:
    made = tmp_path / "certificates"
    write_certificates(made, ["alice"])
    with mounted(archive, tls_cert=made / "server.pem", tls_client_ca=made / "ca.pem") as found:
        trusted = {"security_protocol": "SSL", "ssl_cafile": str(made / "ca.pem"), "ssl_check_hostname": False}
        assert read(found.bootstrap, ssl_certfile=str(made / "user-alice.pem"), **trusted) == 10
        with pytest.raises(KafkaError):
            read(found.bootstrap, api_version_auto_timeout_ms=2000, **trusted)
        with RawClient(found.bootstrap) as client, pytest.raises((ConnectionError, TimeoutError, struct.error)):
            client.ask(MetadataRequest(topics=None), 12)


def test_beyond_loopback_clients_must_identify_themselves(users: Path, tmp_path: Path) -> None:
    made = tmp_path / "certificates"
    write_certificates(made, [])
    keys = tmp_path / "key.pem"
    public = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    keys.write_bytes(public)
    tls: dict[str, Any] = {"tls_cert": made / "server.pem"}
    tokens = {"token_keys": keys, "token_audience": "kafka"}
    refused: list[dict[str, Any]] = [{}, tls, tokens]
    accepted: list[dict[str, Any]] = [{"users": users}, {**tls, "tls_client_ca": made / "ca.pem"}, {**tls, **tokens}]
    for options in refused:
        with pytest.raises(RefusedError):
            door_of(MountOptions(listen="192.0.2.1:9092", **options))
    for options in accepted:
        door_of(MountOptions(listen="192.0.2.1:9092", **options))
        door_of(MountOptions(listen="127.0.0.1:9092", **options))
    # A password that can be read on the way is not asked for.
    assert "PLAIN" not in door_of(MountOptions(listen="192.0.2.1:9092", users=users)).logins.mechanisms
    assert "PLAIN" in door_of(MountOptions(listen="192.0.2.1:9092", users=users, **tls)).logins.mechanisms
