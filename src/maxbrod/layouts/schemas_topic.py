"""Schemas by id, from a backed-up `_schemas`, the topic in which Schema Registry keeps everything.

Keys and values are JSON. A schema that was deleted from its subject keeps its id, and records written with it may still
be in their topics. It is therefore kept here, marked as deleted. Ids are unique within a context, which is a prefix of
the subject.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from maxbrod import strict_json
from maxbrod.errors import CorruptDataError
from maxbrod.layouts.last_records import last_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

TOPIC: Final = "_schemas"
AVRO: Final = "AVRO"
DEFAULT_CONTEXT: Final = "."
_CONTEXT: Final = re.compile(r":(\.[^:]*):.*", re.DOTALL)


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
    schema: str
    schema_type: str = AVRO
    references: tuple[SchemaReference, ...] = ()
    deleted: bool = False

    @property
    def context(self) -> str:
        found = _CONTEXT.fullmatch(self.subject)
        return found[1] if found else DEFAULT_CONTEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemasTopic:
    versions: Mapping[tuple[str, int], RegisteredSchema]
    """By subject and version."""
    unreadable: tuple[tuple[int, str], ...] = ()
    """Offsets of records that could not be decoded, with the reason."""

    def by_id(self, context: str = DEFAULT_CONTEXT) -> dict[int, RegisteredSchema]:
        """The schema of each id. If several versions have the same id, one that is not deleted is preferred."""
        found: dict[int, RegisteredSchema] = {}
        for version in sorted(self.versions.values(), key=lambda each: (not each.deleted, each.subject, each.version)):
            if version.context == context:
                found[version.id] = version
        return found


@dataclass(slots=True)
class _Gathered:
    versions: dict[tuple[str, int], RegisteredSchema] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    """Deleted subjects, with the last deleted version."""
    unreadable: list[tuple[int, str]] = field(default_factory=list)


def read_schemas_topic(batches: Iterable[pa.RecordBatch]) -> SchemasTopic:
    """The schemas of the topic's one partition, given as batches of RECORD_SCHEMA in order."""
    gathered = _Gathered()
    records = last_records(batches)
    columns = (records.column(name).to_pylist() for name in ("offset", "key", "value"))
    for offset, key, value in zip(*columns, strict=True):
        try:
            _apply(_object(key), None if value is None else _object(value), gathered)
        except CorruptDataError as error:
            gathered.unreadable.append((offset, error.message))
    versions = {
        place: replace(each, deleted=True) if each.version <= gathered.deleted.get(each.subject, 0) else each
        for place, each in gathered.versions.items()
    }
    return SchemasTopic(versions=versions, unreadable=tuple(gathered.unreadable))


def _apply(key: dict[str, Any], value: dict[str, Any] | None, gathered: _Gathered) -> None:
    """Applies a record. Configuration, modes, contexts and no-operations have other key types and no schemas."""
    kind = key.get("keytype")
    if kind == "SCHEMA":
        place = _get(key, "subject", str), _get(key, "version", int)
        if value is None:
            gathered.versions.pop(place, None)
        else:
            gathered.versions[place] = _schema(place, value)
    elif kind == "DELETE_SUBJECT" and value is not None:
        gathered.deleted[_get(key, "subject", str)] = _get(value, "version", int)


def _schema(place: tuple[str, int], value: dict[str, Any]) -> RegisteredSchema:
    return RegisteredSchema(
        subject=place[0],
        version=place[1],
        id=_get(value, "id", int),
        schema=_get(value, "schema", str),
        schema_type=str(value.get("schemaType") or AVRO),
        references=_references(value.get("references") or []),
        deleted=bool(value.get("deleted")),
    )


def _references(found: Any) -> tuple[SchemaReference, ...]:  # noqa: ANN401 - whatever the JSON has
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise CorruptDataError("references are not a list of JSON objects")
    return tuple(
        SchemaReference(
            name=_get(each, "name", str), subject=_get(each, "subject", str), version=_get(each, "version", int)
        )
        for each in found
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
