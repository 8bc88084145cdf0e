"""Small JSON documents beside the catalog, such as holds: a field with the format's version, and a checksum."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from maxbrod import strict_json
from maxbrod.batch.crc import crc32c
from maxbrod.errors import CorruptDataError, UnsupportedFormatError

_CHECKSUM: Final = "crc32c"


def encode_document(name: str, fields: Mapping[str, Any], *, version: int = 1, indent: int | None = 2) -> bytes:
    """Return the document `name`, such as "maxbrod.hold", in this version of its format."""
    document = {name: version, **fields}
    return json.dumps({**document, _CHECKSUM: _checksum(document)}, sort_keys=True, indent=indent).encode()


def decode_document(
    name: str, data: bytes, *, noun: str, hint: str, version: int = 1, depth_max: int = 8
) -> dict[str, Any]:
    """Return the fields. CorruptDataError, with `hint`: it is damaged. UnsupportedFormatError: of another version."""
    try:
        document = strict_json.parse(data, depth_max=depth_max, unique=True)
    except ValueError as error:
        raise unreadable(noun, str(error), hint) from None
    if not isinstance(document, dict) or document.get(name) != version:
        raise UnsupportedFormatError(
            f"this is not {noun} that this release can read", hint="use the release of maxbrod that wrote it"
        )
    if document.pop(_CHECKSUM, None) != _checksum(document):
        raise unreadable(noun, "its checksum does not match", hint)
    return document


def unreadable(noun: str, why: str, hint: str) -> CorruptDataError:
    return CorruptDataError(f"{noun} cannot be read: {why}", hint=hint)


def _checksum(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    return f"{crc32c(np.frombuffer(text, np.uint8)):08x}"
