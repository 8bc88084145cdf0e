"""The state of the cluster from the controllers' log: the newest checkpoint, and the log that follows it.

The high watermark of this log is written down nowhere. Therefore the copy is used that an election among all of them
would choose, to its end; a fault is reported if something relevant in it exists in a minority of the copies only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, assert_never

from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.layouts.foreign import Fault, ForeignAcl, ForeignBroker, ForeignCluster, ForeignQuota, ForeignUser
from maxbrod.layouts.logdir.metadata_records import (
    AclAdded,
    AclRemoved,
    BrokerChanged,
    BrokerRegistered,
    BrokerRemoved,
    Change,
    ConfigSet,
    MetadataRecord,
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
    decode_record,
)
from maxbrod.layouts.logdir.partition import Copy, agreed_until
from maxbrod.layouts.logdir.reader import batches
from maxbrod.layouts.visible_records import decode_committed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    import numpy as np
    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.storage.interface import Storage

    Entities = tuple[tuple[str, str | None], ...]

Value = TypeVar("Value")
_CHECKPOINT: Final = re.compile(r"(?P<end>\d{20})-(?P<epoch>\d{10})\.checkpoint")
_COLUMNS: Final = ["offset", "value"]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCheckpoint:
    """The state below an offset, as its node has written it. All of it is committed."""

    path: str
    end_offset: int
    epoch: int


def read_metadata(storage: Storage, copies: Sequence[Copy], faults: list[Fault]) -> MetadataImage | None:
    """None if there is no such log, as in clusters with ZooKeeper, or none that is complete from its beginning."""
    for copy in sorted(copies, key=_reach, reverse=True):
        for found in (*_checkpoints(copy), None):
            if _leads_on(copy, found):
                image = _Reader(storage, copy, faults).read(found)
                if image is not None:
                    _report_minority(image, copy, copies, faults)
                    return image
    if copies:
        message = "no copy of the cluster's metadata is complete: settings, ACLs and quotas are lost"
        faults.append(Fault(path=copies[0].folder.path, message=message))
    return None


def _checkpoints(copy: Copy) -> list[SnapshotCheckpoint]:
    """Checkpoints, the newest first. Incomplete ones have other names."""
    named = ((name, _CHECKPOINT.fullmatch(name)) for name in copy.folder.names)
    found = [
        SnapshotCheckpoint(path=f"{copy.folder.path}/{name}", end_offset=int(match["end"]), epoch=int(match["epoch"]))
        for name, match in named
        if match is not None
    ]
    return sorted(found, key=lambda checkpoint: (checkpoint.end_offset, checkpoint.epoch), reverse=True)


def _reach(copy: Copy) -> tuple[int, int]:
    """Return how far a copy reaches: epoch and offset. A node that has just loaded a checkpoint has no log yet."""
    noted = ((checkpoint.epoch, checkpoint.end_offset) for checkpoint in _checkpoints(copy))
    return max([(copy.last_epoch, copy.end), *noted])


def _leads_on(copy: Copy, checkpoint: SnapshotCheckpoint | None) -> bool:
    """True if the log continues where a checkpoint ends, or is complete without one."""
    begins = copy.logs[0].base_offset if copy.logs else None
    if checkpoint is None:
        return begins == 0 and not copy.logs[0].empty
    return begins is None or begins <= checkpoint.end_offset


class _Reader:
    """Reads one copy. Records that cannot be decoded are faults, one for each reason."""

    def __init__(self, storage: Storage, copy: Copy, faults: list[Fault]) -> None:
        self._storage, self._copy, self._faults = storage, copy, faults
        self._reported: set[str] = set()
        self._image = MetadataImage()

    def read(self, checkpoint: SnapshotCheckpoint | None) -> MetadataImage | None:
        """None if the checkpoint is damaged, which is a fault."""
        start = 0
        if checkpoint is not None:
            start = checkpoint.end_offset
            try:
                self._load(checkpoint)
            except (CorruptDataError, UnsupportedFormatError) as error:
                message = f"the checkpoint is damaged ({error.message}) and is skipped"
                self._faults.append(Fault(path=checkpoint.path, message=message, fatal=False))
                return None
            # Everything in a checkpoint was committed.
            self._image.changed_at = -1
        self._follow(start)
        if self._image.unknown:
            kinds = ", ".join(map(str, sorted(self._image.unknown)))
            message = f"records of types that this release does not know ({kinds}) are skipped"
            self._faults.append(Fault(path=self._copy.folder.path, message=message, fatal=False))
        return self._image

    def _load(self, checkpoint: SnapshotCheckpoint) -> None:
        """CorruptDataError also if its last record, which marks it as complete, is missing."""
        size, complete = self._storage.head(checkpoint.path).size, False
        for data, headers in batches(self._storage, checkpoint.path, 0, size):
            complete = bool(headers.control[-1])
            self._add(checkpoint.path, data, headers, 0)
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
                if offset >= start and value is not None:
                    self._add_record(path, offset, value)

    def _add_record(self, path: str, offset: int, value: bytes) -> None:
        try:
            record = decode_record(value)
        except (CorruptDataError, UnsupportedFormatError) as error:
            if error.message not in self._reported:
                self._reported.add(error.message)
                message = f"{error.message}; its contents are lost"
                self._faults.append(Fault(path=path, message=message, offset=offset))
            return
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
