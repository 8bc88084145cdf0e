"""Groups on a mount with real clients: they join, rebalance, commit, log in, and move on to a restored cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.mount.security import LoginSession
from maxbrod.mount.users import user_lines
from maxbrod.sandbox.process import free_ports, wait_for
from maxbrod.sandbox.security import write_certificates
from maxbrod.sandbox.topics import create_topic, delete_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.backups import back_up, config_of
from support.bearer_tokens import CLAIMS, RSA, rsa_jwk, signed
from support.client_readers import GO_READERS, read_as_go_group
from support.group_members import JavaMember, Member, PythonMember, RdkafkaMember, read, until_assigned
from support.mounts import mounted
from support.restores import Command, put, stand
from support.sparkless import without_spark

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster
    from support.java_oracle import JavaOracle

TOPIC = "mounted-orders"
GROUP = "mounted-billing"
PARTITIONS, RECORDS, STOOD = 4, 50, 10
ALL = {(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS)}
UNREAD = ALL - {(0, offset) for offset in range(STOOD)}
"""What a group has not read that stands at 10 in one partition, and nowhere in the others."""


@pytest.fixture(scope="module")
def archive(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    url: Path = tmp_path_factory.mktemp("mounted") / "archive"
    create_topic(cluster, TOPIC, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        produce(cluster, TOPIC, numbered(RECORDS), partition=partition)
    put(cluster, GROUP, {(TOPIC, 0): STOOD})
    assert back_up(config_of(cluster, url, TOPIC)).complete
    yield url
    delete_topic(cluster, TOPIC)


def members(client: str, request: pytest.FixtureRequest) -> Callable[..., Member]:
    """Makes members by a client, from an address, a topic and a group."""
    if client == "java":
        java: JavaOracle = request.getfixturevalue("java")
        return lambda bootstrap, topic, group: JavaMember(java, bootstrap, topic, group)
    strategy = "cooperative-sticky" if client == "librdkafka, cooperative" else "range"
    config = {"partition.assignment.strategy": strategy}
    return lambda bootstrap, topic, group: RdkafkaMember(bootstrap, topic, group, config)


@pytest.mark.parametrize("client", ["librdkafka", "librdkafka, cooperative", "java"])
def test_two_members_share_a_group_from_where_the_archive_has_it_and_a_third_goes_on_at_their_commits(
    archive: Path, tmp_path: Path, client: str, request: pytest.FixtureRequest
) -> None:
    member = members(client, request)
    state = tmp_path / "state"
    with ExitStack() as open_ones:
        # By ids Java commits and asks for offsets in newer versions than the others know.
        found = open_ones.enter_context(mounted(archive, state=str(state), topic_ids=client == "java"))
        pair = [open_ones.enter_context(closing(member(found.bootstrap, TOPIC, GROUP))) for _ in range(2)]

        # The first one may have read before the second one joined: whatever was not committed is read again.
        seen: list[tuple[int, int]] = []
        for _ in range(600):
            for each in pair:
                seen += each.poll()
            if [len(each.assigned()) for each in pair] == [2, 2]:
                break
        assert pair[0].assigned() | pair[1].assigned() == set(range(PARTITIONS))
        while set(seen) != UNREAD:
            assert set(seen) <= UNREAD
            seen += read(pair, 1)
        for each in pair:
            each.commit()
    # Another mount with the same state: the journal has the commits.
    with mounted(archive, state=str(state)) as found, closing(member(found.bootstrap, TOPIC, GROUP)) as third:
        again = until_assigned(third, PARTITIONS)
        for _ in range(10):
            again += third.poll()
        assert again == []


def test_a_member_that_leaves_hands_its_partitions_over(archive: Path) -> None:
    with mounted(archive) as found:
        first = RdkafkaMember(found.bootstrap, TOPIC, GROUP)
        second = PythonMember(found.bootstrap, TOPIC, GROUP)

        def shared(*counts: int) -> Callable[[], bool]:
            def check() -> bool:
                first.poll()
                if len(counts) > 1:
                    second.poll()
                return [len(each.assigned()) for each in (first, second)][: len(counts)] == list(counts)

            return check

        # Two clients of different make are members of one group: both know the assignor "range".
        wait_for("both members to have their share", shared(2, 2), timeout_s=60)
        second.close()
        wait_for("the first member to have all", shared(4), timeout_s=60)
        first.close()


def start_mount(archive: Path, state: Path, port: int) -> subprocess.Popen[bytes]:
    words = ["mount", str(archive), "--state", str(state), "--listen", f"127.0.0.1:{port}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "maxbrod", *words], stdout=subprocess.PIPE, env={**os.environ, "MAXBROD_CONFIG": ""}
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(b"--bootstrap-server"):
            return process
    raise AssertionError(f"the mount ended with {process.wait()}")


def test_killed_and_restarted_a_group_goes_on_at_its_commit(archive: Path, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    state = tmp_path / "state"
    process = start_mount(archive, state, port)
    try:
        with closing(RdkafkaMember(f"127.0.0.1:{port}", TOPIC, GROUP)) as member:
            done = set(read([member], 60))
            member.commit()
            process.send_signal(signal.SIGKILL)
            process.communicate()
            process = start_mount(archive, state, port)
            # The same client finds that its group has forgotten it, joins again, and skips nothing.
            rest: set[tuple[int, int]] = set()
            while done | rest != UNREAD:
                rest.update(read([member], 1))
        with closing(PythonMember(f"127.0.0.1:{port}", TOPIC, GROUP)) as other:
            assert Counter(read([other], len(UNREAD - done))) == Counter(UNREAD - done)
    finally:
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == 0


# Logins


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of users, certificates, and the keys of an issuer of tokens."""
    folder = tmp_path_factory.mktemp("doors")
    users = folder / "users"
    users.touch(0o600)
    users.write_text("\n".join(user_lines("alice", "s3cret")) + "\n")
    write_certificates(folder / "tls", ["alice"])
    (folder / "jwks.json").write_text(json.dumps({"keys": [rsa_jwk(RSA, kid="rsa")]}))
    return folder


@pytest.mark.parametrize(("mechanism", "tls"), [("PLAIN", True), ("SCRAM-SHA-256", False), ("SCRAM-SHA-512", True)])
@pytest.mark.parametrize("client", ["librdkafka", "java"])
def test_clients_log_in_by_password_and_again_on_an_open_connection(
    archive: Path,
    doors: Path,
    client: str,
    mechanism: str,
    tls: bool,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logins: Counter[LoginSession] = Counter()
    log_in = LoginSession._log_in

    def counted(session: LoginSession, *details: Any) -> int:
        logins[session] += 1
        return log_in(session, *details)

    monkeypatch.setattr(LoginSession, "_log_in", counted)
    options: dict[str, Any] = {"users": doors / "users", "login_lifetime": 1.0}
    if tls:
        options["tls_cert"] = doors / "tls" / "server.pem"
    protocol = "SASL_SSL" if tls else "SASL_PLAINTEXT"
    ca = str(doors / "tls" / "ca.pem")
    with mounted(archive, **options) as found:
        if client == "java":
            module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
            config = {
                "security.protocol": protocol,
                "sasl.mechanism": mechanism,
                "sasl.jaas.config": f"org.apache.kafka.common.security.{module}LoginModule required "
                'username="alice" password="s3cret";',
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": ca,
                "ssl.endpoint.identification.algorithm": "",
            }
            member: Member = JavaMember(request.getfixturevalue("java"), found.bootstrap, TOPIC, GROUP, config)
        else:
            login = {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": "s3cret"}
            trust = {"ssl.ca.location": ca, "ssl.endpoint.identification.algorithm": "none"} if tls else {}
            member = RdkafkaMember(found.bootstrap, TOPIC, GROUP, {"security.protocol": protocol, **login, **trust})
        with closing(member):
            seen = read([member], len(UNREAD))
            while max(logins.values()) < 2:
                seen += member.poll()
            assert set(seen) == UNREAD
            member.commit()


def test_librdkafka_logs_in_by_a_token_and_by_a_certificate(archive: Path, doors: Path) -> None:
    import time  # noqa: PLC0415 - a token is of now

    claims = {**CLAIMS, "iat": time.time(), "exp": time.time() + 60}
    token = signed({"alg": "RS256", "kid": "rsa"}, claims, RSA)
    config: dict[str, Any] = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (token, time.time() + 60),
    }
    options: dict[str, Any] = {
        "token_keys": doors / "jwks.json",
        "token_audience": "kafka",
        "token_issuer": "https://issuer",
    }
    with mounted(archive, **options) as found, closing(RdkafkaMember(found.bootstrap, TOPIC, GROUP, config)) as member:
        assert set(read([member], len(UNREAD))) == UNREAD
    certificate = str(doors / "tls" / "user-alice.pem")
    config = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(doors / "tls" / "ca.pem"),
        "ssl.certificate.location": certificate,
        "ssl.key.location": certificate,
        "ssl.endpoint.identification.algorithm": "none",
    }
    mutual: dict[str, Any] = {"tls_cert": doors / "tls" / "server.pem", "tls_client_ca": doors / "tls" / "ca.pem"}
    with mounted(archive, **mutual) as found, closing(RdkafkaMember(found.bootstrap, TOPIC, GROUP, config)) as member:
        assert set(read([member], len(UNREAD))) == UNREAD


# The switch


@pytest.mark.parametrize("client", ["librdkafka", "java"])
def test_a_group_moves_from_the_mount_to_the_restored_cluster_and_sees_every_record_once(
    cluster: Cluster,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    client: str,
    request: pytest.FixtureRequest,
) -> None:
    create_topic(cluster, topic, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        produce(cluster, topic, numbered(RECORDS), partition=partition)
    put(cluster, topic, {(topic, 0): STOOD})
    assert back_up(config_of(cluster, tmp_path / "archive", topic)).complete
    delete_topic(cluster, topic)
    with cluster.admin() as admin:
        admin.delete_groups([topic])
    member, seen = members(client, request), Counter[tuple[int, int]]()
    state = tmp_path / "state"
    command = Command(cluster, tmp_path / "archive", capsys)
    with mounted(tmp_path / "archive", state=str(state)) as found, without_spark():
        with closing(member(found.bootstrap, topic, topic)) as reading:
            seen.update(read([reading], 70))
            reading.commit()
            command("restore", "--offsets", "exact", "--topic", topic)
            told = command.json("groups", "apply", "--from-mount", str(state), exits=5)
            assert all("members on the mount" in position["refused"] for position in told["positions"])
        applied = command.json("groups", "apply", "--from-mount", str(state))
    assert sum(position["behind"] for position in applied["positions"]) <= len(UNREAD) - len(seen)
    assert stand(cluster, topic)
    with closing(member(cluster.bootstrap, topic, topic)) as reading:
        seen.update(read([reading], len(UNREAD) - len(seen)))
    assert seen == Counter(UNREAD)


@pytest.mark.skipif(not GO_READERS.exists(), reason="scripts/install-test-tools builds the readers in Go")
def test_a_client_in_go_moves_to_the_restored_cluster_and_sees_every_record_once(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        produce(cluster, topic, numbered(RECORDS), partition=partition)
    assert back_up(config_of(cluster, tmp_path / "archive", topic)).complete
    delete_topic(cluster, topic)
    state = tmp_path / "state"
    command = Command(cluster, tmp_path / "archive", capsys)
    with mounted(tmp_path / "archive", state=str(state)) as found, without_spark():
        seen = Counter(read_as_go_group(found.bootstrap, topic, topic, 70))
        command("restore", "--offsets", "exact", "--topic", topic)
        command("groups", "apply", "--from-mount", str(state))
    seen.update(read_as_go_group(cluster.bootstrap, topic, topic, len(ALL) - 70))
    assert seen == Counter(ALL)
