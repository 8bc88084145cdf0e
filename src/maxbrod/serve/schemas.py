"""Decodes keys and values that Confluent's serializers wrote, by the schemas that the archive has in `_schemas`.

The programs are those of `maxbrod query`. A value that no schema fits is shown as its bytes, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from maxbrod import strict_json
from maxbrod.errors import MaxbrodError
from maxbrod.inspect.records import read_partition
from maxbrod.layouts.internal_topics import SCHEMAS_TOPIC, RegisteredSchema, SchemasTopic, read_schemas_topic
from maxbrod.model import PartitionId
from maxbrod.serve.pages.records import DecodedBytes
from maxbrod.table.values.confluent import JSON, newest_schema, writers_of
from maxbrod.table.values.decode import HEAD_BYTES, Writers, decode_confluent, encoded

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive
    from maxbrod.inspect.listing import TopicListing

_PARTS: Final = ("key", "value")
_DEPTH: Final = 64


class ArchivedSchemas:
    """The schemas of one version of an archive. They are read when the first value asks for one."""

    def __init__(self, archive: Archive, listing: TopicListing) -> None:
        self._archive, self._listing = archive, listing
        self._writers: dict[tuple[str, str], Writers | RegisteredSchema | str] = {}
        """By topic and part: how to decode, or why not."""

    @cached_property
    def _topic(self) -> SchemasTopic | None:
        found = next((topic for topic in self._listing.topics if topic.topic == SCHEMAS_TOPIC and topic.newest), None)
        if found is None:
            return None
        return read_schemas_topic(read_partition(self._archive, PartitionId(topic_id=found.topic_id, partition=0)))

    def decode(self, topic: str, records: pa.Table) -> dict[str, list[DecodedBytes | None]]:
        """For `key` and `value`, what schemas make of each record; None: it is not in that format."""
        return {part: self._part(topic, part, records[part].to_pylist()) for part in _PARTS}

    def _part(self, topic: str, part: str, values: Sequence[bytes | None]) -> list[DecodedBytes | None]:
        found: list[DecodedBytes | None] = [None] * len(values)
        rows = [row for row, value in enumerate(values) if value and value[0] == 0 and len(value) > HEAD_BYTES]
        if not rows:
            return found
        how = self._how(topic, part)
        if how is None:
            return found
        name = f"{topic}-{part}"
        chosen = [values[row] or b"" for row in rows]
        for row, decoded in zip(rows, _decoded(name, how, chosen), strict=True):
            found[row] = decoded
        return found

    def _how(self, topic: str, part: str) -> Writers | RegisteredSchema | str | None:
        """How to decode a part of a topic; a text: why that is impossible. None: there are no schemas."""
        key = topic, part
        if key not in self._writers:
            try:
                schemas = self._topic
                if schemas is None:
                    return None
                newest = newest_schema(schemas, topic, part)
                self._writers[key] = newest if newest.schema_type == JSON else writers_of(schemas, newest)
            except MaxbrodError as error:
                self._writers[key] = error.message
        return self._writers[key]


def _decoded(name: str, how: Writers | RegisteredSchema | str, values: Sequence[bytes]) -> list[DecodedBytes]:
    if isinstance(how, str):
        return [DecodedBytes(schema=name, why=how) for _ in values]
    if isinstance(how, RegisteredSchema):
        return [_json(name, value) for value in values]
    # One at a time: a value that cannot be decoded says so for itself. A page has some hundred at most.
    return [_one(name, how, value) for value in values]


def _one(name: str, writers: Writers, value: bytes) -> DecodedBytes:
    try:
        column, failed = decode_confluent(writers, encoded(pa.array([value], pa.binary())))
    except MaxbrodError as error:
        return DecodedBytes(schema=name, why=error.message)
    if failed:
        return DecodedBytes(schema=name, why=failed[0].why)
    decoded: Any = column[0].as_py()
    return DecodedBytes(schema=name, value=decoded)


def _json(name: str, value: bytes) -> DecodedBytes:
    try:
        return DecodedBytes(schema=name, value=strict_json.parse(value[HEAD_BYTES:], depth_max=_DEPTH))
    except (ValueError, TypeError):
        return DecodedBytes(schema=name, why="it is no JSON after its header")
