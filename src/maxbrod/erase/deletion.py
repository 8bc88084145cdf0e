"""Deletes objects that an erasure has put out of use, at once: readers that still use one fail, and begin again.

Two witnesses are heard before an object goes. The newest catalog must not name it, and neither may a prune that can be
undone. And a commit must have taken it out of use, as the ledger of the catalog says: an object that no commit ever
named may be of a backup under way, and `gc` judges it by its age. A store that refuses a deletion keeps the object, and
the report says so; the other objects go nevertheless.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from maxbrod.archive.archive import Archive
from maxbrod.archive.undo import PruneRun, read_document, undoable
from maxbrod.archive.upkeep import read_clocks, rebuild_under_way
from maxbrod.batch.erased import ErasedRecords
from maxbrod.batch.erasure import find_erased
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.ledger import named_in_ledger
from maxbrod.erase.report import KeptObject
from maxbrod.errors import CorruptDataError, MaxbrodError, ObjectNotFoundError, UnsupportedFormatError
from maxbrod.layouts.kafka.contents import read_contents
from maxbrod.layouts.kafka.format import PACKS, SEGMENTS, parse_segment_path
from maxbrod.layouts.kafka.frames import SliceDigest
from maxbrod.layouts.kafka.reader import log_bytes_max, read_logs, read_object
from maxbrod.model import INT64_MAX, PartitionId
from maxbrod.restore.state import STAGED, stagings_done, stagings_left, stored_objects
from maxbrod.storage.interface import ObjectInfo
from maxbrod.work.held import find_held, find_hiding

Wanted = Callable[[PartitionId, int, int], ErasedRecords | None]
_REBUILD: Final = "the catalog is being rebuilt: run 'maxbrod erase --again' afterwards"
_DAMAGES: Final = (CorruptDataError, UnsupportedFormatError, ObjectNotFoundError)


@dataclass(slots=True, kw_only=True)
class Deletion:
    deleted: int = 0
    bytes: int = 0
    kept: list[KeptObject] = field(default_factory=list)


def delete_old(
    archive: Archive, topics: Collection[str], wanted: Wanted, *, holding: Collection[str], held: Mapping[str, str]
) -> Deletion:
    """Delete what commits have put out of use of these topics, which are given by their ids.

    `wanted` says what is erased from offsets of a partition; `holding` are objects that held such records; `held` those
    that a hold keeps, and the hold.
    """
    found = Deletion()
    listed = list(_objects(archive, topics))
    # Listed first: whatever is committed by now is named.
    archive.catalog.refresh()
    assert isinstance(archive.catalog, Catalog)  # noqa: S101 - other layouts are refused
    named = archive.catalog.path_set()
    undo = _undo(archive)
    known = named_in_ledger(archive.storage, last=archive.catalog.ledger)
    rebuild = rebuild_under_way(archive.storage, since_ms=0)
    going: list[ObjectInfo] = []
    for info in listed:
        if info.path in held:
            found.kept.append(KeptObject(path=info.path, bytes=info.size, why=held[info.path]))
        elif info.path in undo and info.path not in holding:
            continue
        elif info.path in undo:
            prune = undo[info.path]
            why = f"prune {prune.run_id} can be undone"
            found.kept.append(KeptObject(path=info.path, bytes=info.size, why=why, until_ms=prune.until_ms))
        elif info.path in named or not _concerns(archive, info, topics):
            continue
        elif info.path not in known:
            if not _may_hold(archive, info, wanted):
                continue
            why = "no commit has named it: a run under way, or one that was killed; 'maxbrod gc' deletes it by its age"
            found.kept.append(KeptObject(path=info.path, bytes=info.size, why=why))
        elif rebuild is not None:
            found.kept.append(KeptObject(path=info.path, bytes=info.size, why=_REBUILD))
        else:
            going.append(info)
    _delete(archive, going, found)
    _staged(archive, found)
    return found


def _objects(archive: Archive, topics: Iterable[str]) -> Iterable[ObjectInfo]:
    chosen = set(topics)
    for info in archive.storage.list(SEGMENTS):
        name = parse_segment_path(info.path)
        if name is not None and name.topic_id in chosen:
            yield info
    yield from archive.storage.list(PACKS)


def _concerns(archive: Archive, info: ObjectInfo, topics: Collection[str]) -> bool:
    """True if an object has slices of these topics, or nobody can know."""
    if not info.path.startswith(f"{PACKS}/"):
        return True
    with suppress(*_DAMAGES):
        contents = read_contents(archive.storage, info.path, info.size)
        return contents is None or any(entry.topic_id in topics for entry in contents.entries)
    return True


def _may_hold(archive: Archive, info: ObjectInfo, wanted: Wanted) -> bool:
    """True if an object that no row describes has such records, or cannot be read."""
    storage = archive.storage
    try:
        contents = read_contents(storage, info.path, info.size)
        if contents is not None:
            return any(
                sought is not None and any(len(find_erased(*piece, sought)) for piece in read_logs(storage, part))
                for entry in contents.entries
                for part in [entry.slice]
                for place in [PartitionId(topic_id=entry.topic_id, partition=entry.partition)]
                for sought in [wanted(place, part.base_offset, part.end_offset)]
            )
        name = parse_segment_path(info.path)
        if name is None:
            return True
        sought = wanted(PartitionId(topic_id=name.topic_id, partition=name.partition), 0, INT64_MAX)
        room = log_bytes_max(info.size)
        pieces = read_object(storage, info.path, 0, info.size, raw_bytes_max=room, digest=SliceDigest())
        return sought is not None and any(len(find_erased(*piece, sought)) for piece in pieces)
    except MaxbrodError:
        return True


def _undo(archive: Archive) -> dict[str, PruneRun]:
    clocks = read_clocks(archive, ask_store=False, demand=False)
    return {
        path: prune
        for prune in undoable(archive.storage, archive.catalog.runs(), clocks)
        for path in read_document(archive.storage, prune.document)["path"].to_pylist()
        if path is not None
    }


def _delete(archive: Archive, going: Sequence[ObjectInfo], found: Deletion) -> None:
    """Delete objects. What the store refuses, or only hides as an older version, is kept: until when, if it tells.

    What is still listed afterwards is there, whatever the store said.
    """
    if not going:
        return
    hiding = find_hiding(archive.url, archive.options)
    held = {} if hiding is None else {item.path: item for item in hiding.held(archive.storage, going)}
    refusals: dict[str, str] = {}
    try:
        archive.storage.delete([info.path for info in going])
    except MaxbrodError:
        for info in going:
            try:
                archive.storage.delete([info.path])
            except MaxbrodError as error:
                refusals[info.path] = error.message
    held |= {item.path: item for item in find_held(archive.storage, archive.url, archive.options)}
    folders = {info.path.rpartition("/")[0] for info in going}
    there = {info.path for folder in sorted(folders) for info in archive.storage.list(folder)}
    for info in going:
        if info.path in there or info.path in held:
            keeper = held.get(info.path)
            said = refusals.get(info.path, "it is still listed after its deletion") if keeper is None else keeper.reason
            until_ms = None if keeper is None else keeper.until_ms
            why = f"the store keeps it: {said}"
            found.kept.append(KeptObject(path=info.path, bytes=info.size, why=why, until_ms=until_ms))
        else:
            found.deleted, found.bytes = found.deleted + 1, found.bytes + info.size


def _staged(archive: Archive, found: Deletion) -> None:
    """Delete copies that finished restores have staged, and name those of others: they have keys of their own."""
    done = set(stagings_done(archive.storage))
    sizes = {info.path: info for info in stagings_left(archive.storage)}
    _delete(archive, [sizes[path] for path in sorted(done) if path in sizes], found)
    for restore, objects in stored_objects(archive.storage).items():
        staged = [info for name, info in objects.items() if name.startswith(f"{STAGED}/") and info.path not in done]
        if staged:
            why = f"restore {restore} has staged records and has not ended: finish it, or delete it"
            size = sum(info.size for info in staged)
            found.kept.append(KeptObject(path=staged[0].path.rsplit(f"/{STAGED}/", 1)[0], bytes=size, why=why))
