"""What a restore remembers in the archive: its plan, before anything is changed, and its report, when all is done.

A plan without a report is a restore that was interrupted. The same command goes on with it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import cramjam
import numpy as np

from maxbrod import strict_json
from maxbrod.batch.compression import decompress
from maxbrod.errors import (
    CorruptDataError,
    ObjectExistsError,
    ObjectNotFoundError,
    RefusedError,
    UnsupportedFormatError,
)
from maxbrod.model import Codec, PartitionId
from maxbrod.restore.plan.document import decode_lost, decode_plan, encode_plan
from maxbrod.restore.plan.plan import without_lost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from maxbrod.restore.plan.plan import RestorePlan
    from maxbrod.restore.plan.sources import UnreadableRange
    from maxbrod.storage.interface import Storage

_FOLDER: Final = "restores"
_PLAN: Final = "plan.json.zst"
_TOPICS: Final = "topics"
_POSITIONS: Final = "groups-before"
_LOST: Final = "lost"
_PRODUCERS: Final = "producers.json.zst"
_REPORT: Final = "report.json.zst"
_DIGEST_LETTERS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Producers:
    """The producer ids of one restore, by which brokers tell what they have of it already."""

    records: int
    fillers: int


def next_id(storage: Storage, command: str) -> str:
    """Of a restore that begins now."""
    numbers = [int(each.rpartition("-")[2]) for each in _known(storage, command)]
    return f"{command[:_DIGEST_LETTERS]}-{max(numbers, default=0) + 1}"


def find_interrupted(storage: Storage, command: str) -> RestorePlan | None:
    """The plan of the last restore by this command, if that has not come to its end."""
    known = _known(storage, command)
    if not known:
        return None
    last = max(known, key=lambda each: int(each.rpartition("-")[2]))
    if _REPORT in known[last]:
        return None
    return read_plan(storage, last)


def read_plan(storage: Storage, restore_id: str) -> RestorePlan:
    """As it was begun, without what was accepted to be lost since then."""
    path = f"{_FOLDER}/{restore_id}/{_PLAN}"
    plan = decode_plan(bytes(storage.get(path)), object_name=storage.name_of(path))
    lost: dict[PartitionId, list[UnreadableRange]] = {}
    for name in _numbered(storage, restore_id, _LOST):
        for each in read_document(storage, name)["partitions"]:
            partition = PartitionId(topic_id=str(each["topic_id"]), partition=int(each["partition"]))
            lost.setdefault(partition, []).extend(decode_lost(each["lost"]))
    return without_lost(plan, lost, accepted=True) if lost else plan


def store_lost(storage: Storage, restore_id: str, lost: Mapping[PartitionId, Sequence[UnreadableRange]]) -> None:
    """What the restore leaves out besides what its plan says, before it goes on behind it."""
    document = [{**asdict(partition), "lost": [asdict(each) for each in found]} for partition, found in lost.items()]
    text = json.dumps({"partitions": document}, sort_keys=True).encode()
    number = len(_numbered(storage, restore_id, _LOST)) + 1
    storage.put(f"{_FOLDER}/{restore_id}/{_name(_LOST, number)}", bytes(cramjam.zstd.compress(text)))


def others_interrupted(storage: Storage, command: str) -> Iterator[RestorePlan]:
    """The plans of restores by other commands that have not come to their end."""
    for restore_id, names in sorted(_begun(storage).items()):
        if _REPORT not in names and restore_id.rpartition("-")[0] != command[:_DIGEST_LETTERS]:
            path = f"{_FOLDER}/{restore_id}/{_PLAN}"
            # One that has ended in this moment, or is none that can be read, holds nothing that could be told.
            with suppress(CorruptDataError, ObjectNotFoundError, UnsupportedFormatError):
                yield decode_plan(bytes(storage.get(path)), object_name=storage.name_of(path))


def find_finished(storage: Storage, command: str) -> RestorePlan | None:
    """The plan of the last restore by this command, if that has come to its end."""
    known = _known(storage, command)
    last = max(known, key=lambda each: int(each.rpartition("-")[2]), default=None)
    return None if last is None or _REPORT not in known[last] else read_restore(storage, last)[0]


def store_plan(storage: Storage, plan: RestorePlan) -> None:
    try:
        storage.put(f"{_FOLDER}/{plan.restore_id}/{_PLAN}", encode_plan(plan))
    except ObjectExistsError as error:
        raise RefusedError(
            "another process has begun the same restore at this moment",
            operation="restore",
            object_name=error.object_name,
            hint="run it again when that one has ended",
        ) from error


def store_topics(storage: Storage, restore_id: str, ids: Mapping[str, str]) -> None:
    """The ids of the topics that the restore has created, by their names; once more where one had to be made again."""
    if read_topics(storage, restore_id) == ids:
        return
    number = len(_numbered(storage, restore_id, _TOPICS)) + 1
    text = json.dumps(dict(ids), sort_keys=True).encode()
    storage.put(f"{_FOLDER}/{restore_id}/{_name(_TOPICS, number)}", bytes(cramjam.zstd.compress(text)))


def read_topics(storage: Storage, restore_id: str) -> dict[str, str]:
    """As they were stored last; none before they are created, or where none had to be."""
    stored = _numbered(storage, restore_id, _TOPICS)
    return {name: str(each) for name, each in read_document(storage, stored[-1]).items()} if stored else {}


def keep_producers(storage: Storage, restore_id: str, new: Callable[[], int]) -> Producers:
    """Those of the restore: the same for whoever goes on with it, from before its first record."""
    path = f"{_FOLDER}/{restore_id}/{_PRODUCERS}"
    try:
        return _producers(storage, path)
    except ObjectNotFoundError:
        text = json.dumps(asdict(Producers(records=new(), fillers=new()))).encode()
    with suppress(ObjectExistsError):
        storage.put(path, bytes(cramjam.zstd.compress(text)))
    return _producers(storage, path)


def _producers(storage: Storage, path: str) -> Producers:
    document = read_document(storage, path)
    try:
        return Producers(records=int(document["records"]), fillers=int(document["fillers"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError("it names no producers", operation="read a restore", object_name=path) from error


def store_report(storage: Storage, restore_id: str, document: dict[str, Any]) -> None:
    """Once; whoever is late has done the same."""
    text = json.dumps(document, sort_keys=True, allow_nan=False).encode()
    try:
        storage.put(f"{_FOLDER}/{restore_id}/{_REPORT}", bytes(cramjam.zstd.compress(text)))
    except ObjectExistsError:
        return


def read_restore(storage: Storage, restore_id: str) -> tuple[RestorePlan, dict[str, Any]]:
    """The plan and the report of a restore that came to its end. ObjectNotFoundError: it did not, or never was."""
    document = read_document(storage, f"{_FOLDER}/{restore_id}/{_REPORT}")
    return read_plan(storage, restore_id), document


def finished_restores(storage: Storage) -> list[str]:
    """Their ids."""
    names = (each.path.removeprefix(f"{_FOLDER}/").partition("/") for each in storage.list(_FOLDER))
    return [restore_id for restore_id, _, name in names if name == _REPORT]


def restores_into(storage: Storage, prefix: str) -> list[str]:
    """The ids of restores, whole or interrupted, all of whose topics have names that begin like this.

    A plan that cannot be read is not known to be one of them.
    """
    found = []
    for each in list(storage.list(_FOLDER)):
        restore_id, _, name = each.path.removeprefix(f"{_FOLDER}/").partition("/")
        if name == _PLAN:
            with suppress(CorruptDataError, ObjectNotFoundError, UnsupportedFormatError):
                plan = decode_plan(bytes(storage.get(each.path)), object_name=storage.name_of(each.path))
                if plan.topics and all(topic.target.name.startswith(prefix) for topic in plan.topics):
                    found.append(restore_id)
    return found


def delete_restore(storage: Storage, restore_id: str) -> None:
    """All that is remembered of it, the plan last: without it nobody would find the rest."""
    paths = [each.path for each in storage.list(f"{_FOLDER}/{restore_id}")]
    storage.delete(sorted(path for path in paths if not path.endswith(_PLAN)))
    storage.delete([f"{_FOLDER}/{restore_id}/{_PLAN}"])


def store_positions(storage: Storage, restore_id: str, document: dict[str, Any]) -> None:
    """Where groups stood before this restore moved them. One object for each time, none is ever replaced."""
    text = bytes(cramjam.zstd.compress(json.dumps(document, sort_keys=True, allow_nan=False).encode()))
    number = len(_numbered(storage, restore_id, _POSITIONS)) + 1
    storage.put(f"{_FOLDER}/{restore_id}/{_name(_POSITIONS, number)}", text)


def read_positions(storage: Storage, restore_id: str) -> list[dict[str, Any]]:
    """What was stored, the oldest first."""
    return [read_document(storage, path) for path in _numbered(storage, restore_id, _POSITIONS)]


def _numbered(storage: Storage, restore_id: str, stem: str) -> list[str]:
    folder = f"{_FOLDER}/{restore_id}"
    known = {each.path for each in storage.list(folder)}
    numbered = (f"{folder}/{_name(stem, number)}" for number in range(1, len(known) + 1))
    return [path for path in numbered if path in known]


def _name(stem: str, number: int) -> str:
    return f"{stem}.json.zst" if number == 1 else f"{stem}-{number}.json.zst"


def read_document(storage: Storage, path: str) -> dict[str, Any]:
    try:
        document = strict_json.parse(decompress(Codec.ZSTD, np.frombuffer(storage.get(path), np.uint8)).tobytes())
    except (CorruptDataError, ValueError) as error:
        raise CorruptDataError("it cannot be read", operation="read a restore", object_name=path) from error
    if not isinstance(document, dict):
        raise CorruptDataError("it is no document", operation="read a restore", object_name=path)
    return document


def _known(storage: Storage, command: str) -> dict[str, set[str]]:
    """Restores by this command, and what is stored of each."""
    begun = _begun(storage).items()
    return {each: names for each, names in begun if each.rpartition("-")[0] == command[:_DIGEST_LETTERS]}


def _begun(storage: Storage) -> dict[str, set[str]]:
    """All restores, and what is stored of each."""
    found: dict[str, set[str]] = {}
    for each in storage.list(_FOLDER):
        restore_id, _, name = each.path.removeprefix(f"{_FOLDER}/").partition("/")
        found.setdefault(restore_id, set()).add(name)
    return {restore_id: names for restore_id, names in found.items() if _PLAN in names}
