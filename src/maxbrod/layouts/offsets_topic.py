"""Consumer groups out of a backed-up `__consumer_offsets`: where each stands, and what its coordinator knew of it.

The columns of the records are gone over once, then one record is left for each group and partition. What cannot be
decoded is told beside what can: one odd record must not cost all groups of a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.layouts.foreign import ForeignGroup
from maxbrod.layouts.last_records import last_records
from maxbrod.layouts.offsets_records import CommitKey, GroupKey, decode_commit, decode_group, decode_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from maxbrod.layouts.offsets_records import Commit, GroupState
    from maxbrod.model import TopicPartition

TOPIC: Final = "__consumer_offsets"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsTopic:
    """What the topic says. Groups of any protocol have commits; only those of the classic one have a state."""

    commits: Mapping[str, Mapping[TopicPartition, Commit]]
    """By group."""
    states: Mapping[str, GroupState]
    unreadable: tuple[tuple[int, str], ...] = ()
    """Offsets of records that could not be decoded, and why."""

    def groups(self) -> tuple[ForeignGroup, ...]:
        """Every group that stands somewhere, by its id."""
        return tuple(
            ForeignGroup(group_id=group_id, offsets={where: commit.offset for where, commit in sorted(found.items())})
            for group_id, found in sorted(self.commits.items())
        )


@dataclass(slots=True)
class _Gathered:
    commits: dict[str, dict[TopicPartition, Commit]] = field(default_factory=dict)
    states: dict[str, GroupState] = field(default_factory=dict)
    unreadable: list[tuple[int, str]] = field(default_factory=list)


def read_offsets_topic(partitions: Iterable[Iterable[pa.RecordBatch]], *, committed: bool = False) -> OffsetsTopic:
    """The groups of all `partitions`, each given as batches of RECORD_SCHEMA, or of `last_records.COLUMNS`, in order.

    `committed`: see `last_records`.
    """
    gathered = _Gathered()
    for batches in partitions:
        _gather(last_records(batches, committed=committed), gathered)
    return OffsetsTopic(
        commits={group_id: found for group_id, found in gathered.commits.items() if found},
        states=gathered.states,
        unreadable=tuple(gathered.unreadable),
    )


def _gather(records: pa.Table, gathered: _Gathered) -> None:
    columns = (records.column(name).to_pylist() for name in ("offset", "key", "value"))
    for offset, key, value in zip(*columns, strict=True):
        try:
            _take(decode_key(key), value, gathered)
        except (CorruptDataError, UnsupportedFormatError) as error:
            gathered.unreadable.append((offset, error.message))


def _take(key: CommitKey | GroupKey | None, value: bytes | None, gathered: _Gathered) -> None:
    """A record of a commit or a group; null takes it back. Keys of type 0 and 1 mean the same partition of a group."""
    if isinstance(key, CommitKey):
        commits = gathered.commits.setdefault(key.group_id, {})
        if value is None:
            commits.pop(key.where, None)
        else:
            commits[key.where] = decode_commit(value)
    elif isinstance(key, GroupKey):
        if value is None:
            gathered.states.pop(key.group_id, None)
        else:
            gathered.states[key.group_id] = decode_group(value)
