"""The names of an Avro archive's files, the record schema that we write, the keys of a file's metadata, and options.

Names are those of the tool's documentation, and those that the tool actually writes:
topics/<topic>/partition=<n>/<topic>+<n>-<seq>.data             the document, and what we write
<topic>/<n>/<topic>-<n>-<first offset, 15 digits>.avro          the tool
<topic>/<connector>/<n>/<topic>-<n>-<first offset>.avro         its connector for compacted topics
<topic>/<connector>/<n>/<topic>-<n>-<first offset>-g<generation>.avro    what we write in its place
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from maxbrod.errors import RefusedError, UsageError
from maxbrod.layouts.foreign import Loss, WriteOptions
from maxbrod.model import TopicPartition

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


_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_DOCUMENTED_NAME: Final = re.compile(r"topics/([^/]+)/partition=(\d{1,10})/([^/]+)\+(\d{1,10})-(\d{1,20})\.data")
_REAL_NAME: Final = re.compile(r"([^/]+)/(?:([^/]+)/)?(\d{1,10})/([^/]+)-(\d{1,10})-(\d{15,19})(?:-g\d{1,18})?\.avro")
_NAME_BYTES_MAX: Final = 255
"""The longest component of an object's name on common file systems."""
_PARTITION_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileName:
    """The parts of a name. `first_offset`: None if the name has a sequence number of unknown meaning instead."""

    where: TopicPartition
    first_offset: int | None
    instance: str | None = None
    """The connector that wrote it, if each connector has its own copy."""


def parse_name(path: str) -> FileName | None:
    """The parts of a name; None if it is not a name of this layout."""
    if found := _DOCUMENTED_NAME.fullmatch(path):
        return _file(found[1], found[2], found[3], found[4], first_offset=None)
    if found := _REAL_NAME.fullmatch(path):
        return _file(found[1], found[3], found[4], found[5], first_offset=int(found[6]), instance=found[2])
    return None


def _file(
    topic: str,
    partition: str,
    topic_again: str,
    partition_again: str,
    first_offset: int | None,
    instance: str | None = None,
) -> FileName | None:
    same = topic == topic_again and partition == partition_again == str(int(partition))
    if not same or topic in {".", ".."} or not _TOPIC.fullmatch(topic) or int(partition) > _PARTITION_MAX:
        return None
    where = TopicPartition(topic=topic, partition=int(partition))
    return FileName(where=where, first_offset=first_offset, instance=instance)


def file_path(
    where: TopicPartition, first_offset: int, instance: str | None = None, generation: int | None = None
) -> str:
    """The name that we write. The documentation does not define the sequence number; we use the first offset.

    With `instance`, the name that the connector for compacted topics uses. It uses its names again in each generation.
    With `generation` a name is used once: a process that was suspended while it deleted the files of one generation
    deletes none of a later one when it wakes up. The tool lists the folder, and takes any name, in their order.
    """
    topic = where.topic
    if topic in {".", ".."} or not _TOPIC.fullmatch(topic):
        raise UsageError(f"{topic!r} is not a valid topic name", hint="use letters, digits, '.', '_' and '-'")
    if instance is not None:
        suffix = f"-g{generation}" if generation else ""
        name = f"{topic}-{where.partition}-{first_offset:015d}{suffix}.avro"
        _demand_short(topic, name)
        return f"{instance_folder(topic, instance)}/{where.partition}/{name}"
    name = f"{topic}+{where.partition}-{first_offset:020d}.data"
    _demand_short(topic, name)
    return f"topics/{topic}/partition={where.partition}/{name}"


def instance_folder(topic: str, instance: str) -> str:
    """The folder of a topic's copy that one connector writes."""
    return f"{topic}/{instance}"


def _demand_short(topic: str, name: str) -> None:
    if len(name) > _NAME_BYTES_MAX:
        raise RefusedError(
            f"the topic's name has {len(topic)} characters: files of the layout avro would have names of {len(name)}, "
            f"and {_NAME_BYTES_MAX} is the most",
            hint="exclude the topic, or choose another layout: all others support every topic name",
        )


CODECS: Final = ("null", "deflate", "snappy", "bzip2", "xz", "zstandard")
_LEVELS: Final = {"deflate": (0, 9), "bzip2": (1, 9), "xz": (0, 9), "zstandard": (1, 22)}
_SCHEMAS: Final = ("full", "seed")
_SEED_LOSSES: Final = (
    Loss(
        what="null values: they are restored as empty ones, so that no tombstone is left", real=True, field="value_null"
    ),
    Loss(
        what="headers: their order, all but the last of a name, nulls, and names that are not UTF-8",
        real=True,
        field="headers",
    ),
    Loss(what="the timestamp type: all timestamps are restored as create times", real=False, field="timestamp_type"),
)
_ALIASES: Final = {None: "null", "none": "null", "zstd": "zstandard"}


def check_options(options: WriteOptions) -> str:
    """Avro's name of the codec. UsageError: an option is invalid."""
    unknown = sorted(set(options.extra) - {"schema", INSTANCE, GENERATION, CLAIM})
    if unknown:
        raise UsageError(f"the layout avro has no option {', '.join(unknown)}", hint="it has schema")
    if options.extra.get("schema", "full") not in _SCHEMAS:
        raise UsageError(f"there is no schema {options.extra['schema']!r}", hint=f"choose one of {', '.join(_SCHEMAS)}")
    for name in ("segment_bytes_max", "segment_records_max"):
        limit = getattr(options, name)
        if limit is not None and limit < 1:
            raise UsageError(f"{name} cannot be {limit}")
    codec = _ALIASES.get(options.codec) or str(options.codec)
    if codec not in CODECS:
        raise UsageError(f"the layout avro has no codec {codec!r}", hint=f"choose one of {', '.join(CODECS)}")
    low, high = _LEVELS.get(codec, (0, -1))
    if options.level is not None and not low <= options.level <= high:
        raise UsageError(
            f"the codec {codec} has no level {options.level}",
            hint=f"it has {low} to {high}" if codec in _LEVELS else "leave the level out",
        )
    return codec


def is_seed(options: WriteOptions) -> bool:
    """True if files have exactly the schema of the tool's documentation."""
    return options.extra.get("schema") == "seed"


def losses(options: WriteOptions) -> tuple[Loss, ...]:
    return _SEED_LOSSES if is_seed(options) else ()
