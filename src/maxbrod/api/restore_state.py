"""What a restore remembers in the archive: its plan, before anything is changed, and its report, when all is done.

A plan without a report is a restore that was interrupted. The same command goes on with it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import cramjam

from maxbrod.errors import CorruptDataError, ObjectExistsError, ObjectNotFoundError, UnsupportedFormatError
from maxbrod.planning.restore.document import decode_plan, encode_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.planning.restore.plan import RestorePlan
    from maxbrod.storage.interface import Storage

_FOLDER: Final = "restores"
_PLAN: Final = "plan.json.zst"
_TOPICS: Final = "topics.json.zst"
_REPORT: Final = "report.json.zst"
_DIGEST_LETTERS: Final = 16


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
    path = f"{_FOLDER}/{last}/{_PLAN}"
    return decode_plan(bytes(storage.get(path)), object_name=storage.name_of(path))


def store_plan(storage: Storage, plan: RestorePlan) -> None:
    storage.put(f"{_FOLDER}/{plan.restore_id}/{_PLAN}", encode_plan(plan))


def store_topics(storage: Storage, restore_id: str, ids: Mapping[str, str]) -> None:
    """The ids of the topics that the restore has created, by their names."""
    if ids:
        text = json.dumps(dict(ids), sort_keys=True).encode()
        storage.put(f"{_FOLDER}/{restore_id}/{_TOPICS}", bytes(cramjam.zstd.compress(text)))


def read_topics(storage: Storage, restore_id: str) -> dict[str, str]:
    """None before they are created, or where none had to be."""
    try:
        return {name: str(each) for name, each in read_document(storage, f"{_FOLDER}/{restore_id}/{_TOPICS}").items()}
    except ObjectNotFoundError:
        return {}


def store_report(storage: Storage, restore_id: str, document: dict[str, Any]) -> None:
    """Once; whoever is late has done the same."""
    text = json.dumps(document, sort_keys=True, allow_nan=False).encode()
    try:
        storage.put(f"{_FOLDER}/{restore_id}/{_REPORT}", bytes(cramjam.zstd.compress(text)))
    except ObjectExistsError:
        return


def read_restore(storage: Storage, restore_id: str) -> tuple[RestorePlan, dict[str, Any]]:
    """The plan and the report of a restore that came to its end. ObjectNotFoundError: it did not, or never was."""
    report, plan = (f"{_FOLDER}/{restore_id}/{name}" for name in (_REPORT, _PLAN))
    document = read_document(storage, report)
    return decode_plan(bytes(storage.get(plan)), object_name=storage.name_of(plan)), document


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
    number = len(_positions(storage, restore_id)) + 1
    storage.put(f"{_FOLDER}/{restore_id}/{_positions_name(number)}", text)


def read_positions(storage: Storage, restore_id: str) -> list[dict[str, Any]]:
    """What was stored, the oldest first."""
    return [read_document(storage, path) for path in _positions(storage, restore_id)]


def _positions(storage: Storage, restore_id: str) -> list[str]:
    folder = f"{_FOLDER}/{restore_id}"
    known = {each.path for each in storage.list(folder)}
    numbered = (f"{folder}/{_positions_name(number)}" for number in range(1, len(known) + 1))
    return [path for path in numbered if path in known]


def _positions_name(number: int) -> str:
    return "groups-before.json.zst" if number == 1 else f"groups-before-{number}.json.zst"


def read_document(storage: Storage, path: str) -> dict[str, Any]:
    try:
        document = json.loads(bytes(cramjam.zstd.decompress(bytes(storage.get(path)))))
    except (cramjam.DecompressionError, ValueError) as error:
        raise CorruptDataError("it cannot be read", operation="read a restore", object_name=path) from error
    if not isinstance(document, dict):
        raise CorruptDataError("it is no document", operation="read a restore", object_name=path)
    return document


def _known(storage: Storage, command: str) -> dict[str, set[str]]:
    """Restores by this command, and what is stored of each."""
    found: dict[str, set[str]] = {}
    for each in storage.list(_FOLDER):
        restore_id, _, name = each.path.removeprefix(f"{_FOLDER}/").partition("/")
        if restore_id.rpartition("-")[0] == command[:_DIGEST_LETTERS]:
            found.setdefault(restore_id, set()).add(name)
    return {restore_id: names for restore_id, names in found.items() if _PLAN in names}
