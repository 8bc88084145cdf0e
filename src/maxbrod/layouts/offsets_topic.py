"""Consumer groups from a backed-up `__consumer_offsets`: the position of each group.

A key begins with its type as an int16: 0 and 1 are offset commits; the others are about groups and their members, and
say nothing about offsets. A value begins with its version; from 4 on strings are compact and tagged fields may follow.
Columns are scanned once, then one record is left for each group and partition. Records that cannot be decoded are
reported beside the others: one odd record must not cost all groups of a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.layouts.fields import Fields
from maxbrod.layouts.foreign import ForeignGroup
from maxbrod.layouts.last_records import last_records
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

TOPIC: Final = "__consumer_offsets"
_OFFSET_KEYS: Final = frozenset({0, 1})
_VALUE_VERSION_MAX: Final = 4
_FLEXIBLE: Final = 4
_TOPIC_ID_TAG: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitKey:
    group_id: str
    where: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The position of a group in a partition."""

    offset: int
    leader_epoch: int
    """-1 if it is unknown."""
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int
    """-1: the broker's retention applies. Only version 1 has other values."""
    topic_id: UUID | None
    """The id of the committed topic, if the broker knew it."""


def decode_key(key: bytes) -> CommitKey | None:
    """None for a record about a group or its members, which says nothing about offsets."""
    fields = Fields(key)
    kind = fields.number("h")
    if kind in _OFFSET_KEYS:
        group_id = fields.text()
        where = TopicPartition(topic=fields.text(), partition=fields.number("i"))
        return CommitKey(group_id=group_id, where=where)
    if kind < 0:
        raise CorruptDataError(f"a key is of the type {kind}")
    return None


def decode_commit(value: bytes) -> Commit:
    # Arguments are evaluated in order, which is that of the fields.
    fields = _versioned(value)
    return Commit(
        offset=fields.number("q"),
        leader_epoch=fields.number("i") if fields.version >= 3 else -1,
        metadata=fields.text(),
        commit_timestamp_ms=fields.number("q"),
        expire_timestamp_ms=fields.number("q") if fields.version == 1 else -1,
        topic_id=_topic_id(fields.tags().get(_TOPIC_ID_TAG)),
    )


def _topic_id(tag: bytes | None) -> UUID | None:
    return UUID(bytes=tag) if tag is not None and len(tag) == 16 and any(tag) else None


def _versioned(value: bytes) -> Fields:
    fields = Fields(value)
    fields.version = fields.number("h")
    if not 0 <= fields.version <= _VALUE_VERSION_MAX:
        raise UnsupportedFormatError(f"a value has the version {fields.version}")
    fields.flexible = fields.version >= _FLEXIBLE
    return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsTopic:
    """The commits of all groups, of any protocol."""

    commits: Mapping[str, Mapping[TopicPartition, Commit]]
    """By group."""
    unreadable: tuple[tuple[int, str], ...] = ()
    """Offsets of records that could not be decoded, with the reason."""

    def groups(self) -> tuple[ForeignGroup, ...]:
        """Every group that has committed an offset, by its id."""
        return tuple(
            ForeignGroup(group_id=group_id, offsets={where: commit.offset for where, commit in sorted(found.items())})
            for group_id, found in sorted(self.commits.items())
        )


def read_offsets_topic(partitions: Iterable[Iterable[pa.RecordBatch]], *, committed: bool = False) -> OffsetsTopic:
    """The groups of all `partitions`, each given as batches of RECORD_SCHEMA, or of `last_records.COLUMNS`, in order.

    `committed`: see `last_records`.
    """
    commits: dict[str, dict[TopicPartition, Commit]] = {}
    unreadable: list[tuple[int, str]] = []
    for batches in partitions:
        records = last_records(batches, committed=committed)
        columns = (records.column(name).to_pylist() for name in ("offset", "key", "value"))
        for offset, key, value in zip(*columns, strict=True):
            try:
                _apply(decode_key(key), value, commits)
            except (CorruptDataError, UnsupportedFormatError) as error:
                unreadable.append((offset, error.message))
    return OffsetsTopic(
        commits={group_id: found for group_id, found in commits.items() if found}, unreadable=tuple(unreadable)
    )


def _apply(key: CommitKey | None, value: bytes | None, commits: dict[str, dict[TopicPartition, Commit]]) -> None:
    """Applies a commit; a null value deletes it. Keys of type 0 and 1 mean the same partition of a group."""
    if key is None:
        return
    found = commits.setdefault(key.group_id, {})
    if value is None:
        found.pop(key.where, None)
    else:
        found[key.where] = decode_commit(value)
