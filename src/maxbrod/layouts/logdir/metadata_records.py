"""One record of `__cluster_metadata`: a decision of the controllers, as bytes and as a value.

A value is a frame: its version, the type and that type's version, each a varint, then the fields, always flexible.
Types that an archive keeps nothing of are skipped. The secrets of users are never extracted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.errors import UnsupportedFormatError
from maxbrod.layouts.fields import Fields
from maxbrod.layouts.foreign import ForeignAcl, ForeignBroker, ForeignUser
from maxbrod.model import topic_id_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID
_FRAME_VERSION: Final = 1
_REPLICAS_TAG: Final = 2
_LOG_DIRS_TAG: Final = 0
_CHANGED_LOG_DIRS_TAG: Final = 2
SKIPPED: Final = frozenset({7, 8, 10, 12, 15, 20, 21, 26, 27, 28})
"""Fencing, tokens, features, producer ids, migration, controllers, eligible leaders: known, and not needed here."""


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
    """None if a change did not affect them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSet:
    resource_type: int
    resource_name: str
    name: str
    value: str | None
    """None removes the setting."""


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
    """The following records count together, or not at all."""


class TransactionEnded:
    pass


class TransactionAborted:
    pass


Change = (
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
)
MetadataRecord = Change | TransactionBegan | TransactionEnded | TransactionAborted


def decode_record(value: bytes) -> MetadataRecord | None:
    """None for a type of which nothing is kept. UnsupportedFormatError: the version is newer than this release."""
    fields = Fields(value, flexible=True)
    frame = fields.varint()
    if frame != _FRAME_VERSION:
        raise UnsupportedFormatError(f"a record of the metadata has a frame of version {frame}")
    kind, fields.version = fields.varint(), fields.varint()
    if kind in SKIPPED:
        return None
    if kind not in _DECODERS:
        return Unknown(type=kind)
    newest, decode = _DECODERS[kind]
    if fields.version > newest:
        raise UnsupportedFormatError(f"a record of the metadata has the type {kind} in version {fields.version}")
    return decode(fields)


def _register_broker(fields: Fields) -> BrokerRegistered:
    node_id = fields.number("i")
    if fields.version >= 2:
        fields.flag()
    fields.uuid()
    fields.number("q")
    endpoints = [_endpoint(fields) for _ in range(fields.count())]
    for _ in range(fields.count()):
        fields.text(), fields.number("h"), fields.number("h"), fields.tags()
    rack = fields.text_or_none()
    fields.flag()
    if fields.version >= 1:
        fields.flag()
    host, port = endpoints[0] if endpoints else ("", 0)
    log_dirs = fields.tags().get(_LOG_DIRS_TAG)
    return BrokerRegistered(
        broker=ForeignBroker(node_id=node_id, host=host, port=port, rack=rack),
        log_dirs=() if log_dirs is None else _uuids(log_dirs),
    )


def _endpoint(fields: Fields) -> tuple[str, int]:
    fields.text()
    host, port = fields.text(), fields.number("H")
    fields.number("h")
    fields.tags()
    return host, port


def _change_broker(fields: Fields) -> BrokerChanged:
    node_id = fields.number("i")
    fields.number("q")
    log_dirs = fields.tags().get(_CHANGED_LOG_DIRS_TAG)
    return BrokerChanged(node_id=node_id, log_dirs=None if log_dirs is None else _uuids(log_dirs))


def _uuids(data: bytes) -> tuple[UUID, ...]:
    fields = Fields(data, flexible=True)
    return tuple(fields.uuid() for _ in range(fields.count()))


def _add_topic(fields: Fields) -> TopicAdded:
    return TopicAdded(name=fields.text(), topic_id=topic_id_text(fields.uuid()))


def _assign_partition(fields: Fields) -> PartitionAssigned:
    partition, topic_id = fields.number("i"), fields.uuid()
    return PartitionAssigned(topic_id=topic_id_text(topic_id), partition=partition, replicas=fields.numbers("i"))


def _change_partition(fields: Fields) -> PartitionAssigned:
    partition, topic_id = fields.number("i"), fields.uuid()
    replicas = fields.tags().get(_REPLICAS_TAG)
    return PartitionAssigned(
        topic_id=topic_id_text(topic_id),
        partition=partition,
        replicas=None if replicas is None else Fields(replicas, flexible=True).numbers("i"),
    )


def _set_config(fields: Fields) -> ConfigSet:
    return ConfigSet(
        resource_type=fields.number("b"),
        resource_name=fields.text(),
        name=fields.text(),
        value=fields.text_or_none(),
    )


def _set_quota(fields: Fields) -> QuotaSet:
    entities = tuple(_entity(fields) for _ in range(fields.count()))
    key, value, removed = fields.text(), fields.decimal(), fields.flag()
    return QuotaSet(entities=entities, key=key, value=None if removed else value)


def _entity(fields: Fields) -> tuple[str, str | None]:
    found = fields.text(), fields.text_or_none()
    fields.tags()
    return found


def _set_user(fields: Fields) -> UserSet:
    name, mechanism = fields.text(), fields.number("b")
    for _ in ("salt", "stored key", "server key"):
        fields.blob()
    return UserSet(user=ForeignUser(name=name, mechanism=mechanism, iterations=fields.number("i")))


def _add_acl(fields: Fields) -> AclAdded:
    return AclAdded(
        id=fields.uuid(),
        acl=ForeignAcl(
            resource_type=fields.number("b"),
            resource_name=fields.text(),
            pattern_type=fields.number("b"),
            principal=fields.text(),
            host=fields.text(),
            operation=fields.number("b"),
            permission=fields.number("b"),
        ),
    )


_DECODERS: Final[Mapping[int, tuple[int, Callable[[Fields], MetadataRecord]]]] = {
    0: (4, _register_broker),
    1: (0, lambda fields: BrokerRemoved(node_id=fields.number("i"))),
    2: (0, _add_topic),
    3: (2, _assign_partition),
    4: (0, _set_config),
    5: (2, _change_partition),
    9: (0, lambda fields: TopicRemoved(topic_id=topic_id_text(fields.uuid()))),
    11: (0, _set_user),
    14: (0, _set_quota),
    17: (3, _change_broker),
    18: (0, _add_acl),
    19: (0, lambda fields: AclRemoved(id=fields.uuid())),
    22: (0, lambda fields: UserRemoved(name=fields.text(), mechanism=fields.number("b"))),
    23: (0, lambda _: TransactionBegan()),
    24: (0, lambda _: TransactionEnded()),
    25: (0, lambda _: TransactionAborted()),
}
"""By type: the newest known version, and the decoder."""
