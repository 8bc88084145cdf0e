"""The description of a cluster: nodes, ports, listeners, users, settings.

Values, their JSON in the cluster's folder, and the server.properties of a node as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from maxbrod.errors import CorruptDataError, UnsupportedFormatError, UsageError
from maxbrod.sandbox.jars import KAFKA_VERSION
from maxbrod.sandbox.process import HOST

PLAINTEXT: Final = "PLAINTEXT"
SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
SSL: Final = "SSL"
SASL_SSL: Final = "SASL_SSL"
PROXIED: Final = "PROXIED"
"""PLAINTEXT again, but advertised with the port of a proxy before the broker."""
CONTROLLER: Final = "CONTROLLER"

OPTIONAL_LISTENERS: Final = (SASL_PLAINTEXT, SSL, SASL_SSL)
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

ADMIN: Final = "admin"
DEFAULT_USERS: Final = {ADMIN: "admin-secret", "alice": "alice-secret"}

BROKER: Final = "broker"
CONTROLLER_NODE_ID: Final = 1000

STATE_FILE: Final = "sandbox.json"
TLS_DIR: Final = "tls"
CLIENTS_DIR: Final = "clients"
STORES: Final = ("s3", "azure")
"""The stores that a sandbox may have; each is also the name of its folder."""

_FORMAT: Final = "maxbrod-sandbox/1"

PROTOCOLS: Final = {
    CONTROLLER: PLAINTEXT,
    PLAINTEXT: PLAINTEXT,
    PROXIED: PLAINTEXT,
    SASL_PLAINTEXT: SASL_PLAINTEXT,
    SSL: SSL,
    SASL_SSL: SASL_SSL,
}
_MODULES: Final = "org.apache.kafka.common.security"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxNode:
    """One Kafka process."""

    node_id: int
    roles: tuple[str, ...]
    ports: Mapping[str, int]
    """The port that each listener binds."""
    advertised_ports: Mapping[str, int] = field(default_factory=dict)
    """The ports that are advertised instead, for listeners behind a proxy."""

    @property
    def is_broker(self) -> bool:
        return BROKER in self.roles

    @property
    def name(self) -> str:
        return f"{self.roles[0]}-{self.node_id}"

    def client_port(self, listener: str) -> int:
        return self.advertised_ports.get(listener, self.ports[listener])


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A whole cluster."""

    cluster_id: str
    nodes: tuple[SandboxNode, ...]
    listeners: tuple[str, ...]
    users: Mapping[str, str] = field(repr=False)
    authorizer: bool
    config: Mapping[str, str]
    broker_config: Mapping[int, Mapping[str, str]]
    jvm_options: tuple[str, ...]
    kafka_version: str = KAFKA_VERSION

    @property
    def brokers(self) -> tuple[SandboxNode, ...]:
        return tuple(node for node in self.nodes if node.is_broker)

    def broker(self, broker_id: int) -> SandboxNode:
        for node in self.brokers:
            if node.node_id == broker_id:
                return node
        raise UsageError(f"there is no broker {broker_id}: this sandbox has {[n.node_id for n in self.brokers]}")

    @property
    def tls(self) -> bool:
        return SSL in self.listeners or SASL_SSL in self.listeners

    @property
    def sasl_listeners(self) -> tuple[str, ...]:
        return tuple(name for name in self.listeners if name in {SASL_PLAINTEXT, SASL_SSL})

    def as_json(self) -> str:
        """Contains the passwords: only the owner of the file may read it."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Spec:
        from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - not for `--help`

        try:
            fields: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise CorruptDataError(f"the description of a sandbox is not JSON: {error}") from error
        if (found := fields.pop("format", None)) != _FORMAT:
            raise UnsupportedFormatError(f"the sandbox has format {found}; this release reads {_FORMAT}")
        try:
            return TypeAdapter(cls).validate_python(fields)
        except ValidationError as error:
            raise CorruptDataError(f"the description of a sandbox is damaged: {error}") from error


def role_sets(broker_count: int) -> list[tuple[int, tuple[str, ...]]]:
    """The ids and roles of the processes of a cluster with this number of brokers.

    A single broker is its own controller, which starts fastest. With two or more the controller is a separate process,
    so that the quorum survives when brokers are killed.
    """
    if broker_count < 1:
        raise UsageError(f"a cluster needs at least one broker, not {broker_count}")
    if broker_count == 1:
        return [(1, (BROKER, "controller"))]
    brokers = [(broker_id, (BROKER,)) for broker_id in range(1, broker_count + 1)]
    return [(CONTROLLER_NODE_ID, ("controller",)), *brokers]


def server_properties(spec: Spec, node: SandboxNode, *, data_dir: Path, tls_dir: Path) -> dict[str, str]:
    """Return all settings of one node: our defaults, then those of the cluster, then the caller's own.

    The defaults make a small cluster fast: to start, to notice a dead broker, to compact, to apply retention. None of
    them changes the meaning of a record or an offset.
    """
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


def _identity(spec: Spec, node: SandboxNode, data_dir: Path) -> dict[str, str]:
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
    # The users of SCRAM are in the cluster's metadata: see `cluster.start_nodes`.
    return f"{_MODULES}.scram.ScramLoginModule required;"


def jaas_client(mechanism: str, user: str, password: str) -> str:
    """The `sasl.jaas.config` of a Java client of this user."""
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


def render_properties(values: Mapping[str, str]) -> str:
    """Return a Java properties file, which reads backslashes as escapes and is Latin-1 unless escaped."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in values.items())


def _escaped(text: str) -> str:
    return "".join(map(_escaped_character, text))


def _escaped_character(character: str) -> str:
    if character in "\\=:#! \t":
        return f"\\{character}"
    if character.isascii() and character.isprintable():
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
