"""Kafka's internal topics from a backup: the last record of each key, the positions of groups, the registered schemas.

The last records are the contents of a compacted topic, whether or not its cleaner has run. Records of transactions
count only if markers in the log show that they were committed. Columns are scanned, never single records: a topic of
millions of commits leaves as many records as it has keys. Records that cannot be decoded are reported beside the
others: one odd record must not cost all groups of a cluster.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from maxbrod import strict_json
from maxbrod.batch.columns import binary_column, number_array, number_column, project
from maxbrod.errors import CorruptDataError, TruncatedDataError, UnsupportedFormatError
from maxbrod.layouts.foreign import ForeignGroup
from maxbrod.model import TopicPartition

COLUMNS: Final = ["offset", "key", "value", "producer_id", "transactional", "control"]
"""The columns that are needed."""
_SCHEMA: Final = project(COLUMNS)
_ENOUGH_ROWS: Final = 1 << 18
_ENOUGH_BYTES: Final = 128 << 20
_ABORT, _COMMIT, _NO_MARKER = 0, 1, -1
_FLAGS: Final = ("control", "transactional")


def last_records(batches: Iterable[pa.RecordBatch], *, committed: bool = False) -> pa.Table:
    """The last record of each key of one partition, tombstones included, in order of offsets.

    `batches` are in order and hold control records, which decide transactions: those without a marker are left out like
    aborted ones. Records without a key are left out. `committed`: aborted and control records were left out before.
    """
    kept = open_ = _SCHEMA.empty_table()
    waiting: list[pa.Table] = []
    for batch in batches:
        records = pa.concat_tables([open_, pa.Table.from_batches([batch.select(_SCHEMA.names)])])
        decided, open_ = (records, open_) if committed else _decide(records)
        waiting.append(decided)
        rows, size = sum(table.num_rows for table in waiting), sum(table.nbytes for table in waiting)
        if rows > max(_ENOUGH_ROWS, kept.num_rows) or size > max(_ENOUGH_BYTES, kept.nbytes):
            kept, waiting = _last(pa.concat_tables([kept, *waiting])), []
    return _last(pa.concat_tables([kept, *waiting]))


def _decide(records: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Records that count, and those whose transaction is still open. `records` has both, and the markers."""
    offsets, producers = _numbers(records, "offset"), _numbers(records, "producer_id")
    control, transactional = _numbers(records, "control"), _numbers(records, "transactional")
    if not (control.any() or transactional.any()):
        return records, records.slice(0, 0)
    ends = _ends(offsets, producers, np.where(control, _markers(records), _NO_MARKER))
    counting = ~control & (~transactional | (ends == _COMMIT))
    waiting = ~control & transactional & (ends == _NO_MARKER)
    return records.filter(number_array(counting)), records.filter(number_array(waiting))


def _ends(offsets: NDArray[np.int64], producers: NDArray[np.int64], markers: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each record the next marker of its producer, or none."""
    order = np.lexsort((offsets, producers))
    places = np.arange(order.size)
    # For each place the place of the next marker: the lowest one from there on.
    following = np.where(markers[order] == _NO_MARKER, order.size, places)[::-1]
    following = np.minimum.accumulate(following)[::-1]
    found = following < order.size
    followers = order[following[found]]
    own = producers[followers] == producers[order][found]
    ends = np.full(order.size, _NO_MARKER, np.int64)
    ends[order[found]] = np.where(own, markers[followers], _NO_MARKER)
    return ends


def _markers(records: pa.Table) -> NDArray[np.int64]:
    """The type in each control record: its key is `version int16 · type int16`. Other types end no transaction."""
    ends, data, valid = binary_column(_array(records, "key"))
    starts = ends[:-1].astype(np.int64)
    whole = valid & (np.diff(ends) >= 4)
    types = np.full(records.num_rows, _NO_MARKER, np.int64)
    types[whole] = data[starts[whole] + 2].astype(np.int64) << 8 | data[starts[whole] + 3]
    types[(types != _ABORT) & (types != _COMMIT)] = _NO_MARKER
    return types


def _last(records: pa.Table) -> pa.Table:
    keyed = records.filter(pc.is_valid(records.column("key")))
    if not keyed.num_rows:
        return keyed
    order = np.argsort(_numbers(keyed, "offset"), kind="stable")
    encoded = _array(keyed, "key").dictionary_encode()
    codes = number_column(encoded.indices)[order]
    last = np.empty(len(encoded.dictionary), np.int64)
    last[codes] = order  # if several rows have one code, the last one is kept
    rows = last[np.argsort(_numbers(keyed, "offset")[last], kind="stable")]
    return keyed.take(number_array(rows))


def _array(records: pa.Table, name: str) -> pa.Array:
    column = records.column(name).combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


def _numbers(records: pa.Table, name: str) -> NDArray[np.int64]:
    column = _array(records, name)
    return number_column(column) if len(column) else np.empty(0, np.bool_ if name in _FLAGS else np.int64)


_VARINT_BYTES_MAX: Final = 5
_UUID_BYTES: Final = 16


class RecordFields:
    """Kafka's own encoding of fields. `flexible`: lengths are varints, each one more than the length."""

    def __init__(self, data: bytes, *, flexible: bool = False) -> None:
        self._data, self._at = data, 0
        self.flexible = flexible
        self.version = -1
        """The version of the struct that is being read, as far as its decoder has set it."""

    def number(self, kind: str) -> int:
        return int(struct.unpack(f">{kind}", self._read(struct.calcsize(f">{kind}")))[0])

    def numbers(self, kind: str) -> tuple[int, ...]:
        """An array of numbers."""
        return tuple(self.number(kind) for _ in range(self.count()))

    def decimal(self) -> float:
        return float(struct.unpack(">d", self._read(8))[0])

    def flag(self) -> bool:
        return self.number("b") != 0

    def uuid(self) -> UUID:
        return UUID(bytes=self._read(_UUID_BYTES))

    def text(self) -> str:
        found = self.text_or_none()
        if found is None:
            raise CorruptDataError("a required text is null", position=self._at)
        return found

    def text_or_none(self) -> str | None:
        size = self.varint() - 1 if self.flexible else self.number("h")
        if size < 0:
            return None
        try:
            return self._read(size).decode()
        except UnicodeDecodeError as error:
            raise CorruptDataError("a text is not UTF-8", position=self._at) from error

    def blob(self) -> bytes:
        return self._read(self.count())

    def count(self) -> int:
        """The number of bytes or of members. One that exceeds the bytes left is refused here."""
        found = self.count_or_none()
        if found is None:
            raise CorruptDataError("a required list is null", position=self._at)
        return found

    def count_or_none(self) -> int | None:
        found = self.varint() - 1 if self.flexible else self.number("i")
        if found < 0:
            return None
        if found > len(self._data) - self._at:
            raise TruncatedDataError(f"{found} should follow, and {len(self._data) - self._at} bytes are left")
        return found

    def tags(self) -> dict[int, bytes]:
        """The tagged fields that may end a struct, those of later releases included."""
        if not self.flexible:
            return {}
        found = {}
        for _ in range(self.varint()):
            tag, size = self.varint(), self.varint()
            found[tag] = self._read(size)
        return found

    def varint(self) -> int:
        """An unsigned number."""
        value = 0
        for index in range(_VARINT_BYTES_MAX):
            byte = self._read(1)[0]
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return value
        raise CorruptDataError("a number has more than 32 bits", position=self._at)

    def _read(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise TruncatedDataError(f"{size} bytes should follow, and {len(self._data) - self._at} are left")
        self._at += size
        return self._data[self._at - size : self._at]


def apply_each(
    batches: Iterable[pa.RecordBatch], apply: Callable[[bytes, bytes | None], None], *, committed: bool = False
) -> list[tuple[int, str]]:
    """Apply the key and the value of each last record. Return the offsets of those that cannot be decoded, and why."""
    unreadable = []
    records = last_records(batches, committed=committed)
    columns = (records.column(name).to_pylist() for name in ("offset", "key", "value"))
    for offset, key, value in zip(*columns, strict=True):
        try:
            apply(key, value)
        except (CorruptDataError, UnsupportedFormatError) as error:
            unreadable.append((offset, error.message))
    return unreadable


OFFSETS_TOPIC: Final = "__consumer_offsets"
_OFFSET_KEYS: Final = frozenset({0, 1})
"""A key begins with its type as an int16. The other types are about groups and members, and say nothing of offsets."""
_VALUE_VERSION_MAX: Final = 4
_FLEXIBLE: Final = 4
"""From this version of a value on, strings are compact and tagged fields may follow."""
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
    """Decode a key; None for a record about a group or its members."""
    fields = RecordFields(key)
    kind = fields.number("h")
    if kind in _OFFSET_KEYS:
        group_id = fields.text()
        where = TopicPartition(topic=fields.text(), partition=fields.number("i"))
        return CommitKey(group_id=group_id, where=where)
    if kind < 0:
        raise CorruptDataError(f"a key is of the type {kind}")
    return None


def decode_commit(value: bytes) -> Commit:
    fields = RecordFields(value)
    fields.version = fields.number("h")
    if not 0 <= fields.version <= _VALUE_VERSION_MAX:
        raise UnsupportedFormatError(f"a value has the version {fields.version}")
    fields.flexible = fields.version >= _FLEXIBLE
    # Arguments are evaluated in order, which is that of the fields.
    commit = Commit(
        offset=fields.number("q"),
        leader_epoch=fields.number("i") if fields.version >= 3 else -1,
        metadata=fields.text(),
        commit_timestamp_ms=fields.number("q"),
        expire_timestamp_ms=fields.number("q") if fields.version == 1 else -1,
        topic_id=None,
    )
    tag = fields.tags().get(_TOPIC_ID_TAG, b"")
    return replace(commit, topic_id=UUID(bytes=tag)) if len(tag) == 16 and any(tag) else commit


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsTopic:
    """The commits of all groups, of any protocol."""

    commits: Mapping[str, Mapping[TopicPartition, Commit]]
    """By group."""
    unreadable: tuple[tuple[int, str], ...] = ()
    """Offsets of records that could not be decoded, with the reason."""

    def groups(self) -> tuple[ForeignGroup, ...]:
        """Return every group that has committed an offset, by its id."""
        return tuple(
            ForeignGroup(group_id=group_id, offsets={where: commit.offset for where, commit in sorted(found.items())})
            for group_id, found in sorted(self.commits.items())
        )


def read_offsets_topic(partitions: Iterable[Iterable[pa.RecordBatch]], *, committed: bool = False) -> OffsetsTopic:
    """Return the groups of all `partitions`, each given as batches of RECORD_SCHEMA, or of `COLUMNS`, in order.

    `committed`: see `last_records`.
    """
    commits: dict[str, dict[TopicPartition, Commit]] = {}

    def apply(data: bytes, value: bytes | None) -> None:
        """Apply a commit; a null value deletes it. Keys of type 0 and 1 mean the same partition of a group."""
        key = decode_key(data)
        if key is None:
            return
        found = commits.setdefault(key.group_id, {})
        if value is None:
            found.pop(key.where, None)
        else:
            found[key.where] = decode_commit(value)

    unreadable = [record for batches in partitions for record in apply_each(batches, apply, committed=committed)]
    return OffsetsTopic(
        commits={group_id: found for group_id, found in commits.items() if found}, unreadable=tuple(unreadable)
    )


SCHEMAS_TOPIC: Final = "_schemas"
"""The topic in which Schema Registry keeps everything, as JSON."""
AVRO: Final = "AVRO"
DEFAULT_CONTEXT: Final = "."
_CONTEXT: Final = re.compile(r":(\.[^:]*):.*", re.DOTALL)


def context_of(subject: str) -> str:
    """The context that a subject names: `:.name:subject`; else the default one."""
    found = _CONTEXT.fullmatch(subject)
    return found[1] if found else DEFAULT_CONTEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaReference:
    """Another schema that this one refers to by `name`."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """One version of a subject. Several subjects may have the same schema, and then the same id."""

    subject: str
    version: int
    id: int
    """Unique within a context, which is a prefix of the subject."""
    schema: str
    schema_type: str = AVRO
    references: tuple[SchemaReference, ...] = ()
    deleted: bool = False
    """True: it was deleted from its subject. It keeps its id, and records written with it may still be in topics."""

    @property
    def context(self) -> str:
        return context_of(self.subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemasTopic:
    versions: Mapping[tuple[str, int], RegisteredSchema]
    """By subject and version."""
    unreadable: tuple[tuple[int, str], ...] = ()
    """Offsets of records that could not be decoded, with the reason."""

    def by_id(self, context: str = DEFAULT_CONTEXT) -> dict[int, RegisteredSchema]:
        """Return the schema of each id. If several versions have the same id, one that is not deleted is preferred."""
        preferred = sorted(
            self.versions.values(), key=lambda schema: (not schema.deleted, schema.subject, schema.version)
        )
        return {schema.id: schema for schema in preferred if schema.context == context}


def read_schemas_topic(batches: Iterable[pa.RecordBatch]) -> SchemasTopic:
    """Return the schemas of the topic's one partition, given as batches of RECORD_SCHEMA in order."""
    versions: dict[tuple[str, int], RegisteredSchema] = {}
    deleted: dict[str, int] = {}  # subjects, with the last deleted version

    def apply(key_data: bytes, value_data: bytes | None) -> None:
        """Apply a record. Configuration, modes, contexts and no-operations have other key types and no schemas."""
        key, value = _object(key_data), None if value_data is None else _object(value_data)
        kind = key.get("keytype")
        if kind == "SCHEMA":
            place = _get(key, "subject", str), _get(key, "version", int)
            if value is None:
                versions.pop(place, None)
            else:
                versions[place] = _schema(place, value)
        elif kind == "DELETE_SUBJECT" and value is not None:
            deleted[_get(key, "subject", str)] = _get(value, "version", int)

    unreadable = apply_each(batches, apply)
    marked = {
        place: replace(schema, deleted=True) if schema.version <= deleted.get(schema.subject, 0) else schema
        for place, schema in versions.items()
    }
    return SchemasTopic(versions=marked, unreadable=tuple(unreadable))


def _schema(place: tuple[str, int], value: dict[str, Any]) -> RegisteredSchema:
    references = value.get("references") or []
    if not isinstance(references, list) or not all(isinstance(reference, dict) for reference in references):
        raise CorruptDataError("references are not a list of JSON objects")
    return RegisteredSchema(
        subject=place[0],
        version=place[1],
        id=_get(value, "id", int),
        schema=_get(value, "schema", str),
        schema_type=str(value.get("schemaType") or AVRO),
        references=tuple(
            SchemaReference(
                name=_get(reference, "name", str),
                subject=_get(reference, "subject", str),
                version=_get(reference, "version", int),
            )
            for reference in references
        ),
        deleted=bool(value.get("deleted")),
    )


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = strict_json.parse(data, wide=True)
    except ValueError as error:
        raise CorruptDataError(f"this is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise CorruptDataError("this JSON is not an object")
    return found


def _get(fields: dict[str, Any], name: str, kind: type[Any]) -> Any:  # noqa: ANN401 - of the given kind
    value = fields.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise CorruptDataError(f"{name} is {type(value).__name__}, not {kind.__name__}")
    return value
