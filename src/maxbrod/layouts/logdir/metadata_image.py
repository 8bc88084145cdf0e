"""The state that the records of `__cluster_metadata` add up to, as the cluster's own brokers would have it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.layouts.foreign_cluster import ForeignBroker, ForeignCluster, ForeignQuota, ForeignUser
from maxbrod.layouts.logdir.metadata_values import (
    AclAdded,
    AclRemoved,
    BrokerChanged,
    BrokerRegistered,
    BrokerRemoved,
    ConfigSet,
    PartitionAssigned,
    QuotaSet,
    TopicAdded,
    TopicRemoved,
    TransactionAborted,
    TransactionBegan,
    TransactionEnded,
    Unknown,
    UserRemoved,
    UserSet,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from maxbrod.layouts.foreign_cluster import ForeignAcl
    from maxbrod.layouts.logdir.metadata_values import MetadataRecord

    Entities = tuple[tuple[str, str | None], ...]

_TOPIC: Final = 2
_BROKER: Final = 4
_ALL_BROKERS: Final = ""
_DEFAULTS: Final = {
    "log.cleanup.policy": "cleanup.policy",
    "message.max.bytes": "max.message.bytes",
    "log.message.timestamp.type": "message.timestamp.type",
    "min.insync.replicas": "min.insync.replicas",
    "log.retention.bytes": "retention.bytes",
    "log.retention.ms": "retention.ms",
    "log.segment.bytes": "segment.bytes",
}
"""Settings of brokers, and the names under which topics know them. No other setting of a broker is ever given away:
passwords are among them."""


class MetadataImage:
    """Takes records in order of offsets. What a transaction of the controller has begun counts when it has ended."""

    def __init__(self) -> None:
        self.topics: dict[str, str] = {}
        """Names by id."""
        self.removed: dict[str, str] = {}
        self.partitions: dict[str, dict[int, tuple[int, ...]]] = {}
        """By topic id and partition, the brokers that hold it."""
        self.log_dirs: dict[int, frozenset[UUID]] = {}
        """By broker."""
        self.changed_at = -1
        """The offset of the last record that an archive keeps something of."""
        self.unknown: set[int] = set()
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._acls: dict[UUID, ForeignAcl] = {}
        self._quotas: dict[Entities, dict[str, float]] = {}
        self._users: dict[tuple[str, int], ForeignUser] = {}
        self._brokers: dict[int, ForeignBroker] = {}
        self._begun: list[tuple[int, MetadataRecord]] | None = None
        self._appliers: Mapping[type, Callable[..., object]] = {
            TopicAdded: self._add_topic,
            TopicRemoved: self._remove_topic,
            PartitionAssigned: self._assign,
            ConfigSet: self._set_config,
            QuotaSet: self._set_quota,
            AclAdded: lambda each: self._acls.update({each.id: each.acl}),
            AclRemoved: lambda each: self._acls.pop(each.id, None),
            UserSet: lambda each: self._users.update({(each.user.name, each.user.mechanism): each.user}),
            UserRemoved: lambda each: self._users.pop((each.name, each.mechanism), None),
            BrokerRegistered: self._register,
            BrokerChanged: self._change_broker,
            BrokerRemoved: self._unregister,
            Unknown: lambda each: self.unknown.add(each.type),
        }

    def add(self, offset: int, record: MetadataRecord) -> None:
        if isinstance(record, TransactionBegan):
            self._begun = []
        elif isinstance(record, TransactionAborted):
            self._begun = None
        elif isinstance(record, TransactionEnded):
            begun, self._begun = self._begun or [], None
            for at, each in begun:
                self._apply(at, each)
        elif self._begun is not None:
            self._begun.append((offset, record))
        else:
            self._apply(offset, record)

    def names(self) -> dict[str, str]:
        """Ids by name."""
        return {name: topic_id for topic_id, name in self.topics.items()}

    def configs_of(self, topic: str) -> dict[str, str]:
        return dict(self._configs.get((_TOPIC, topic), {}))

    def cluster(self) -> ForeignCluster:
        everywhere = self._configs.get((_BROKER, _ALL_BROKERS), {})
        return ForeignCluster(
            brokers=tuple(self._brokers.values()),
            acls=tuple(self._acls.values()),
            quotas=tuple(
                ForeignQuota(entities=entities, values=dict(values)) for entities, values in self._quotas.items()
            ),
            users=tuple(self._users.values()),
            defaults={_DEFAULTS[name]: value for name, value in everywhere.items() if name in _DEFAULTS},
        )

    def _apply(self, offset: int, record: MetadataRecord) -> None:
        self._appliers[type(record)](record)
        kept = not isinstance(record, BrokerRegistered | BrokerChanged | Unknown)
        if kept and not (isinstance(record, PartitionAssigned) and record.replicas is None):
            self.changed_at = offset

    def _add_topic(self, record: TopicAdded) -> None:
        self.topics[record.topic_id] = record.name

    def _remove_topic(self, record: TopicRemoved) -> None:
        """Its settings go with it, and no record says so."""
        name = self.topics.pop(record.topic_id, None)
        self.partitions.pop(record.topic_id, None)
        if name is not None:
            self.removed[record.topic_id] = name
            self._configs.pop((_TOPIC, name), None)

    def _assign(self, record: PartitionAssigned) -> None:
        if record.replicas is not None:
            self.partitions.setdefault(record.topic_id, {})[record.partition] = record.replicas

    def _set_config(self, record: ConfigSet) -> None:
        found = self._configs.setdefault((record.resource_type, record.resource_name), {})
        if record.value is None:
            found.pop(record.name, None)
        else:
            found[record.name] = record.value

    def _set_quota(self, record: QuotaSet) -> None:
        entities = tuple(sorted(record.entities, key=lambda each: each[0]))
        found = self._quotas.setdefault(entities, {})
        if record.value is None:
            found.pop(record.key, None)
        else:
            found[record.key] = record.value
        if not found:
            del self._quotas[entities]

    def _register(self, record: BrokerRegistered) -> None:
        self._brokers[record.broker.node_id] = record.broker
        self.log_dirs[record.broker.node_id] = frozenset(record.log_dirs)

    def _change_broker(self, record: BrokerChanged) -> None:
        if record.log_dirs is not None:
            self.log_dirs[record.node_id] = frozenset(record.log_dirs)

    def _unregister(self, record: BrokerRemoved) -> None:
        self._brokers.pop(record.node_id, None)
        self.log_dirs.pop(record.node_id, None)
