"""The description of a cluster: nodes, ports, listeners, users, settings. Values, and their JSON in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - pydantic reads the types of fields
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from maxbrod.errors import CorruptDataError, UnsupportedFormatError, UsageError
from maxbrod.sandbox.jars import KAFKA_VERSION

HOST: Final = "127.0.0.1"

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
S3_DIR: Final = "s3"

_FORMAT: Final = "maxbrod-sandbox/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
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
    nodes: tuple[Node, ...]
    listeners: tuple[str, ...]
    users: Mapping[str, str] = field(repr=False)
    authorizer: bool
    config: Mapping[str, str]
    broker_config: Mapping[int, Mapping[str, str]]
    jvm_options: tuple[str, ...]
    kafka_version: str = KAFKA_VERSION

    @property
    def brokers(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.is_broker)

    def broker(self, broker_id: int) -> Node:
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
