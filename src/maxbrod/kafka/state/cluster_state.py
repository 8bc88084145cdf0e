"""The state of a cluster around its records: topics, ACLs, quotas, users, groups, settings, and what could not be read.

Owns the values and their JSON. Pure, and without kafka-python: snapshots of archives are read without Kafka. Values
sort their parts, so that two captures of the same state are equal, and so is their JSON.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any, Final, TypeVar

from maxbrod import strict_json
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.model import TopicPartition

Value = TypeVar("Value")

EFFECTIVE_CONFIGS: Final = (
    "cleanup.policy",
    "delete.retention.ms",
    "max.message.bytes",
    "message.timestamp.type",
    "min.insync.replicas",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
)
"""Captured for every topic, default or not: a restore plans with them, and compaction explains holes.
`delete.retention.ms` is how long a reader of a compacted log may take from its start to its end."""
_FORMAT: Final = "maxbrod-cluster-state/1"
_HINT: Final = "the snapshot is damaged; restore it from a copy of the archive, or choose another run (--as-of)"

# The names of the numbers in ACLs and credentials are not from kafka-python, whose lists are outdated.
RESOURCE_TYPES: Final = {
    2: "TOPIC",
    3: "GROUP",
    4: "CLUSTER",
    5: "TRANSACTIONAL_ID",
    6: "DELEGATION_TOKEN",
    7: "USER",
}
PATTERN_TYPES: Final = {3: "LITERAL", 4: "PREFIXED"}
OPERATIONS: Final = {
    2: "ALL",
    3: "READ",
    4: "WRITE",
    5: "CREATE",
    6: "DELETE",
    7: "ALTER",
    8: "DESCRIBE",
    9: "CLUSTER_ACTION",
    10: "DESCRIBE_CONFIGS",
    11: "ALTER_CONFIGS",
    12: "IDEMPOTENT_WRITE",
    13: "CREATE_TOKENS",
    14: "DESCRIBE_TOKENS",
    15: "TWO_PHASE_COMMIT",
}
PERMISSIONS: Final = {2: "DENY", 3: "ALLOW"}
MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


def name_of(names: Mapping[int, str], number: int) -> str:
    """The name of a number. A number newer than this release is its own name."""
    return names.get(number, str(number))


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic and its configuration. `configs` and `effective` are None if this user may not read them."""

    name: str
    topic_id: str
    """As Kafka prints it."""
    internal: bool
    replicas: tuple[tuple[int, ...], ...]
    """The brokers that hold each partition, preferred leader first."""
    configs: Mapping[str, str | None] | None
    """Set on the topic itself. Kafka does not reveal a sensitive value: it is null."""
    effective: Mapping[str, str] | None
    """The values in effect for EFFECTIVE_CONFIGS, wherever they are set."""

    @property
    def partition_count(self) -> int:
        return len(self.replicas)

    @property
    def replication_factor(self) -> int:
        return min(map(len, self.replicas), default=0)

    @property
    def compacted(self) -> bool | None:
        """True if compaction may leave holes in the offsets; None if unknown."""
        return None if self.effective is None else "compact" in self.effective.get("cleanup.policy", "").split(",")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Acl:
    """One rule in Kafka's names: TOPIC, LITERAL, User:alice, READ, ALLOW. An unknown name is its number."""

    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntity:
    """The entity that a quota is for. Without a name it is the default of its type."""

    type: str
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    entities: tuple[QuotaEntity, ...]
    values: Mapping[str, float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "entities", _ordered(self.entities, _entity_order))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ScramUser:
    """A user that can log in by this mechanism. Kafka does not reveal the secret."""

    name: str
    mechanism: str
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class DelegationToken:
    """A token that stands for the log-in of its owner. Its secret is never read: a new cluster needs new tokens."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_at_ms: int
    expires_at_ms: int


GROUP_SETTINGS: Final = "group"
METRICS_SETTINGS: Final = "client-metrics"
BROKER_SETTINGS: Final = "broker"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntitySettings:
    """Settings that somebody has made for a group, a subscription to client metrics, or brokers while they run."""

    kind: str
    """One of GROUP_SETTINGS, METRICS_SETTINGS and BROKER_SETTINGS."""
    name: str
    """The group, the subscription or the id of a broker; empty: all brokers."""
    values: Mapping[str, str | None]
    """Kafka does not reveal a sensitive value: it is null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """The offset at which a group resumes in a partition. A share group may have processed some records after it."""

    topic: str
    topic_id: str | None
    """None if the topic is gone or hidden."""
    partition: int
    offset: int
    leader_epoch: int
    """-1 if unknown."""
    metadata: str | None

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(topic=self.topic, partition=self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtopology:
    """A part of a Kafka Streams application, as its members have told their coordinator."""

    subtopology_id: str
    source_topics: tuple[str, ...]
    sink_topics: tuple[str, ...]
    """Repartition topics that it writes."""
    repartition_topics: tuple[str, ...]
    """Repartition topics that it reads."""
    changelog_topics: tuple[str, ...]
    """Topics from which it rebuilds its state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """`type` is classic, consumer, share or streams; `offsets` is None if they could not be read."""

    group_id: str
    type: str
    state: str
    protocol_type: str
    offsets: tuple[CommittedOffset, ...] | None
    topology: tuple[Subtopology, ...] | None = None
    """The parts of a streams group; None for other types, or if the coordinator does not know."""

    def __post_init__(self) -> None:
        if self.offsets is not None:
            object.__setattr__(self, "offsets", _ordered(self.offsets, attrgetter("topic", "partition")))


HIDDEN_TOPIC: Final = "topic "
"""The begin of `MissingState.what`, before the name of a topic that this user may not see."""
HIDDEN_TOPICS: Final = "topics that may be hidden"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class MissingState:
    """A part of the state that is missing: what, why, and what to do about it."""

    what: str
    why: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """The cluster as seen by one user at one time."""

    cluster_id: str | None
    taken_at_ms: int
    brokers: tuple[Broker, ...]
    topics: tuple[TopicState, ...]
    acls: tuple[Acl, ...] | None
    """Empty if no authorizer is configured. None, here and below, if they could not be read."""
    quotas: tuple[Quota, ...] | None
    users: tuple[ScramUser, ...] | None
    groups: tuple[Group, ...]
    gaps: tuple[MissingState, ...]
    settings: tuple[EntitySettings, ...] | None = None
    """Snapshots of older releases have neither settings nor features."""
    features: Mapping[str, int] | None = None
    """The finalized level of each feature, such as metadata.version."""
    tokens: tuple[DelegationToken, ...] | None = None
    """None also if the user of the backup did not log in: Kafka tells tokens only to users that did."""

    def __post_init__(self) -> None:
        orders: dict[str, Any] = {
            "brokers": lambda broker: broker.node_id,
            "topics": lambda topic: topic.name,
            "acls": None,
            "quotas": lambda quota: [_entity_order(entity) for entity in quota.entities],
            "users": None,
            "tokens": None,
            "groups": lambda group: group.group_id,
            "gaps": None,
            "settings": lambda entity: (entity.kind, entity.name),
        }
        for name, order in orders.items():
            if (values := getattr(self, name)) is not None:
                object.__setattr__(self, name, _ordered(values, order))

    @property
    def hidden_topics(self) -> tuple[str, ...]:
        """The names of topics that exist, and that this user may not see."""
        return tuple(gap.what.removeprefix(HIDDEN_TOPIC) for gap in self.gaps if gap.what.startswith(HIDDEN_TOPIC))

    @property
    def may_hide_topics(self) -> MissingState | None:
        """The reason why there may be more topics than `topics` and `hidden_topics`; None: there are no more."""
        return next((gap for gap in self.gaps if gap.what == HIDDEN_TOPICS), None)

    def topic(self, name: str) -> TopicState | None:
        return _named(self.topics, name, lambda topic: topic.name)

    def group(self, group_id: str) -> Group | None:
        return _named(self.groups, group_id, lambda group: group.group_id)


def _named(values: Sequence[Value], name: str, name_of: Callable[[Value], str]) -> Value | None:
    """Find by bisection: the values are sorted by name, and there may be 100,000."""
    position = bisect_left(values, name, key=name_of)
    return values[position] if position < len(values) and name_of(values[position]) == name else None


def _ordered(values: Iterable[Any], order: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a key function of any value
    return tuple(sorted(values, key=order))


def _entity_order(entity: QuotaEntity) -> tuple[str, bool, str]:
    return entity.type, entity.name is not None, entity.name or ""


def encode_state(state: ClusterState) -> dict[str, Any]:
    """Plain JSON values. Dumped with `sort_keys`, the same state gives the same bytes."""
    fields = asdict(state)
    for topic, encoded in zip(state.topics, fields["topics"], strict=True):
        # Derived, for readers of the JSON.
        encoded |= {"partition_count": topic.partition_count, "replication_factor": topic.replication_factor}
    return {"format": _FORMAT, **fields}


def decode_state(fields: Mapping[str, Any]) -> ClusterState:
    """The state that `encode_state` wrote. Unknown keys are ignored.

    CorruptDataError names the field of a wrong type.
    """
    if not isinstance(found := fields.get("format"), str):
        raise CorruptDataError("a cluster state has no format", hint=_HINT)
    if found != _FORMAT:
        raise UnsupportedFormatError(f"a cluster state has the format {found}; this release supports {_FORMAT}")
    try:
        return strict_json.value_of(ClusterState, fields)
    except (ValueError, TypeError) as error:
        raise CorruptDataError(f"a cluster state cannot be read: {error}", hint=_HINT) from error
