"""The two instances that take turns to back up a compacted topic: what each of them knows, and its fences.

An instance writes files below `<topic>/<instance>/`, under names that each generation has for itself. Its document
says which of them count. Documents are numbered objects, `.maxbrod/turns/<instance>/<version, 20 digits>.json`. The
newest counts, and each is created, never overwritten: so of two processes of one instance only one can go on.

A process begins with a document of its own, its claim. Files name the generation and the claim that they were written
for. A process that was replaced may still write a file, but no document: a file of another generation never counts, and
a file of a newer claim is never overwritten. What it still deletes was listed before it was replaced, so that it is of
an earlier generation than what its successor writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import (
    CorruptDataError,
    ObjectExistsError,
    ObjectNotFoundError,
    RefusedError,
    UnsupportedFormatError,
    UsageError,
)
from maxbrod.layouts.avro.format import CLAIM, GENERATION, INSTANCE, read_header
from maxbrod.layouts.foreign import WriteOptions
from maxbrod.layouts.tree import Facts, decode_facts
from maxbrod.layouts.varints import decode_long, encode_bytes, encode_long
from maxbrod.storage.composed import OWN_FOLDER
from maxbrod.storage.interface import Storage
from maxbrod.strict_json import parse

if TYPE_CHECKING:
    from collections.abc import Buffer

FOLDER: Final = f"{OWN_FOLDER}/turns"
_NAME: Final = re.compile(rf"{re.escape(FOLDER)}/([A-Za-z0-9._-]+)/(\d{{20}})\.json")
_INSTANCE: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
_VERSION: Final = 1
_KEPT: Final = 4
"""Documents that are kept, so that a reader that has listed one finds it."""
_TRIES: Final = 5


class InstanceStage(StrEnum):
    """The state of the files of an instance."""

    WAITING = "waiting"
    """They are of a generation that is over, or there are none."""
    BUILDING = "building"
    """They are of a generation that has not reached the end of the log yet."""
    ACTIVE = "active"
    """They are a complete generation, which is continued."""
    RETIRING = "retiring"
    """They are a complete generation. The other instance has one as well, and goes on."""

    @property
    def complete(self) -> bool:
        return self in {InstanceStage.ACTIVE, InstanceStage.RETIRING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """The document of an instance, in one version."""

    name: str
    topic: str
    version: int = 0
    claim: int = 0
    """The version with which the process began that writes now."""
    generation: int = 0
    stage: InstanceStage = InstanceStage.WAITING
    activated_at_ms: int = 0
    log_ends: Mapping[str, int] = field(default_factory=dict)
    """By partition, where the log ended when the generation became active."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The facts about the topic, the groups and the offsets of the files, as in `maxbrod.json`. {}: none yet."""
    turn: Mapping[str, Any] = field(default_factory=dict)
    """The facts that the instance itself needs after a restart."""

    def decode_facts(self) -> Facts:
        return decode_facts(dict(self.facts)) if self.facts else Facts()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceMark:
    """The writer of a file, as its header names it."""

    instance: str
    generation: int
    claim: int

    def metadata(self) -> dict[str, str]:
        return {INSTANCE: self.instance, GENERATION: str(self.generation), CLAIM: str(self.claim)}


def mark_of(options: WriteOptions) -> InstanceMark | None:
    """None: files do not belong to an instance."""
    extra = options.extra
    if INSTANCE not in extra:
        return None
    try:
        return InstanceMark(instance=extra[INSTANCE], generation=int(extra[GENERATION]), claim=int(extra[CLAIM]))
    except (KeyError, ValueError):
        raise UsageError(f"{INSTANCE} is not an option for users", hint="see backup --generation-role") from None


def put_fenced(storage: Storage, path: str, data: Buffer, mark: InstanceMark) -> None:
    """Write a file. RefusedError: a newer process of the instance has written one of this name."""
    try:
        storage.put(path, data)
    except ObjectExistsError:
        if _claim_at(storage, path) > mark.claim:
            raise fenced(mark.instance) from None
        # Of an attempt of this very process, or of one that was replaced while it wrote: it was never published, or
        # the survey that came after this process's claim would have shown it.
        storage.replace(path, data)


def _claim_at(storage: Storage, path: str) -> int:
    try:
        found = read_header(storage, path, storage.head(path).size).metadata.get(CLAIM, b"")
    except (ObjectNotFoundError, CorruptDataError):
        return -1
    return int(found) if found.isdigit() else -1


def check_name(instance: str) -> None:
    if not _INSTANCE.fullmatch(instance) or instance.isdigit():
        raise UsageError(
            f"{instance!r} is not a valid name of an instance", hint="use letters, digits, '.', '_' and '-'"
        )


def read_instances(storage: Storage) -> dict[str, Instance]:
    """The newest document of each instance. CorruptDataError: one cannot be read."""
    for _ in range(_TRIES):
        newest: dict[str, int] = {}
        for info in storage.list(FOLDER):
            if found := _NAME.fullmatch(info.path):
                newest[found[1]] = max(newest.get(found[1], 0), int(found[2]))
        try:
            return {name: _read(storage, name, version) for name, version in sorted(newest.items())}
        except ObjectNotFoundError:
            # It has become too old between the listing and now.
            continue
    raise CorruptDataError("documents of instances vanish while they are read", object_name=storage.name_of(FOLDER))


def put_next(storage: Storage, document: Instance) -> Instance:
    """Store the document as the next version. RefusedError: another process of the instance was faster."""
    new = replace(document, version=document.version + 1)
    path = _path(new.name, new.version)
    text = json.dumps({"format": _VERSION, **asdict(new)}, sort_keys=True)
    try:
        storage.put(path, text.encode())
    except ObjectExistsError:
        raise fenced(new.name) from None
    listed = [info.path for info in storage.list(f"{FOLDER}/{new.name}") if _NAME.fullmatch(info.path)]
    if listed[-1] > path:
        # The name was free again: newer documents have pushed out the one that stood there.
        storage.delete([path])
        raise fenced(new.name)
    storage.delete(listed[:-_KEPT])
    return new


def fenced(instance: str) -> RefusedError:
    return RefusedError(
        f"another process works as the instance {instance}: this one has stopped",
        operation="take turns",
        hint="run one process for each of the two instances",
    )


def _path(name: str, version: int) -> str:
    return f"{FOLDER}/{name}/{version:020d}.json"


def _read(storage: Storage, name: str, version: int) -> Instance:
    path = _path(name, version)
    try:
        found = parse(bytes(storage.get(path)))
        if found.pop("format") != _VERSION:
            raise ValueError("it has an unknown version")
        document = Instance(**{**found, "stage": InstanceStage(found["stage"])})
        document.decode_facts()
        if (document.name, document.version) != (name, version) or type(document.generation) is not int:
            raise ValueError("it belongs to another one")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError(
            f"the document of the instance cannot be read: {error}",
            object_name=storage.name_of(path),
            hint="the files of the instance are untouched; read them with --layout-option instance=NAME",
        ) from error
    return document


TOPIC: Final = "_compacted_log_backup_coordination"
"""The topic by which two connectors for compacted topics take turns.

The key is `<instance>-<partition>` of the addressed connector, the value an Avro single object (C3 01, the schema's
fingerprint, the record), or null after it has been received. The key has no topic: two connectors can take turns for
one topic only.
"""
_MARK: Final = b"\xc3\x01"
FINGERPRINT: Final = bytes.fromhex("60ca86f8cd2aabcf")
"""CRC-64-AVRO, little-endian, of the schema of `AvroCompatedLogBackupCoordination-v1.0.avsc` in canonical form."""


class Event(IntEnum):
    """The request to a connector."""

    ACTIVATE = 0
    PASSIVATE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordination:
    """One message. `instance` is the connector's name followed by the partition, as in the key."""

    event: Event
    instance: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int


def decode_coordination(value: bytes) -> Coordination:
    """Decode a message's value. CorruptDataError: it is not one, or has too few or too many bytes."""
    if value[: len(_MARK)] != _MARK:
        raise UnsupportedFormatError(
            "the value is not an Avro single object", position=0, hint="it should begin with c301"
        )
    at = len(_MARK) + len(FINGERPRINT)
    event, at = decode_long(value, at)
    if event not in set(Event):
        raise CorruptDataError(f"there is no event {event}", position=at)
    instance, at = _text(value, at)
    topic, at = _text(value, at)
    partition, at = decode_long(value, at)
    offset, at = decode_long(value, at)
    timestamp_ms, at = decode_long(value, at)
    if at != len(value):
        raise CorruptDataError(f"{len(value) - at} bytes follow the message", position=at)
    return Coordination(
        event=Event(event),
        instance=instance,
        topic=topic,
        partition=partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
    )


def encode_coordination(message: Coordination, fingerprint: bytes = FINGERPRINT) -> bytes:
    parts = [_MARK, fingerprint, encode_long(message.event), encode_bytes(message.instance.encode())]
    parts.append(encode_bytes(message.topic.encode()))
    parts += [encode_long(number) for number in (message.partition, message.offset, message.timestamp_ms)]
    return b"".join(parts)


def _text(value: bytes, at: int) -> tuple[str, int]:
    size, at = decode_long(value, at)
    if not 0 <= size <= len(value) - at:
        raise CorruptDataError(f"a string cannot have {size} bytes", position=at)
    try:
        return value[at : at + size].decode(), at + size
    except UnicodeDecodeError as error:
        raise CorruptDataError("a string is not UTF-8", position=at) from error
