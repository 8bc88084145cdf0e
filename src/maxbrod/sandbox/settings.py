"""Builds the server.properties of a node from the spec of its cluster. Pure: values to text.

The defaults make a small cluster fast: to start, to notice a dead broker, to compact, to apply retention. None of them
changes the meaning of a record or an offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.sandbox.spec import (
    ADMIN,
    CONTROLLER,
    HOST,
    MECHANISMS,
    PLAINTEXT,
    PROXIED,
    SASL_PLAINTEXT,
    SASL_SSL,
    SSL,
    Node,
    Spec,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


PROTOCOLS: Final = {
    CONTROLLER: PLAINTEXT,
    PLAINTEXT: PLAINTEXT,
    PROXIED: PLAINTEXT,
    SASL_PLAINTEXT: SASL_PLAINTEXT,
    SSL: SSL,
    SASL_SSL: SASL_SSL,
}
_MODULES: Final = "org.apache.kafka.common.security"


def properties(spec: Spec, node: Node, *, data_dir: Path, tls_dir: Path) -> dict[str, str]:
    """All settings of one node: our defaults, then those of the cluster, then the caller's own."""
    return {
        **_defaults(len(spec.brokers)),
        **_identity(spec, node, data_dir),
        **(_sasl(spec) if node.is_broker else {}),
        **(_tls(spec, tls_dir) if node.is_broker else {}),
        **(_authorizer(spec) if spec.authorizer else {}),
        **spec.config,
        **spec.broker_config.get(node.node_id, {}),
    }


def _defaults(broker_count: int) -> dict[str, str]:
    replicas = str(min(3, broker_count))
    return {
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": "4",
        # One in-sync replica is enough for Kafka's own topics, so that tests can kill all brokers but one.
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "2",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        # Leaders stay where a test has put them.
        "auto.leader.rebalance.enable": "false",
        # A killed broker cannot return before its session ends: 9 s by default, and a restart took 13 s.
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "500",
        # Only topics with their own retention delete records: test data may be years old. Checked twice a second.
        "log.retention.ms": "-1",
        "log.initial.task.delay.ms": "500",
        "log.retention.check.interval.ms": "500",
        "log.segment.delete.delay.ms": "500",
        "log.cleaner.backoff.ms": "200",
        "log.cleaner.dedupe.buffer.size": "16777216",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    }


def _identity(spec: Spec, node: Node, data_dir: Path) -> dict[str, str]:
    voters = (f"{n.node_id}@{HOST}:{n.ports[CONTROLLER]}" for n in spec.nodes if CONTROLLER in n.ports)
    brokers_only = {
        "advertised.listeners": ",".join(
            f"{name}://{HOST}:{node.client_port(name)}" for name in node.ports if name != CONTROLLER
        ),
        "inter.broker.listener.name": PLAINTEXT,
    }
    return {
        "node.id": str(node.node_id),
        "process.roles": ",".join(node.roles),
        "controller.quorum.voters": ",".join(voters),
        "controller.listener.names": CONTROLLER,
        "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in node.ports.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()),
        "log.dirs": str(data_dir),
        **(brokers_only if node.is_broker else {}),
    }


def _sasl(spec: Spec) -> dict[str, str]:
    lines: dict[str, str] = {}
    for listener in spec.sasl_listeners:
        prefix = f"listener.name.{listener.lower()}"
        lines[f"{prefix}.sasl.enabled.mechanisms"] = ",".join(MECHANISMS)
        for mechanism in MECHANISMS:
            lines[f"{prefix}.{mechanism.lower()}.sasl.jaas.config"] = _jaas(mechanism, spec.users)
    return lines


def _jaas(mechanism: str, users: Mapping[str, str]) -> str:
    if mechanism == "PLAIN":
        passwords = " ".join(f"user_{name}={_quoted(password)}" for name, password in users.items())
        return f"{_MODULES}.plain.PlainLoginModule required {passwords};"
    if mechanism == "OAUTHBEARER":
        return f'{_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="{ADMIN}";'
    # The users of SCRAM are in the cluster's metadata: see `assembly.start_nodes`.
    return f"{_MODULES}.scram.ScramLoginModule required;"


def jaas_client(mechanism: str, user: str, password: str) -> str:
    """What a Java client of this user needs as `sasl.jaas.config`."""
    if mechanism == "OAUTHBEARER":
        claim = f"unsecuredLoginStringClaim_sub={_quoted(user)}"
        return f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required {claim};"
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    return f"{_MODULES}.{module} required username={_quoted(user)} password={_quoted(password)};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _tls(spec: Spec, tls_dir: Path) -> dict[str, str]:
    if not spec.tls:
        return {}
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tls_dir / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tls_dir / "ca.pem"),
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.sasl_ssl.ssl.client.auth": "none",
        # The certificate CN=alice and the password of alice are the same user, so that one ACL covers both.
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
    }


def _authorizer(spec: Spec) -> dict[str, str]:
    # Brokers and controllers talk to each other on PLAINTEXT, where everyone is ANONYMOUS.
    super_users = ["User:ANONYMOUS", *(f"User:{name}" for name in spec.users if name == ADMIN)]
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ";".join(super_users),
        "allow.everyone.if.no.acl.found": "false",
    }


def render(values: Mapping[str, str]) -> str:
    """A Java properties file, which reads backslashes as escapes and is Latin-1 unless escaped."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in values.items())


def _escaped(text: str) -> str:
    return "".join(_escapes(text))


def _escapes(text: str) -> Iterable[str]:
    for character in text:
        if character in "\\=:#! \t":
            yield f"\\{character}"
        elif character.isascii() and character.isprintable():
            yield character
        else:
            units = character.encode("utf-16-be")
            yield "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
