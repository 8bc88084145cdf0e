"""What controllers decide, record by record: the nouns of `__cluster_metadata`, as far as an archive keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

    from maxbrod.layouts.foreign_cluster import ForeignAcl, ForeignBroker, ForeignUser


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAdded:
    name: str
    topic_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRemoved:
    topic_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAssigned:
    topic_id: str
    partition: int
    replicas: tuple[int, ...] | None
    """None where a change left them as they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSet:
    resource_type: int
    resource_name: str
    name: str
    value: str | None
    """None takes it back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSet:
    entities: tuple[tuple[str, str | None], ...]
    key: str
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AclAdded:
    id: UUID
    acl: ForeignAcl


@dataclass(frozen=True, slots=True, kw_only=True)
class AclRemoved:
    id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSet:
    user: ForeignUser


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRemoved:
    name: str
    mechanism: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistered:
    broker: ForeignBroker
    log_dirs: tuple[UUID, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerChanged:
    node_id: int
    log_dirs: tuple[UUID, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRemoved:
    node_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A type of a later release than this one."""

    type: int


class TransactionBegan:
    """What follows counts together, or not at all."""


class TransactionEnded:
    pass


class TransactionAborted:
    pass


MetadataRecord = (
    TopicAdded
    | TopicRemoved
    | PartitionAssigned
    | ConfigSet
    | QuotaSet
    | AclAdded
    | AclRemoved
    | UserSet
    | UserRemoved
    | BrokerRegistered
    | BrokerChanged
    | BrokerRemoved
    | Unknown
    | TransactionBegan
    | TransactionEnded
    | TransactionAborted
)
