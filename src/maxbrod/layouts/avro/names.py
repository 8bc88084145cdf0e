"""The names of an Avro archive: those of the tool's documentation, and those that the tool actually writes.

topics/<topic>/partition=<n>/<topic>+<n>-<seq>.data             the document, and what we write
<topic>/<n>/<topic>-<n>-<first offset, 15 digits>.avro          the tool
<topic>/<connector>/<n>/<topic>-<n>-<first offset>.avro         its connector for compacted topics
<topic>/<connector>/<n>/<topic>-<n>-<first offset>-g<generation>.avro    what we write in its place
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from maxbrod.errors import RefusedError, UsageError
from maxbrod.model import TopicPartition

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_DOCUMENTED: Final = re.compile(r"topics/([^/]+)/partition=(\d{1,10})/([^/]+)\+(\d{1,10})-(\d{1,20})\.data")
_REAL: Final = re.compile(r"([^/]+)/(?:([^/]+)/)?(\d{1,10})/([^/]+)-(\d{1,10})-(\d{15,19})(?:-g\d{1,18})?\.avro")
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
    if found := _DOCUMENTED.fullmatch(path):
        return _file(found[1], found[2], found[3], found[4], first_offset=None)
    if found := _REAL.fullmatch(path):
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
