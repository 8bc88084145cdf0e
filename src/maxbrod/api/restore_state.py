"""What a restore remembers in the archive: its plan, before anything is changed, and its report, when all is done.

A plan without a report is a restore that was interrupted. The same command goes on with it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import cramjam

from maxbrod.errors import ObjectExistsError, ObjectNotFoundError
from maxbrod.planning.restore.document import decode_plan, encode_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.planning.restore.plan import RestorePlan
    from maxbrod.storage.interface import Storage

_FOLDER: Final = "restores"
_PLAN: Final = "plan.json.zst"
_TOPICS: Final = "topics.json"
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


def note_topics(storage: Storage, restore_id: str, ids: Mapping[str, str]) -> None:
    """Which topics the restore writes to, as soon as they are all there: name to id, once and for all."""
    with suppress(ObjectExistsError):
        storage.put(f"{_FOLDER}/{restore_id}/{_TOPICS}", json.dumps(dict(ids), sort_keys=True).encode())


def noted_topics(storage: Storage, restore_id: str) -> dict[str, str]:
    """Empty where the restore did not come so far: then nothing has been written either."""
    try:
        document = json.loads(bytes(storage.get(f"{_FOLDER}/{restore_id}/{_TOPICS}")))
    except ObjectNotFoundError:
        return {}
    return {str(name): str(topic_id) for name, topic_id in document.items()}


def store_report(storage: Storage, restore_id: str, document: dict[str, Any]) -> None:
    """Once; whoever is late has done the same."""
    text = json.dumps(document, sort_keys=True, allow_nan=False).encode()
    with suppress(ObjectExistsError):
        storage.put(f"{_FOLDER}/{restore_id}/{_REPORT}", bytes(cramjam.zstd.compress(text)))


def _known(storage: Storage, command: str) -> dict[str, set[str]]:
    """Restores by this command, and what is stored of each."""
    found: dict[str, set[str]] = {}
    for each in storage.list(_FOLDER):
        restore_id, _, name = each.path.removeprefix(f"{_FOLDER}/").partition("/")
        if restore_id.rpartition("-")[0] == command[:_DIGEST_LETTERS]:
            found.setdefault(restore_id, set()).add(name)
    return {restore_id: names for restore_id, names in found.items() if _PLAN in names}
