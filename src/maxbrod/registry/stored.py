"""A captured registry in the archive: documents beside the snapshots, each with only what changed since the one before.

A run's snapshot names the document that holds for it. A document is whole, or has the changes since another one, its
base. Bases are never deleted: they are small, and a later document may need them.

    registry/<run>.json.zst    JSON in zstd: format, crc32c, and `registry`, or `base`, `depth` and `changes`
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from maxbrod import strict_json
from maxbrod.archive.snapshot_document import Snapshot, apply_changes, find_changes
from maxbrod.batch.compression import compress, unpack_document
from maxbrod.batch.crc import crc32c
from maxbrod.errors import CorruptDataError, ObjectExistsError, UnsupportedFormatError, naming
from maxbrod.model import Codec
from maxbrod.registry.model import RegistryState, decode_registry, encode_registry
from maxbrod.storage.interface import Storage

FOLDER: Final = "registry"
_FORMAT_FIELD: Final = "maxbrod.registry"
_FORMAT_VERSION: Final = 1
_CHECKSUM_FIELD: Final = "crc32c"
_DEPTH_MAX: Final = 20
"""Documents to read for one state: after so many a whole one is stored again."""
_HINT: Final = "restore the object from a copy of the archive, or name an earlier run (--as-of)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryCapture:
    """The registry that a snapshot names: its URL, the document with its state, and when that was last confirmed."""

    url: str
    path: str
    taken_at_ms: int
    run_id: str
    """The run that confirmed it."""

    def encode(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRegistry:
    """A document that was read or stored, as the base of the next one."""

    path: str
    depth: int
    document: Mapping[str, Any]

    @property
    def state(self) -> RegistryState:
        with naming(self.path):
            return decode_registry(self.document)


def capture_in(snapshot: Snapshot | None) -> RegistryCapture | None:
    """The registry that a snapshot names; None: none was captured. CorruptDataError: the field is damaged."""
    fields = None if snapshot is None else snapshot.registry
    if fields is None:
        return None
    names = {"url": str, "path": str, "taken_at_ms": int, "run_id": str}
    if any(not isinstance(fields.get(name), kind) for name, kind in names.items()):
        raise CorruptDataError("the snapshot does not say which registry was captured", hint=_HINT)
    return RegistryCapture(**{name: fields[name] for name in names})


def read_stored(storage: Storage, path: str) -> StoredRegistry:
    """ObjectNotFoundError, CorruptDataError, UnsupportedFormatError: it, or one of its bases, cannot be read."""
    changes: list[list[Any]] = []
    at = path
    while True:
        fields = _read(storage, at)
        if "registry" in fields:
            break
        if len(changes) > _DEPTH_MAX or not isinstance(fields.get("base"), str):
            raise _damaged(storage, at, "it has neither a state nor a base")
        changes.append(fields["changes"])
        at = fields["base"]
    document = fields["registry"]
    try:
        for found in reversed(changes):
            document = apply_changes(document, found)
    except (LookupError, TypeError, ValueError) as error:
        raise _damaged(storage, path, f"its changes do not fit its base ({error})") from error
    return StoredRegistry(path=path, depth=len(changes), document=document)


def store(storage: Storage, run_id: str, state: RegistryState, before: StoredRegistry | None) -> StoredRegistry:
    """Store a state, or only what changed; the one before if nothing did."""
    document = encode_registry(state)
    path = f"{FOLDER}/{run_id}.json.zst"
    body: dict[str, Any] = {"registry": document}
    depth = 0
    if before is not None:
        changes = find_changes(before.document, document)
        if not changes:
            return before
        if before.depth < _DEPTH_MAX and 2 * len(json.dumps(changes)) <= len(json.dumps(document)):
            depth = before.depth + 1
            body = {"base": before.path, "changes": changes}
    _put(storage, path, body)
    return StoredRegistry(path=path, depth=depth, document=document)


def copy_registry(source: Storage, target: Storage, snapshot: Snapshot | None) -> None:
    """Copy the registry that a snapshot names into another archive, whole and under the same name."""
    capture = capture_in(snapshot)
    if capture is not None:
        stored = read_stored(source, capture.path)
        with suppress(ObjectExistsError):
            _put(target, capture.path, {"registry": stored.document})


def _put(storage: Storage, path: str, body: Mapping[str, Any]) -> None:
    fields = {_FORMAT_FIELD: _FORMAT_VERSION, **body}
    storage.put(path, compress(Codec.ZSTD, _text({**fields, _CHECKSUM_FIELD: _checksum(fields)})))


def read_registry(storage: Storage, snapshot: Snapshot | None) -> RegistryState | None:
    """The registry of a snapshot; None: it has none."""
    capture = capture_in(snapshot)
    return None if capture is None else read_stored(storage, capture.path).state


def check_stored(storage: Storage, path: str) -> None:
    """CorruptDataError: the document is damaged."""
    _read(storage, path)


def _read(storage: Storage, path: str) -> dict[str, Any]:
    try:
        fields = strict_json.parse(unpack_document(storage.get(path)))
    except CorruptDataError as error:
        raise _damaged(storage, path, f"it cannot be unpacked: {error.message}") from error
    except ValueError as error:
        raise _damaged(storage, path, f"it holds no JSON: {error}") from error
    if not isinstance(fields, dict) or _FORMAT_FIELD not in fields:
        raise _damaged(storage, path, "it is not the state of a registry")
    if fields[_FORMAT_FIELD] != _FORMAT_VERSION:
        raise UnsupportedFormatError(
            f"the captured registry cannot be read: its version is {fields[_FORMAT_FIELD]!r}",
            object_name=storage.name_of(path),
            hint=f"this release reads version {_FORMAT_VERSION}; use the release that wrote it, or a newer one",
        )
    if fields.pop(_CHECKSUM_FIELD, None) != _checksum(fields):
        raise _damaged(storage, path, "its checksum does not match")
    return fields


def _damaged(storage: Storage, path: str, what: str) -> CorruptDataError:
    return CorruptDataError(f"the captured registry is damaged: {what}", object_name=storage.name_of(path), hint=_HINT)


def _text(fields: Mapping[str, Any]) -> Any:  # noqa: ANN401 - an array of bytes
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return np.frombuffer(text.encode(), np.uint8)


def _checksum(fields: Mapping[str, Any]) -> str:
    return f"{crc32c(_text(fields)):08x}"
