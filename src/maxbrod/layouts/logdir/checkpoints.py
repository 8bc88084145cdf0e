"""The small text files that a broker keeps beside its logs. One that is damaged counts as absent, and is told."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from maxbrod.errors import CorruptDataError
from maxbrod.layouts.foreign import Fault
from maxbrod.model import TopicPartition, topic_id_of

if TYPE_CHECKING:
    from uuid import UUID

    from maxbrod.storage.interface import Storage

HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANED: Final = "cleaner-offset-checkpoint"
META: Final = "meta.properties"

_TOPIC_ID: Final = re.compile(r"^topic_id:\s*(\S+)\s*$", re.MULTILINE)
_DIRECTORY_ID: Final = re.compile(r"^directory\.id=(\S+)\s*$", re.MULTILINE)
_CLUSTER_ID: Final = re.compile(r"^cluster\.id=(\S+)\s*$", re.MULTILINE)


def read_offsets(storage: Storage, path: str, faults: list[Fault]) -> dict[TopicPartition, int]:
    """An offset for each partition of a log directory."""
    try:
        rows = _rows(_text(storage, path), 3)
        return {
            TopicPartition(topic=topic, partition=_number(partition)): _number(offset)
            for topic, partition, offset in rows
        }
    except CorruptDataError as error:
        faults.append(Fault(path=path, message=f"{error.message}; it is passed over", fatal=False))
        return {}


def read_epochs(storage: Storage, path: str, faults: list[Fault]) -> list[tuple[int, int]]:
    """Leader epochs of a partition and the offset at which each began, both rising."""
    try:
        found = [(_number(epoch), _number(start)) for epoch, start in _rows(_text(storage, path), 2)]
    except CorruptDataError as error:
        faults.append(Fault(path=path, message=f"{error.message}; the epochs are taken from the batches", fatal=False))
        return []
    return sorted(found)


def read_topic_id(storage: Storage, path: str, faults: list[Fault]) -> str | None:
    try:
        found = _TOPIC_ID.search(_text(storage, path))
        if found is None:
            raise CorruptDataError("it names no topic id")
        topic_id_of(found[1])
    except CorruptDataError as error:
        faults.append(Fault(path=path, message=f"{error.message}; it is passed over", fatal=False))
        return None
    return found[1]


def read_cluster_id(storage: Storage, path: str) -> str | None:
    found = _CLUSTER_ID.search(_text(storage, path))
    return None if found is None else found[1]


def read_directory_id(storage: Storage, path: str) -> UUID | None:
    """Of releases that give their log directories ids."""
    found = _DIRECTORY_ID.search(_text(storage, path))
    try:
        return None if found is None else topic_id_of(found[1])
    except CorruptDataError:
        return None


def _text(storage: Storage, path: str) -> str:
    # A crash may leave anything in a file; what is no text shows in what is made of it.
    return bytes(storage.get(path)).decode("utf-8", "replace")


def _rows(text: str, width: int) -> list[list[str]]:
    """The rows of a checkpoint: a version, how many there are, then as many lines. Brokers begin with an empty file."""
    if not text:
        return []
    lines = [line.split() for line in text.splitlines() if line.strip()]
    if len(lines) < 2 or lines[0] != ["0"] or len(lines[1]) != 1:
        raise CorruptDataError("this is no checkpoint of version 0")
    rows = lines[2:]
    if len(rows) != _number(lines[1][0]) or any(len(row) != width for row in rows):
        raise CorruptDataError(f"the checkpoint has other rows than the {lines[1][0]} that it announces")
    return rows


def _number(word: str) -> int:
    try:
        value = int(word)
    except ValueError as error:
        raise CorruptDataError(f"{word[:40]!r} is no number") from error
    if not 0 <= value < 1 << 63:
        raise CorruptDataError(f"{value} cannot be an offset, nor an epoch")
    return value
