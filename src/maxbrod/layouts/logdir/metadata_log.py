"""The state of the cluster from the controllers' log: the newest checkpoint, and the log that follows it.

The high watermark of this log is written down nowhere. Therefore the copy is used that an election among all of them
would choose, to its end; a fault is reported if something relevant in it exists in a minority of the copies only.

A record is a decision of the controllers. Its value is a frame: its version, the type and that type's version, each a
varint, then the fields, always flexible. Types that an archive keeps nothing of are skipped. The secrets of users are
never extracted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple, TypeVar, assert_never
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from maxbrod.batch.headers import BatchHeaders
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.layouts.foreign import Fault, ForeignAcl, ForeignBroker, ForeignCluster, ForeignQuota, ForeignUser
from maxbrod.layouts.internal_topics import RecordFields
from maxbrod.layouts.logdir.partition import Copy, agreed_until
from maxbrod.layouts.logdir.reader import batches
from maxbrod.layouts.reader import decode_committed
from maxbrod.model import topic_id_text
from maxbrod.storage.interface import Storage

Entities = tuple[tuple[str, str | None], ...]
Checkpoint = tuple[int, int, str]  # the end offset, the epoch, and the path of a state that a node has written

Value = TypeVar("Value")
_CHECKPOINT: Final = re.compile(r"(?P<end>\d{20})-(?P<epoch>\d{10})\.checkpoint")
_COLUMNS: Final = ["offset", "value"]
_FRAME_VERSION: Final = 1
_REPLICAS_TAG: Final = 2
_LOG_DIRS_TAG: Final = 0
_CHANGED_LOG_DIRS_TAG: Final = 2
_SKIPPED: Final = frozenset({7, 8, 10, 12, 15, 20, 21, 26, 27, 28})
"""Fencing, tokens, features, producer ids, migration, controllers, eligible leaders: known, and not needed here."""
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
"""Settings of brokers, and the names of the corresponding topic settings. No other setting of a broker is ever
disclosed: some are passwords."""


class TopicAdded(NamedTuple):
    name: str
    topic_id: str


class TopicRemoved(NamedTuple):
    topic_id: str


class PartitionAssigned(NamedTuple):
    partition: int
    topic_id: str
    replicas: tuple[int, ...] | None
    """None if a change did not affect them."""


class ConfigSet(NamedTuple):
    resource_type: int
    resource_name: str
    name: str
    value: str | None
    """None removes the setting."""


class QuotaSet(NamedTuple):
    entities: Entities
    key: str
    value: float | None


class AclAdded(NamedTuple):
    id: UUID
    acl: ForeignAcl


class AclRemoved(NamedTuple):
    id: UUID


class UserSet(NamedTuple):
    user: ForeignUser


class UserRemoved(NamedTuple):
    name: str
    mechanism: int


class BrokerRegistered(NamedTuple):
    broker: ForeignBroker
    log_dirs: tuple[UUID, ...]


class BrokerChanged(NamedTuple):
    node_id: int
    log_dirs: tuple[UUID, ...] | None


class BrokerRemoved(NamedTuple):
    node_id: int


class Unknown(NamedTuple):
    """A type of a later release than this one."""

    type: int


class TransactionMark(Enum):
    """Records between the beginning and the end of a transaction count together, or not at all."""

    BEGAN = auto()
    ENDED = auto()
    ABORTED = auto()


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


def decode_record(value: bytes) -> Change | TransactionMark | None:
    """None for a type of which nothing is kept. UnsupportedFormatError: the version is newer than this release."""
    fields = RecordFields(value, flexible=True)
    frame = fields.varint()
    if frame != _FRAME_VERSION:
        raise UnsupportedFormatError(f"a record of the metadata has a frame of version {frame}")
    kind, fields.version = fields.varint(), fields.varint()
    if kind in _SKIPPED:
        return None
    if kind not in _DECODERS:
        return Unknown(kind)
    newest, decode = _DECODERS[kind]
    if fields.version > newest:
        raise UnsupportedFormatError(f"a record of the metadata has the type {kind} in version {fields.version}")
    return decode(fields)


def _register_broker(fields: RecordFields) -> BrokerRegistered:
    node_id = fields.number("i")
    if fields.version >= 2:
        fields.flag()
    fields.uuid()
    fields.number("q")
    endpoints = []
    for _ in range(fields.count()):
        _, host, port = fields.text(), fields.text(), fields.number("H")
        endpoints.append((host, port))
        fields.number("h"), fields.tags()
    for _ in range(fields.count()):
        fields.text(), fields.number("h"), fields.number("h"), fields.tags()
    rack = fields.text_or_none()
    fields.flag()
    if fields.version >= 1:
        fields.flag()
    host, port = endpoints[0] if endpoints else ("", 0)
    log_dirs = _tagged_uuids(fields, _LOG_DIRS_TAG)
    return BrokerRegistered(ForeignBroker(node_id=node_id, host=host, port=port, rack=rack), log_dirs or ())


def _change_broker(fields: RecordFields) -> BrokerChanged:
    node_id = fields.number("i")
    fields.number("q")
    return BrokerChanged(node_id, _tagged_uuids(fields, _CHANGED_LOG_DIRS_TAG))


def _tagged_uuids(fields: RecordFields, tag: int) -> tuple[UUID, ...] | None:
    data = fields.tags().get(tag)
    if data is None:
        return None
    inner = RecordFields(data, flexible=True)
    return tuple(inner.uuid() for _ in range(inner.count()))


def _change_partition(fields: RecordFields) -> PartitionAssigned:
    partition, topic_id = fields.number("i"), topic_id_text(fields.uuid())
    replicas = fields.tags().get(_REPLICAS_TAG)
    found = None if replicas is None else RecordFields(replicas, flexible=True).numbers("i")
    return PartitionAssigned(partition, topic_id, found)


def _set_quota(fields: RecordFields) -> QuotaSet:
    entities = []
    for _ in range(fields.count()):
        entities.append((fields.text(), fields.text_or_none()))
        fields.tags()
    key, value, removed = fields.text(), fields.decimal(), fields.flag()
    return QuotaSet(tuple(entities), key, None if removed else value)


def _set_user(fields: RecordFields) -> UserSet:
    name, mechanism = fields.text(), fields.number("b")
    for _ in ("salt", "stored key", "server key"):
        fields.blob()
    return UserSet(ForeignUser(name=name, mechanism=mechanism, iterations=fields.number("i")))


def _add_acl(fields: RecordFields) -> AclAdded:
    return AclAdded(
        fields.uuid(),
        ForeignAcl(
            resource_type=fields.number("b"),
            resource_name=fields.text(),
            pattern_type=fields.number("b"),
            principal=fields.text(),
            host=fields.text(),
            operation=fields.number("b"),
            permission=fields.number("b"),
        ),
    )


_DECODERS: Final[Mapping[int, tuple[int, Callable[[RecordFields], Change | TransactionMark]]]] = {
    0: (4, _register_broker),
    1: (0, lambda fields: BrokerRemoved(fields.number("i"))),
    2: (0, lambda fields: TopicAdded(fields.text(), topic_id_text(fields.uuid()))),
    3: (2, lambda fields: PartitionAssigned(fields.number("i"), topic_id_text(fields.uuid()), fields.numbers("i"))),
    4: (0, lambda fields: ConfigSet(fields.number("b"), fields.text(), fields.text(), fields.text_or_none())),
    5: (2, _change_partition),
    9: (0, lambda fields: TopicRemoved(topic_id_text(fields.uuid()))),
    11: (0, _set_user),
    14: (0, _set_quota),
    17: (3, _change_broker),
    18: (0, _add_acl),
    19: (0, lambda fields: AclRemoved(fields.uuid())),
    22: (0, lambda fields: UserRemoved(fields.text(), fields.number("b"))),
    23: (0, lambda _: TransactionMark.BEGAN),
    24: (0, lambda _: TransactionMark.ENDED),
    25: (0, lambda _: TransactionMark.ABORTED),
}
"""By type: the newest known version, and the decoder."""


class MetadataImage:
    """The state after records in order of offsets. Records of a controller's transaction count when it has ended."""

    def __init__(self) -> None:
        self.topics: dict[str, str] = {}
        """Names by id."""
        self.removed: dict[str, str] = {}
        self.partitions: dict[str, dict[int, tuple[int, ...]]] = {}
        """The brokers that hold each partition, by topic id and number."""
        self.log_dirs: dict[int, frozenset[UUID]] = {}
        """By broker."""
        self.changed_at = -1
        """The offset of the last record that changed something an archive keeps."""
        self.unknown: set[int] = set()
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._acls: dict[UUID, ForeignAcl] = {}
        self._quotas: dict[Entities, dict[str, float]] = {}
        self._users: dict[tuple[str, int], ForeignUser] = {}
        self._brokers: dict[int, ForeignBroker] = {}
        self._begun: list[tuple[int, Change]] | None = None

    def add(self, offset: int, record: Change | TransactionMark) -> None:
        if isinstance(record, TransactionMark):
            begun, self._begun = self._begun or [], [] if record is TransactionMark.BEGAN else None
            for at, change in begun if record is TransactionMark.ENDED else ():
                self._apply(at, change)
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

    def _apply(self, offset: int, record: Change) -> None:  # noqa: C901, PLR0912 - one case for each type, none missing
        match record:
            case TopicAdded():
                self.topics[record.topic_id] = record.name
            case TopicRemoved():
                name = self.topics.pop(record.topic_id, None)
                self.partitions.pop(record.topic_id, None)
                if name is not None:
                    self.removed[record.topic_id] = name
                    # Its settings are removed with it, without a record of their own.
                    self._configs.pop((_TOPIC, name), None)
            case PartitionAssigned():
                if record.replicas is None:
                    return
                self.partitions.setdefault(record.topic_id, {})[record.partition] = record.replicas
            case ConfigSet():
                configs = self._configs.setdefault((record.resource_type, record.resource_name), {})
                _set(configs, record.name, record.value)
            case QuotaSet():
                entities = tuple(sorted(record.entities, key=lambda entity: entity[0]))
                quotas = self._quotas.setdefault(entities, {})
                _set(quotas, record.key, record.value)
                if not quotas:
                    del self._quotas[entities]
            case AclAdded():
                self._acls[record.id] = record.acl
            case AclRemoved():
                self._acls.pop(record.id, None)
            case UserSet():
                self._users[record.user.name, record.user.mechanism] = record.user
            case UserRemoved():
                self._users.pop((record.name, record.mechanism), None)
            case BrokerRemoved():
                self._brokers.pop(record.node_id, None)
                self.log_dirs.pop(record.node_id, None)
            case BrokerRegistered():
                self._brokers[record.broker.node_id] = record.broker
                self.log_dirs[record.broker.node_id] = frozenset(record.log_dirs)
                return
            case BrokerChanged():
                if record.log_dirs is not None:
                    self.log_dirs[record.node_id] = frozenset(record.log_dirs)
                return
            case Unknown():
                self.unknown.add(record.type)
                return
            case _:
                assert_never(record)
        self.changed_at = offset


def _set(values: dict[str, Value], name: str, value: Value | None) -> None:
    """Sets a value; None removes it."""
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value


def read_metadata(storage: Storage, copies: Sequence[Copy], faults: list[Fault]) -> MetadataImage | None:
    """None if there is no such log, as in clusters with ZooKeeper, or none that is complete from its beginning."""
    for copy in sorted(copies, key=_reach, reverse=True):
        begins = copy.logs[0].base_offset if copy.logs else None
        # The log must continue where a checkpoint ends, or be complete without one.
        usable: list[Checkpoint | None] = [
            found for found in _checkpoints(copy) if begins is None or begins <= found[0]
        ]
        if begins == 0 and not copy.logs[0].empty:
            usable.append(None)
        for checkpoint in usable:
            image = _Reader(storage, copy, faults).read(checkpoint)
            if image is not None:
                _report_minority(image, copy, copies, faults)
                return image
    if copies:
        message = "no copy of the cluster's metadata is complete: settings, ACLs and quotas are lost"
        faults.append(Fault(path=copies[0].folder.path, message=message))
    return None


def _checkpoints(copy: Copy) -> list[Checkpoint]:
    """Checkpoints, the newest first. All of their contents is committed; incomplete ones have other names."""
    matches = filter(None, map(_CHECKPOINT.fullmatch, copy.folder.names))
    found = [(int(match["end"]), int(match["epoch"]), f"{copy.folder.path}/{match[0]}") for match in matches]
    return sorted(found, reverse=True)


def _reach(copy: Copy) -> tuple[int, int]:
    """Return how far a copy reaches: epoch and offset. A node that has just loaded a checkpoint has no log yet."""
    return max([(copy.last_epoch, copy.end), *((epoch, end) for end, epoch, _ in _checkpoints(copy))])


class _Reader:
    """Reads one copy. Records that cannot be decoded are faults, one for each reason."""

    def __init__(self, storage: Storage, copy: Copy, faults: list[Fault]) -> None:
        self._storage, self._copy, self._faults = storage, copy, faults
        self._reported: set[str] = set()
        self._image = MetadataImage()

    def read(self, checkpoint: Checkpoint | None) -> MetadataImage | None:
        """None if the checkpoint is damaged, which is a fault."""
        start = 0
        if checkpoint is not None:
            start, _, path = checkpoint
            try:
                self._load(path)
            except (CorruptDataError, UnsupportedFormatError) as error:
                message = f"the checkpoint is damaged ({error.message}) and is skipped"
                self._faults.append(Fault(path=path, message=message, fatal=False))
                return None
            # Everything in a checkpoint was committed.
            self._image.changed_at = -1
        self._follow(start)
        if self._image.unknown:
            kinds = ", ".join(map(str, sorted(self._image.unknown)))
            message = f"records of types that this release does not know ({kinds}) are skipped"
            self._faults.append(Fault(path=self._copy.folder.path, message=message, fatal=False))
        return self._image

    def _load(self, path: str) -> None:
        """CorruptDataError also if its last record, which marks it as complete, is missing."""
        complete = False
        for data, headers in batches(self._storage, path, 0, self._storage.head(path).size):
            complete = bool(headers.control[-1])
            self._add(path, data, headers, 0)
        if not complete:
            raise CorruptDataError("its end is missing")

    def _follow(self, start: int) -> None:
        """Adds the records from an offset on, as far as the log is complete."""
        reached = start
        for log in self._copy.logs:
            if log.empty or log.end_offset <= reached:
                continue
            if log.base_offset > reached or log.holes:
                self._report_end(log.file.path, reached, "the next records are missing")
                return
            for data, headers in batches(self._storage, log.file.path, log.position, log.stop, check_crc=False):
                self._add(log.file.path, data, headers, reached)
            reached = log.end_offset
            if log.damage is not None and log is not self._copy.logs[-1]:
                self._report_end(log.file.path, reached, log.damage.message)
                return

    def _report_end(self, path: str, reached: int, why: str) -> None:
        message = f"the cluster's metadata is read up to offset {reached} of {self._copy.end}: {why}"
        self._faults.append(Fault(path=path, message=message, offset=reached))

    def _add(self, path: str, data: NDArray[np.uint8], headers: BatchHeaders, start: int) -> None:
        for records in decode_committed(data, headers, (), columns=_COLUMNS):
            columns = (records.column(name).to_pylist() for name in _COLUMNS)
            for offset, value in zip(*columns, strict=True):
                if offset < start or value is None:
                    continue
                try:
                    record = decode_record(value)
                except (CorruptDataError, UnsupportedFormatError) as error:
                    if error.message not in self._reported:
                        self._reported.add(error.message)
                        message = f"{error.message}; its contents are lost"
                        self._faults.append(Fault(path=path, message=message, offset=offset))
                    continue
                if record is not None:
                    self._image.add(offset, record)


def _report_minority(image: MetadataImage, chosen: Copy, copies: Sequence[Copy], faults: list[Fault]) -> None:
    """The majority is that of the copies here: not all releases record the voters."""
    reached = sorted((chosen.end if copy is chosen else agreed_until(copy, chosen) for copy in copies), reverse=True)
    until = reached[len(copies) // 2]
    if image.changed_at >= until:
        message = (
            f"metadata from offset {until} on exists in a minority of the {len(copies)} copies; it is used, up to "
            f"offset {chosen.end - 1}, and may never have been committed"
        )
        faults.append(Fault(path=chosen.folder.path, message=message, offset=until, fatal=False))
