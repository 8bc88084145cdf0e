"""Metadata files of other tools: JSON of which any field may be missing, absurd or hostile.

A file is parsed once and then asked for fields of a certain kind; what is not of that kind is CorruptDataError, with
the object and the field in it. Nothing here knows what the fields mean.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import CorruptDataError, ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.storage.interface import Storage

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
DOCUMENT_BYTES_MAX: Final = 1 << 30
"""A manifest of two million segments has about as much; it is held in memory whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """One object of a JSON document. `place` says which one, for people."""

    values: Mapping[str, Any]
    object_name: str
    place: str = "the document"

    def integer(self, name: str, *, least: int = 0, most: int = INT64_MAX, default: int | None = None) -> int:
        value = self.values.get(name, default)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(name, f"no integer from {least} to {most}")
        return value

    def optional_integer(self, name: str, *, least: int = 0, most: int = INT64_MAX) -> int | None:
        return None if self.values.get(name) is None else self.integer(name, least=least, most=most)

    def text(self, name: str, *, default: str | None = None) -> str:
        value = self.values.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "no text")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self.values.get(name) is None else self.text(name)

    def objects(self, name: str) -> list[Fields]:
        """The objects of a list; none if the field is not there."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(name, "no list")
        return [self._object(each, f"{name}[{row}]") for row, each in enumerate(value)]

    def inner(self, name: str) -> Fields:
        """The object under a name; an empty one if the field is not there."""
        value = self.values.get(name)
        return self._object({} if value is None else value, name)

    def wrong(self, name: str, complaint: str) -> CorruptDataError:
        return CorruptDataError(f"{name!r} of {self.place} is {complaint}", object_name=self.object_name)

    def _object(self, value: object, name: str) -> Fields:
        if not isinstance(value, dict):
            raise self.wrong(name, "no object")
        return Fields(values=value, object_name=self.object_name, place=name)


def read_document(storage: Storage, path: str) -> Fields | None:
    """The document of that name, or None if there is no such object."""
    try:
        size = storage.head(path).size
        if size > DOCUMENT_BYTES_MAX:
            raise CorruptDataError(f"a document of {size} bytes cannot be right", object_name=storage.name_of(path))
        return parse_document(storage.get(path), storage.name_of(path))
    except ObjectNotFoundError:
        return None


def parse_document(data: memoryview, object_name: str) -> Fields:
    try:
        value = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        # The parser quotes nothing of what it read, so neither does this.
        raise CorruptDataError(f"this is no JSON: {error}", object_name=object_name) from error
    if not isinstance(value, dict):
        raise CorruptDataError("this JSON is no object", object_name=object_name)
    return Fields(values=value, object_name=object_name)


def write_document(storage: Storage, path: str, value: object) -> None:
    """As Rust's `serde_json` prints it for people, byte for byte: two spaces, UTF-8 as it is, no newline at the end."""
    try:
        data = json.dumps(value, indent=2, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise CorruptDataError("a text in it is no Unicode", object_name=storage.name_of(path)) from error
    storage.replace(path, data)
