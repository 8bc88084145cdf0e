"""The record schema that we write, and which of its fields mean what."""

from __future__ import annotations

import json
from typing import Final

NAMESPACE: Final = "ch.tbd.kafka.backuprestore.model.avro"

_BYTES: Final = ["bytes", "null"]
_HEADER: Final = {
    "type": "record",
    "name": "KafkaHeader",
    "fields": [{"name": "key", "type": "bytes"}, {"name": "value", "type": ["null", "bytes"]}],
}

SCHEMA: Final = json.dumps(
    {
        "type": "record",
        "name": "AvroKafkaRecord",
        "namespace": NAMESPACE,
        "fields": [
            {"name": "topic", "type": "string"},
            {"name": "partition", "type": "int"},
            {"name": "offset", "type": "long"},
            {"name": "timestamp", "type": "long"},
            {"name": "key", "type": _BYTES, "default": "null"},
            {"name": "value", "type": _BYTES, "default": "null"},
            {"name": "headers", "type": [{"type": "map", "values": "bytes"}, "null"], "default": {}},
            {"name": "timestampType", "type": "int", "default": 0},
            {"name": "headerList", "type": ["null", {"type": "array", "items": _HEADER}], "default": None},
        ],
    },
    separators=(",", ":"),
)
"""The document's fields, then two that carry what those cannot: readers that do not know them pass over them."""

MARK: Final = "maxbrod.version"
"""In the header's metadata of every file that we write, with what a survey wants to know."""
MARK_VERSION: Final = "1"
BASE_OFFSET: Final = "maxbrod.base_offset"
END_OFFSET: Final = "maxbrod.end_offset"
RECORDS: Final = "maxbrod.records"
MIN_TIMESTAMP: Final = "maxbrod.min_timestamp"
MAX_TIMESTAMP: Final = "maxbrod.max_timestamp"
