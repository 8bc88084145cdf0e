"""The objects that a restore stores in the archive: its plan before it changes anything, its report at the end.

A plan without a report is an interrupted restore. The same command resumes it. A plan is JSON in zstd with a digest, so
that a resumed restore runs the plan that was stored, or nothing. Which staged records no restore needs any more follows
from names alone: listing an archive's garbage reads no plan.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Final, TypeVar

import cramjam
import numpy as np
from pydantic import TypeAdapter, ValidationError

from maxbrod import strict_json
from maxbrod.archive.archive import RESTORES
from maxbrod.batch.compression import compress, unpack_document
from maxbrod.errors import (
    CorruptDataError,
    ObjectExistsError,
    ObjectNotFoundError,
    RefusedError,
    UnsupportedFormatError,
)
from maxbrod.model import Codec, PartitionId
from maxbrod.private_files import cache_dir, make_private, opened
from maxbrod.restore.plan.plan import RestorePlan, without_lost
from maxbrod.restore.plan.sources import UnreadableRange
from maxbrod.storage.interface import ObjectInfo, Storage

Value = TypeVar("Value")

_TOPICS: Final = "topics"
_POSITIONS: Final = "groups-before"
_LOST: Final = "lost"
_SCHEMAS: Final = "schemas"
_REGISTRY: Final = "registry.json.zst"
_PRODUCERS: Final = "producers.json.zst"
_DIGEST_LETTERS: Final = 16
_UNREADABLE: Final = (CorruptDataError, ObjectNotFoundError, UnsupportedFormatError)

FORMAT_FIELD: Final = "maxbrod.restore"
FORMAT_VERSION: Final = 1
_DIGEST_FIELD: Final = "sha256"
_OPERATION: Final = "read the plan of a restore"


@dataclass(frozen=True, slots=True, kw_only=True)
class Producers:
    """The producer ids of one restore, by which brokers recognize the batches that they already have."""

    records: int
    fillers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _LostRanges:
    topic_id: str
    partition: int
    lost: tuple[UnreadableRange, ...]


def next_id(storage: Storage, command: str) -> str:
    """The id of a restore that starts now."""
    return f"{command[:_DIGEST_LETTERS]}-{max(map(_number, _restores_by(storage, command)), default=0) + 1}"


def find_interrupted(storage: Storage, command: str) -> RestorePlan | None:
    """The plan of the last restore by this command, if it has not finished."""
    restore_id, finished = _last(storage, command)
    return None if restore_id is None or finished else read_plan(storage, restore_id)


def find_finished(storage: Storage, command: str) -> RestorePlan | None:
    """The plan of the last restore by this command, if it has finished."""
    restore_id, finished = _last(storage, command)
    return None if restore_id is None or not finished else read_restore(storage, restore_id)[0]


def others_interrupted(storage: Storage, command: str) -> Iterator[RestorePlan]:
    """The plans of restores by other commands that have not finished."""
    for restore_id, objects in sorted(stored_objects(storage).items()):
        if PLAN in objects and REPORT not in objects and not _is_by(restore_id, command):
            # A plan that was deleted at this moment, or that cannot be read, says nothing about topics.
            with suppress(*_UNREADABLE):
                yield _stored_plan(storage, restore_id)


def read_plan(storage: Storage, restore_id: str) -> RestorePlan:
    """The plan as it was stored, without the ranges that were found unreadable and accepted since."""
    plan = _stored_plan(storage, restore_id)
    lost: dict[PartitionId, list[UnreadableRange]] = {}
    for path in _numbered(storage, restore_id, _LOST):
        for losses in _decoded(list[_LostRanges], read_document(storage, path)["partitions"], path):
            lost.setdefault(PartitionId(topic_id=losses.topic_id, partition=losses.partition), []).extend(losses.lost)
    return without_lost(plan, lost, accepted=True) if lost else plan


def store_lost(storage: Storage, restore_id: str, lost: Mapping[PartitionId, Sequence[UnreadableRange]]) -> None:
    """Store the ranges that the restore leaves out beyond those in its plan, before it writes what follows them.

    Without this, a resumed restore would expect these records in the target, and refuse its log as written by others.
    """
    document = [
        {**asdict(partition), "lost": [asdict(range_) for range_ in found]} for partition, found in lost.items()
    ]
    _put_numbered(storage, restore_id, _LOST, {"partitions": document})


def store_plan(storage: Storage, plan: RestorePlan) -> None:
    try:
        storage.put(_path(plan.restore_id, PLAN), encode_plan(plan))
    except ObjectExistsError as error:
        raise RefusedError(
            "another process has just started the same restore",
            operation="restore",
            object_name=error.object_name,
            hint="run the command again when the other process has ended",
        ) from error


def store_topics(storage: Storage, restore_id: str, ids: Mapping[str, str]) -> None:
    """Store the ids of the topics that the restore has created, by name; again if one had to be created again."""
    if read_topics(storage, restore_id) != ids:
        _put_numbered(storage, restore_id, _TOPICS, dict(ids))


def read_topics(storage: Storage, restore_id: str) -> dict[str, str]:
    """The ids that were stored last; none if the restore has created no topic yet, or needs none."""
    stored = _numbered(storage, restore_id, _TOPICS)
    return {name: str(text) for name, text in read_document(storage, stored[-1]).items()} if stored else {}


def keep_producers(storage: Storage, restore_id: str, new: Callable[[], int]) -> Producers:
    """The producer ids of the restore. They are stored before its first record, and every attempt uses the same."""
    path = _path(restore_id, _PRODUCERS)
    try:
        return _decoded(Producers, read_document(storage, path), path)
    except ObjectNotFoundError:
        producers = Producers(records=new(), fillers=new())
    # Two processes on different machines may get here together: the ids that are stored first are used by both.
    with suppress(ObjectExistsError):
        _put(storage, path, asdict(producers))
    return _decoded(Producers, read_document(storage, path), path)


def keep_registry(storage: Storage, restore_id: str, before: Mapping[str, Any]) -> dict[str, Any]:
    """Store what the schema registry was like before its first change; or return what was stored then."""
    path = _path(restore_id, _REGISTRY)
    with suppress(ObjectNotFoundError):
        return read_document(storage, path)
    with suppress(ObjectExistsError):
        _put(storage, path, before)
    return read_document(storage, path)


def store_schema_map(storage: Storage, restore_id: str, document: Mapping[str, Any]) -> None:
    """Store the map of schema ids before the first record that it changes; again with other words about frames."""
    _put_numbered(storage, restore_id, _SCHEMAS, document)


def read_schema_map(storage: Storage, restore_id: str) -> dict[str, Any] | None:
    """The map of schema ids that was stored last; None: records keep their ids."""
    stored = _numbered(storage, restore_id, _SCHEMAS)
    return read_document(storage, stored[-1]) if stored else None


def store_report(storage: Storage, restore_id: str, document: dict[str, Any]) -> None:
    """Store the report once. A second process that finishes the same restore has done the same work."""
    with suppress(ObjectExistsError):
        _put(storage, _path(restore_id, REPORT), document)


def read_restore(storage: Storage, restore_id: str) -> tuple[RestorePlan, dict[str, Any]]:
    """The plan and the report of a finished restore. ObjectNotFoundError: it has not finished, or does not exist."""
    document = read_document(storage, _path(restore_id, REPORT))
    return read_plan(storage, restore_id), document


def finished_restores(storage: Storage) -> list[str]:
    """The ids of restores that have finished."""
    return [restore_id for restore_id, objects in stored_objects(storage).items() if REPORT in objects]


def restores_into(storage: Storage, prefix: str) -> list[str]:
    """The ids of restores, finished or interrupted, all of whose target topics have this prefix.

    A restore whose plan cannot be read is not among them.
    """
    found = []
    for restore_id, objects in stored_objects(storage).items():
        if PLAN in objects:
            with suppress(*_UNREADABLE):
                plan = _stored_plan(storage, restore_id)
                if plan.topics and all(topic.target.name.startswith(prefix) for topic in plan.topics):
                    found.append(restore_id)
    return found


def delete_restore(storage: Storage, restore_id: str) -> None:
    """Delete everything stored of a restore, the plan last: as long as it exists, the rest can be found."""
    paths = [info.path for info in storage.list(f"{RESTORES}/{restore_id}")]
    storage.delete(sorted(path for path in paths if not path.endswith(PLAN)))
    storage.delete([_path(restore_id, PLAN)])


def store_positions(storage: Storage, restore_id: str, document: dict[str, Any]) -> None:
    """Store the offsets of groups before this restore moves them. Each call writes another object."""
    _put_numbered(storage, restore_id, _POSITIONS, document)


def read_positions(storage: Storage, restore_id: str) -> list[dict[str, Any]]:
    """The stored offsets of groups, oldest first."""
    return [read_document(storage, path) for path in _numbered(storage, restore_id, _POSITIONS)]


def read_document(storage: Storage, path: str) -> dict[str, Any]:
    try:
        document = strict_json.parse(unpack_document(storage.get(path)))
    except (CorruptDataError, ValueError) as error:
        raise _corrupt("the document cannot be read", path) from error
    if not isinstance(document, dict):
        raise _corrupt("the document is not an object", path)
    return document


def _decoded(kind: type[Value], document: object, path: str) -> Value:
    try:
        return TypeAdapter(kind).validate_python(document)
    except ValidationError as error:
        raise _corrupt("the document has other fields than it should", path) from error


def _corrupt(what: str, path: str) -> CorruptDataError:
    return CorruptDataError(what, operation="read a restore", object_name=path)


def _stored_plan(storage: Storage, restore_id: str) -> RestorePlan:
    path = _path(restore_id, PLAN)
    return decode_plan(bytes(storage.get(path)), object_name=storage.name_of(path))


def _path(restore_id: str, name: str) -> str:
    return f"{RESTORES}/{restore_id}/{name}"


def _put(storage: Storage, path: str, document: Mapping[str, Any]) -> None:
    text = json.dumps(document, sort_keys=True, allow_nan=False).encode()
    storage.put(path, bytes(cramjam.zstd.compress(text)))


def _put_numbered(storage: Storage, restore_id: str, stem: str, document: Mapping[str, Any]) -> None:
    """Objects are never replaced: what is stored again gets the next number."""
    number = len(_numbered(storage, restore_id, stem)) + 1
    _put(storage, _path(restore_id, _name(stem, number)), document)


def _numbered(storage: Storage, restore_id: str, stem: str) -> list[str]:
    known = {info.path for info in storage.list(f"{RESTORES}/{restore_id}")}
    numbered = (_path(restore_id, _name(stem, number)) for number in range(1, len(known) + 1))
    return [path for path in numbered if path in known]


def _name(stem: str, number: int) -> str:
    return f"{stem}.json.zst" if number == 1 else f"{stem}-{number}.json.zst"


def _restores_by(storage: Storage, command: str) -> dict[str, bool]:
    """The restores by this command that have a plan, and whether each has finished."""
    return {
        restore_id: REPORT in objects
        for restore_id, objects in stored_objects(storage).items()
        if PLAN in objects and _is_by(restore_id, command)
    }


def _is_by(restore_id: str, command: str) -> bool:
    return restore_id.rpartition("-")[0] == command[:_DIGEST_LETTERS]


def _last(storage: Storage, command: str) -> tuple[str | None, bool]:
    """The last restore by this command, and whether it has finished."""
    known = _restores_by(storage, command)
    last = max(known, key=_number, default=None)
    return last, last is not None and known[last]


def _number(restore_id: str) -> int:
    return int(restore_id.rpartition("-")[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanDocument:
    plan: RestorePlan


@cache
def _documents() -> TypeAdapter[_PlanDocument]:
    """Made when it is first needed: that takes 0.1 s, and most commands read no plan."""
    return TypeAdapter(_PlanDocument)


def encode_plan(plan: RestorePlan) -> bytes:
    """The same plan gives the same bytes."""
    document = {FORMAT_FIELD: FORMAT_VERSION, "plan": _encode(plan)}
    text = _text({**document, _DIGEST_FIELD: hashlib.sha256(_text(document)).hexdigest()})
    return compress(Codec.ZSTD, np.frombuffer(text, np.uint8))


def decode_plan(data: bytes, *, object_name: str | None = None) -> RestorePlan:
    """UnsupportedFormatError: this release does not know the version. CorruptDataError: the plan is damaged.

    Keys that this release does not know are ignored.
    """
    try:
        document = strict_json.parse(unpack_document(data))
        version, digest = document.get(FORMAT_FIELD), document.pop(_DIGEST_FIELD, None)
        text = _text(document)
    except (CorruptDataError, ValueError, AttributeError) as error:
        raise _damaged(str(error), object_name) from error
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise UnsupportedFormatError(
            f"the plan of a restore has version {version!r}",
            operation=_OPERATION,
            object_name=object_name,
            hint=f"this release knows version {FORMAT_VERSION}; resume with the release that started the restore",
        )
    if digest != hashlib.sha256(text).hexdigest():
        raise _damaged("its digest does not match", object_name)
    try:
        return _documents().validate_json(text, strict=True).plan
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _damaged(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", object_name) from error


def _encode(value: object) -> Any:  # noqa: ANN401 - JSON
    """Leaves out fields that have their defaults: there may be 100,000 partitions."""
    if is_dataclass(value):
        pairs = ((field, getattr(value, field.name)) for field in fields(value))
        return {field.name: _encode(found) for field, found in pairs if found != _default(field)}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return dict(value) if isinstance(value, dict) else value


def _default(field: Any) -> Any:  # noqa: ANN401 - of any type
    return field.default if field.default_factory is MISSING else field.default_factory()


def _text(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _damaged(what: str, object_name: str | None) -> CorruptDataError:
    return CorruptDataError(
        f"the plan of a restore is damaged: {what}",
        operation=_OPERATION,
        object_name=object_name,
        hint="delete what was restored so far, and restore again",
    )


@contextmanager
def alone(restore_id: str) -> Iterator[None]:
    """Keep other processes of this machine from carrying out the same restore. Without a cache folder there is no lock.

    Brokers would recognize records that both send, by their sequence numbers, but not the markers in holes, which have
    none. The kernel releases a lock when its process ends, so a restore that was killed blocks nobody. Processes on
    other machines do not see the lock: the object of the plan, which is created once, keeps them from starting the same
    restore. RefusedError: another process is carrying it out.
    """
    path = cache_dir() / "restores" / f"{restore_id}.lock"
    try:
        make_private(path.parent)
    except OSError:
        yield
        return
    with opened(path, create=True) as file:
        if not _take_lock(file):
            raise RefusedError(
                "another process on this machine is carrying out the same restore",
                operation="restore",
                object_name=restore_id,
                hint="wait until it has ended, or stop it; then run the same command again",
            )
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _take_lock(file: int) -> bool:
    """Take the lock. A file that the last holder has just removed is not the lock any more: others create a new one."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(file).st_nlink > 0


STAGED: Final = "staged"
"""The folder of staged records, within the folder of a restore."""
PLAN: Final = "plan.json.zst"
REPORT: Final = "report.json.zst"


def stored_objects(storage: Storage) -> dict[str, dict[str, ObjectInfo]]:
    """The objects of every restore, by restore id and by name within its folder."""
    found: dict[str, dict[str, ObjectInfo]] = {}
    for info in storage.list(RESTORES):
        restore_id, _, name = info.path.removeprefix(f"{RESTORES}/").partition("/")
        found.setdefault(restore_id, {})[name] = info
    return found


def stagings_left(storage: Storage) -> list[ObjectInfo]:
    """Staged objects of finished restores, and of restores without a plan, which may still be staging."""
    restores = (objects for objects in stored_objects(storage).values() if REPORT in objects or PLAN not in objects)
    return [info for objects in restores for info in _staged(objects)]


def stagings_done(storage: Storage) -> list[str]:
    """Paths of staged objects of finished restores, which were killed before they removed them."""
    restores = (objects for objects in stored_objects(storage).values() if REPORT in objects)
    return [info.path for objects in restores for info in _staged(objects)]


def _staged(objects: dict[str, ObjectInfo]) -> list[ObjectInfo]:
    return [info for name, info in objects.items() if name.startswith(f"{STAGED}/")]
