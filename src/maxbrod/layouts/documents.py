"""Metadata files of other tools: JSON of which any field may be missing, absurd or hostile.

A file is parsed once. Its fields are then read by type; a field of another type is a CorruptDataError that names the
object and the field. Nothing here knows what the fields mean.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from maxbrod import strict_json
from maxbrod.bounds import DOCUMENT_BYTES_MAX, check_object
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage

Value = TypeVar("Value")

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_plain_name(name: str) -> bool:
    """True if Kafka allows it as a topic's name, so that it is one part of a path and leads nowhere else."""
    return _TOPIC.fullmatch(name) is not None and name not in {".", ".."}


def check_topic(topic: str) -> str:
    """The name of a topic to write, which becomes a folder. UsageError: Kafka does not allow it."""
    if not is_plain_name(topic):
        raise UsageError(f"{topic!r} cannot be a topic", hint="use letters, digits, '.', '_' and '-'")
    return topic


def known_topic(name: str, object_name: str) -> str:
    """The name of a topic that an archive claims to have. CorruptDataError: Kafka does not allow it."""
    if not is_plain_name(name):
        raise CorruptDataError(f"{name[:300]!r} cannot be a topic", object_name=object_name)
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """One object of a JSON document. `place` names it in messages."""

    values: Mapping[str, Any]
    object_name: str
    place: str = "the document"

    def integer(self, name: str, *, least: int = 0, most: int = INT64_MAX, default: int | None = None) -> int:
        value = self.values.get(name, default)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(name, f"not an integer from {least} to {most}")
        return value

    def optional_integer(self, name: str, *, least: int = 0, most: int = INT64_MAX) -> int | None:
        return None if self.values.get(name) is None else self.integer(name, least=least, most=most)

    def text(self, name: str, *, default: str | None = None) -> str:
        value = self.values.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "not a text")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self.values.get(name) is None else self.text(name)

    def objects(self, name: str) -> list[Fields]:
        """The objects of a list; none if the field is missing."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(name, "not a list")
        return [self._object(each, f"{name}[{row}]") for row, each in enumerate(value)]

    def inner(self, name: str) -> Fields:
        """The object under a name; an empty one if the field is missing."""
        value = self.values.get(name)
        return self._object({} if value is None else value, name)

    def partition(self, name: str) -> int:
        """A field's name as the number of a partition."""
        if not name.isascii() or not name.isdigit() or int(name[:11]) > INT32_MAX:
            raise self.wrong(name, "not a partition")
        return int(name)

    def wrong(self, name: str, complaint: str) -> CorruptDataError:
        return CorruptDataError(f"{name!r} of {self.place} is {complaint}", object_name=self.object_name)

    def _object(self, value: object, name: str) -> Fields:
        if not isinstance(value, dict):
            raise self.wrong(name, "not an object")
        return Fields(values=value, object_name=self.object_name, place=name)


def by_topic(values: Mapping[TopicPartition, Value]) -> dict[str, dict[str, Value]]:
    """Values by topic, then by partition as text: the form that they have in the JSON of several tools."""
    topics: dict[str, dict[str, Value]] = {}
    for where, value in sorted(values.items(), key=itemgetter(0)):
        topics.setdefault(where.topic, {})[str(where.partition)] = value
    return topics


def read_document(storage: Storage, path: str) -> Fields | None:
    """The document of that name; None if there is no such object."""
    try:
        # Before it is read: a document may be larger than memory.
        check_object(storage.head(path).size, storage.name_of(path), most=DOCUMENT_BYTES_MAX)
        return parse_document(storage.get(path), storage.name_of(path))
    except ObjectNotFoundError:
        return None


def parse_document(data: memoryview, object_name: str) -> Fields:
    try:
        value = strict_json.parse(data, wide=True)
    except ValueError as error:
        # The parser quotes nothing of its input, so this message does not either.
        raise CorruptDataError(f"this is not JSON: {error}", object_name=object_name) from error
    if not isinstance(value, dict):
        raise CorruptDataError("this JSON is not an object", object_name=object_name)
    return Fields(values=value, object_name=object_name)


def write_document(storage: Storage, path: str, value: object) -> None:
    """Writes JSON exactly as Rust's `serde_json` prints it for people: two spaces, raw UTF-8, no final newline."""
    try:
        data = json.dumps(value, indent=2, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise CorruptDataError("it contains text that is not Unicode", object_name=storage.name_of(path)) from error
    storage.replace(path, data)
