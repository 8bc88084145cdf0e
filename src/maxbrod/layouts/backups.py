"""Where a backup lies whose tool keeps several of them, each with an id, under one root.

The archive's URL may point to the root, where each backup has a folder of its id, or straight into such a folder.
Owns finding them, and the options that both layouts of this kind have.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from maxbrod.errors import CorruptDataError, ObjectNotFoundError, RefusedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maxbrod.layouts.foreign import Survey, WriteOptions
    from maxbrod.storage.interface import Storage

MANIFEST: Final = "manifest.json"
DEFAULT_BACKUP_ID: Final = "maxbrod"
LOOKED_AT_MAX: Final = 10_000
"""Names that detection looks at. A backup's own manifest comes before its segments in the order of names."""

_HEAD_BYTES: Final = 4096
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_OPTIONS: Final = frozenset({"backup_id", "offset_headers", "source_cluster"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    backup_id: str
    folder: str
    """Below the storage's root; empty where the storage is the backup's own folder."""

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name

    @property
    def details(self) -> dict[str, str]:
        return {"backup_id": self.backup_id, "folder": self.folder}


def is_plain_name(name: str) -> bool:
    """Whether Kafka allows it as a topic's name, so that it is one part of a path and leads nowhere else."""
    return _NAME.fullmatch(name) is not None and name not in {".", ".."}


def is_folder_name(name: str) -> bool:
    return bool(name) and "/" not in name and name not in {".", ".."}


def manifest_head(storage: Storage, folder: str) -> bytes | None:
    """The first bytes of a folder's manifest; None if it has none."""
    path = f"{folder}/{MANIFEST}" if folder else MANIFEST
    try:
        size = storage.head(path).size
        return bytes(storage.get_range(path, 0, min(size, _HEAD_BYTES)))
    except ObjectNotFoundError:
        return None


def has_segment(storage: Storage, folder: str, segment: re.Pattern[str]) -> bool:
    """Whether an object of a folder is named like a segment, by the first names there are."""
    prefix = f"{folder}/" if folder else ""
    names = (info.path.removeprefix(prefix) for info in storage.list(f"{prefix}topics"))
    return any(segment.fullmatch(name) for name in islice(names, LOOKED_AT_MAX))


def folders(storage: Storage, segment: re.Pattern[str], *, names_max: int | None = None) -> Iterator[str]:
    """Folders that have a manifest, or objects that are named like segments; each once, the root as ''."""
    seen: set[str] = set()
    for info in islice(storage.list(), names_max):
        first, _, rest = info.path.partition("/")
        folder = None
        if info.path == MANIFEST or segment.fullmatch(info.path):
            folder = ""
        elif rest == MANIFEST or segment.fullmatch(rest):
            folder = first
        if folder is not None and folder not in seen:
            seen.add(folder)
            yield folder


def find_backup(
    storage: Storage, segment: re.Pattern[str], is_ours: Callable[[Storage, str], bool], backup_id: str | None
) -> str | None:
    """The folder of the backup that is meant, or None if there is none. UsageError: there are several."""
    if backup_id is not None and not is_folder_name(backup_id):
        raise UsageError(f"{backup_id!r} cannot be the id of a backup", hint="it is the name of one folder")
    if is_ours(storage, ""):
        return ""
    if backup_id is not None:
        return backup_id if is_ours(storage, backup_id) else None
    found = [folder for folder in folders(storage, segment) if is_ours(storage, folder)]
    if len(found) > 1:
        raise UsageError(
            f"there are several backups here: {', '.join(found[:20])}",
            object_name=storage.url,
            hint="let the URL of the archive end in the folder of one (or convert with --from-option backup_id=ID)",
        )
    return found[0] if found else None


def refuse_other(backup: Backup, backup_id: str | None) -> None:
    """The URL points into one backup's folder, and another one is asked for."""
    if backup_id not in {None, backup.backup_id, backup.folder}:
        raise UsageError(
            f"this is the backup {backup.backup_id!r}, not {backup_id!r}",
            hint="let the URL of the archive end in the folder above, or in that of the other one",
        )


def backup_for(survey: Survey, options: WriteOptions) -> Backup:
    """The backup that is written to: the one that was surveyed, or a new one of the wanted id."""
    check_options(options)
    wanted = options.extra.get("backup_id")
    if "folder" in survey.details:
        found = Backup(backup_id=survey.details["backup_id"], folder=survey.details["folder"])
        if wanted is not None and wanted != found.backup_id:
            raise UsageError(
                f"this is the backup {found.backup_id!r}, not {wanted!r}",
                hint="survey the other one, or let the URL of the archive end in its folder",
            )
        return found
    backup_id = DEFAULT_BACKUP_ID if wanted is None else wanted
    if not is_plain_name(backup_id):
        raise UsageError(f"{backup_id!r} cannot be the id of a backup", hint="use letters, digits, '.', '_' and '-'")
    return Backup(backup_id=backup_id, folder=backup_id)


def refuse_unknown(storage: Storage, backup: Backup, survey: Survey) -> None:
    """A new backup may not be written over one that the survey did not see, or could not make sense of."""
    if "folder" not in survey.details and manifest_head(storage, backup.folder) is not None:
        raise RefusedError(
            f"there is a backup {backup.backup_id!r} already",
            object_name=storage.name_of(backup.path(MANIFEST)),
            hint="run it again, or choose another by --layout-option backup_id=ID",
        )


def check_options(options: WriteOptions) -> None:
    unknown = sorted(set(options.extra) - _OPTIONS)
    if unknown:
        raise UsageError(f"no such option: {', '.join(unknown)}", hint=f"choose of {', '.join(sorted(_OPTIONS))}")
    flag = options.extra.get("offset_headers", "false")
    if flag not in {"true", "false"}:
        raise UsageError(f"offset_headers is true or false, not {flag!r}")


def has_offset_headers(options: WriteOptions) -> bool:
    return options.extra.get("offset_headers") == "true"


def check_topic(topic: str) -> str:
    """The name of a topic to write, which becomes a folder."""
    if not is_plain_name(topic):
        raise UsageError(f"{topic!r} cannot be a topic", hint="use letters, digits, '.', '_' and '-'")
    return topic


def known_topic(name: str, object_name: str) -> str:
    """The name of a topic that an archive claims to have."""
    if not is_plain_name(name):
        raise CorruptDataError(f"{name[:300]!r} cannot be a topic", object_name=object_name)
    return name
