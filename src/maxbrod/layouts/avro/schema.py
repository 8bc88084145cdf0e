"""The record schema that we write, and the keys of a file's metadata."""

from __future__ import annotations

import json
from typing import Any, Final

NAMESPACE: Final = "ch.tbd.kafka.backuprestore.model.avro"

_BYTES: Final = ["bytes", "null"]
_HEADER: Final = {
    "type": "record",
    "name": "KafkaHeader",
    "fields": [{"name": "key", "type": "bytes"}, {"name": "value", "type": ["null", "bytes"]}],
}

_DOCUMENTED: Final[list[dict[str, Any]]] = [
    {"name": "topic", "type": "string"},
    {"name": "partition", "type": "int"},
    {"name": "offset", "type": "long"},
    {"name": "timestamp", "type": "long"},
    {"name": "key", "type": _BYTES, "default": "null"},
    {"name": "value", "type": "bytes"},
    {"name": "headers", "type": [{"type": "map", "values": "bytes"}, "null"], "default": None},
]
_ADDED: Final[list[dict[str, Any]]] = [
    {"name": "timestampType", "type": "int", "default": 0},
    {"name": "headerList", "type": ["null", {"type": "array", "items": _HEADER}], "default": None},
]


def _schema(fields: list[dict[str, Any]]) -> str:
    record = {"namespace": NAMESPACE, "type": "record", "name": "AvroKafkaRecord", "fields": fields}
    return json.dumps(record, separators=(",", ":"))


SEED_SCHEMA: Final = _schema(_DOCUMENTED)
"""The schema of the tool's documentation."""
SCHEMA: Final = _schema(
    [{**each, "type": _BYTES, "default": "null"} if each["name"] == "value" else each for each in _DOCUMENTED] + _ADDED
)
"""The documented fields, with a nullable value, and two more for what those cannot represent.

Readers that do not know the two skip them.
"""

MARK: Final = "maxbrod.version"
"""Marks our own files in the header's metadata, which also has what a survey needs."""
MARK_VERSION: Final = "1"
BASE_OFFSET: Final = "maxbrod.base_offset"
END_OFFSET: Final = "maxbrod.end_offset"
RECORDS: Final = "maxbrod.records"
MIN_TIMESTAMP: Final = "maxbrod.min_timestamp"
MAX_TIMESTAMP: Final = "maxbrod.max_timestamp"
INSTANCE: Final = "maxbrod.instance"
GENERATION: Final = "maxbrod.generation"
CLAIM: Final = "maxbrod.claim"
"""Files of one of two instances: see `instances`. These are also the names of the options for writing them."""
LAST_MESSAGE: Final = "maxbrodlastmessagems"
"""The metadata of an object in a store that has such a thing: the time of its newest record, in milliseconds."""
