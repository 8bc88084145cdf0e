"""Delta's log as objects of a storage: listing, reading, checkpointing and cleaning up. `codec` interprets the entries.

All access goes through the archive's own `Storage`, so the catalog has the same retries, deadline, certificates and
errors as every other object.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from maxbrod import strict_json
from maxbrod.bounds import check_object
from maxbrod.errors import CorruptDataError, ForbiddenError, ObjectNotFoundError
from maxbrod.model import now_ms
from maxbrod.storage.interface import ObjectInfo, Storage
from maxbrod.storage.stores import is_sealed, locked

TABLE_FOLDER: Final = "catalog/segments"
LOG_FOLDER: Final = f"{TABLE_FOLDER}/_delta_log"
RETENTION_MS: Final = 24 * 3600 * 1000
"""The time for which unused data files are kept for readers in progress; `schema` tells other engines."""
LOG_RETENTION_MS: Final = 3600 * 1000
"""The time for which log entries before a checkpoint are kept, for readers that have listed but not read them yet."""
_BRIEF_MS: Final = 3600 * 1000
"""A file that is removed this soon after it was added is in use briefly."""
BRING_BACK: Final = (
    "'maxbrod repair' rebuilds the catalog from the other objects of the archive; or restore the folder 'catalog' from "
    "a copy or from older object versions; do not back up into this archive until then"
)
CHECKSUM_KEY: Final = "maxbrod.crc32c"
"""In Delta's commit information: the checksum of the entry's other lines. Delta itself has none."""
_ACTIONS: Final = frozenset(
    {"add", "remove", "metaData", "protocol", "txn", "commitInfo", "cdc", "domainMetadata", "checkpointMetadata"}
)

_ENTRY: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet")
LAST_CHECKPOINT: Final = f"{LOG_FOLDER}/_last_checkpoint"
"""The object that points to the newest checkpoint."""
_LISTINGS: Final = 3
"""Listings before an entry counts as missing: another writer may add and clean up entries during a listing."""
_READERS: Final = 8


@dataclass(frozen=True, slots=True)
class Log:
    """The objects of one version of the table: the newest checkpoint, if any, its entry and all later entries."""

    version: int
    files: Mapping[str, bytes]

    def with_entry(self, entry: bytes) -> Log:
        return Log(self.version + 1, {**self.files, entry_name(self.version + 1): entry})

    def removed_since(self, since_ms: int, *, replaced: bool = False) -> list[str]:
        """Data files that have been removed since then, or only those with rows that were replaced.

        A checkpoint drops files that were in use briefly, and others after a day.
        """
        actions = (file for name, data in self.files.items() for file in _files_in(name, data, "remove"))
        return [
            action["path"]
            for action in actions
            if (action.get("deletionTimestamp") or 0) >= since_ms and (action.get("dataChange", True) or not replaced)
        ]

    def removed_briefly(self) -> set[str]:
        """Files that entries since the checkpoint have removed, less than an hour after they were added, by folding.

        The log need not remember them: their rows are in another file, and the sweep, which keeps every file for a day
        after it was written, keeps them for readers nearly as long as it keeps others.
        """
        added = {
            file["path"]: file.get("modificationTime", 0)
            for name, data in self.files.items()
            for file in _files_in(name, data, "add")
        }
        return {
            file["path"]
            for name, data in self.files.items()
            if _ENTRY.fullmatch(name)
            for file in _files_in(name, data, "remove")
            if not file.get("dataChange", True)
            and (file.get("deletionTimestamp") or 0) - added.get(file["path"], -_BRIEF_MS) < _BRIEF_MS
        }


def entry_name(version: int) -> str:
    return f"{version:020}.json"


def checkpoint_name(version: int) -> str:
    return f"{version:020}.checkpoint.parquet"


def log_path(name: str) -> str:
    return f"{LOG_FOLDER}/{name}"


def read_log(storage: Storage) -> Log | None:
    """The newest version; None if there is no table. CorruptDataError names the object that is damaged or missing."""
    for attempt in range(_LISTINGS):
        listed = {_name_of(info): info for info in storage.list(LOG_FOLDER)}
        versions = [
            int(matched[1]) for name in listed if (matched := _ENTRY.fullmatch(name) or _CHECKPOINT.fullmatch(name))
        ]
        if not versions:
            return None
        chosen, missing = _choose(listed, max(versions))
        last = attempt == _LISTINGS - 1
        if missing is None:
            try:
                return Log(max(versions), _read(storage, [listed[name] for name in chosen]))
            except ObjectNotFoundError:
                # Cleaned up after the listing: a newer checkpoint has replaced it.
                if last:
                    raise
        elif last:
            raise CorruptDataError(
                "an entry of the catalog's log is missing",
                operation="open the catalog",
                object_name=storage.name_of(log_path(missing)),
                hint=BRING_BACK,
            )
    return None


def has_entry(storage: Storage, version: int) -> bool:
    return has_object(storage, log_path(entry_name(version)))


def has_object(storage: Storage, path: str) -> bool:
    try:
        storage.head(path)
    except ObjectNotFoundError:
        return False
    return True


def put_checkpoint(storage: Storage, log: Log, checkpoint: bytes, pointer: bytes) -> Log:
    """Put the checkpoint of a version beside its entry; the shortened log."""
    name = checkpoint_name(log.version)
    # The checkpoint before the pointer: a crash in between leaves a complete log.
    storage.put(log_path(name), checkpoint)
    put_pointer(storage, pointer)
    # delta-rs reads the entry of the version that it commits onto, although the checkpoint contains it.
    return Log(log.version, {name: checkpoint, entry_name(log.version): log.files[entry_name(log.version)]})


def put_pointer(storage: Storage, pointer: bytes) -> None:
    """Let the pointer name a new checkpoint, if it may be overwritten.

    An older one is as good: readers go on from there through entries and checkpoints, which `delete_expired` leaves. So
    a writer that overwrites nothing writes none: it would stay where it is.
    """
    if not storage.creates_only:
        with suppress(ForbiddenError):
            storage.replace(LAST_CHECKPOINT, pointer)


def delete_expired(storage: Storage, before: Callable[[list[str]], object] = lambda _: None) -> None:
    """Delete entries and checkpoints older than an hour that precede a checkpoint older than an hour.

    Nothing goes that a reader needs who begins at the pointer. `before` is called with the names of what goes; if it
    raises, nothing is deleted.
    """
    listed = list(storage.list(LOG_FOLDER))
    before_ms = time_of(listed) - LOG_RETENTION_MS
    old = [(_name_of(info), info) for info in listed if info.modified_ms < before_ms]
    checkpoints = [int(matched[1]) for name, _ in old if (matched := _CHECKPOINT.fullmatch(name)) and not matched[2]]
    first = max(checkpoints, default=0)
    numbered = ((info.path, _ENTRY.fullmatch(name) or _CHECKPOINT.fullmatch(name)) for name, info in old)
    going = {path: int(matched[1]) for path, matched in numbered if matched is not None and int(matched[1]) < first}
    pointed = _pointed_at(storage) if going else None
    expired = [path for path, version in going.items() if pointed is None or version < pointed]
    before(expired)
    storage.delete(expired)


def _pointed_at(storage: Storage) -> int | None:
    """The version of the checkpoint that the pointer names; None: there is no pointer, or nobody can read it."""
    try:
        version = strict_json.parse(storage.get(LAST_CHECKPOINT))["version"]
    except (ObjectNotFoundError, ValueError, KeyError, TypeError):
        return None
    return version if isinstance(version, int) else None


def time_of(listed: Iterable[ObjectInfo]) -> int:
    """The time up to which ages of these objects count: ours, or that of the newest, which the store has just stamped.

    A commit comes right before it, so that the two agree. A clock of ours that is ahead makes nothing older.
    """
    return min(now_ms(), max((info.modified_ms for info in listed), default=0))


def _choose(listed: Mapping[str, ObjectInfo], version: int) -> tuple[list[str], str | None]:
    """The names of the objects of this version, and the first of them that is missing."""
    checkpoints: dict[int, list[str]] = {}
    for name in listed:
        if matched := _CHECKPOINT.fullmatch(name):
            parts = checkpoints.setdefault(int(matched[1]), [])
            # A checkpoint in a single part supersedes the parts of a multi-part one of the same version.
            parts[:] = [name] if matched[2] is None else [*parts, name]
    whole = [number for number, names in checkpoints.items() if _is_whole(names)]
    start = max(whole, default=-1)
    first = start if entry_name(start) in listed else start + 1
    chosen = list(checkpoints.get(start, ()))
    # A hostile name may claim any version: stop at the first missing entry, so that the list stays bounded.
    for number in range(first, version + 1):
        if entry_name(number) not in listed:
            return chosen, entry_name(number)
        chosen.append(entry_name(number))
    return chosen, None


def _is_whole(names: list[str]) -> bool:
    parts = _CHECKPOINT.fullmatch(names[-1])
    return parts is not None and len(names) == int(parts[2] or 1)


def _read(storage: Storage, infos: list[ObjectInfo]) -> dict[str, bytes]:
    # Together: they are read at once, and all are held.
    check_object(sum(info.size for info in infos), storage.name_of(max(infos, key=lambda info: info.size).path))

    def read(info: ObjectInfo) -> bytes:
        data = bytes(storage.get(info.path, size=info.size))
        if not storage.encrypted and is_sealed(data):
            raise locked(storage)
        _check(_name_of(info), data, object_name=storage.name_of(info.path))
        return data

    with ThreadPoolExecutor(min(_READERS, len(infos))) as pool:
        return dict(zip(map(_name_of, infos), pool.map(read, infos), strict=True))


def _check(name: str, data: bytes, *, object_name: str) -> None:
    """Refuse an object that is neither an entry nor a checkpoint, here where its name is known."""
    try:
        if _ENTRY.fullmatch(name) is None:
            pq.read_metadata(pa.BufferReader(data))
        else:
            _check_entry(data)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise damaged(object_name, error) from None


def demand_checksums(log: Log, *, name: str, always: bool) -> None:
    """CorruptDataError: an entry has lost its checksum, see `unchecked`; `name` is the folder of the log."""
    for entry in unchecked(log.files, always=always):
        raise damaged(
            f"{name}/{entry}", ValueError("it has no checksum, and every entry of this archive was written with one")
        )


def _check_entry(data: bytes) -> None:
    """ValueError: these are not the bytes that were written, as far as can be known."""
    actions = list(_actions(data))
    if not actions or not all(isinstance(action, dict) and action for action in actions):
        raise ValueError("it contains no actions")
    unknown = next((name for action in actions for name in action if name not in _ACTIONS), None)
    if unknown is not None:
        raise ValueError(f"it contains an unknown action {unknown!a}")
    expected = next((found for action in actions if (found := _checksum_in(action)) is not None), None)
    if expected is not None and expected != entry_checksum(data):
        raise ValueError(f"its checksum is {entry_checksum(data)}, but {expected} was written")


def unchecked(files: Mapping[str, bytes], *, always: bool = False) -> list[str]:
    """The names of entries that lack their checksum, although the archive has them.

    Releases before 1.2 wrote none. So an archive has them from the first entry that does; `always`: from the second on,
    because it was created with them. Older releases left it out of the first.
    """
    found = []
    for name in sorted(name for name in files if _ENTRY.fullmatch(name)):
        if any(_checksum_in(action) is not None for action in _actions(files[name])):
            always = True
        elif always and name != entry_name(0):
            found.append(name)
    return found


def _checksum_in(action: dict[str, Any]) -> str | None:
    information = action.get("commitInfo")
    found = information.get(CHECKSUM_KEY) if isinstance(information, dict) else None
    return found if isinstance(found, str) else None


def entry_checksum(entry: bytes) -> str:
    """The CRC-32C of the lines of an entry, but for Delta's commit information, where it is kept."""
    lines = [line for line in entry.splitlines() if line.strip() and not line.startswith(b'{"commitInfo"')]
    return f"{google_crc32c.value(bytes(chr(10).encode().join(lines))):08x}"


def damaged(object_name: str, error: Exception) -> CorruptDataError:
    """The error for a damaged object of the catalog."""
    lines = str(error).strip().splitlines()
    return CorruptDataError(
        f"an object of the catalog is damaged: {lines[0] if lines else type(error).__name__}",
        operation="read the catalog",
        object_name=object_name,
        hint=BRING_BACK,
    )


def _actions(entry: bytes) -> Iterator[Any]:
    return (strict_json.parse(line) for line in entry.splitlines() if line.strip())


def actions_of(name: str, data: bytes) -> list[dict[str, Any]]:
    """The actions of an entry or a checkpoint, by its name. ValueError and Arrow's errors: it is damaged."""
    if _ENTRY.fullmatch(name) is not None:
        _check_entry(data)
        return list(_actions(data))
    rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(data)).to_pylist()
    return rows


def _files_in(name: str, data: bytes, action: str) -> Iterator[dict[str, Any]]:
    """The files that an entry or a checkpoint adds or removes."""
    if _ENTRY.fullmatch(name) is not None:
        return (found[action] for found in _actions(data) if found.get(action))
    rows = pq.read_table(pa.BufferReader(data), columns=[action])[action].to_pylist()
    return (row for row in rows if row)


def _name_of(info: ObjectInfo) -> str:
    return info.path.removeprefix(f"{LOG_FOLDER}/")
