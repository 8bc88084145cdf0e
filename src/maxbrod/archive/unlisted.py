"""Objects that hold records which the catalog lacks, although no commit names them.

A killed run leaves such objects, until the next one archives the same offsets again. A catalog that has lost the newest
entries of its log looks the same: nothing in the log shows that they existed. So `gc` deletes no such object, `check`
reports it, and `repair` takes it in where it continues the archive. All three ask here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from maxbrod.archive.copies import announced_version
from maxbrod.archive.snapshot_document import decode
from maxbrod.archive.snapshots import last_snapshot_run, read_snapshot
from maxbrod.archive.surveyed import topic_id_for
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.ledger import documents_in, named_in_ledger, version_of
from maxbrod.catalog.queries import ArchivedRange
from maxbrod.catalog.replaced import Intervals, meets, merge
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, UnsupportedFormatError
from maxbrod.layouts.kafka.contents import read_contents
from maxbrod.layouts.kafka.described_batches import describe
from maxbrod.layouts.kafka.format import parse_segment_path
from maxbrod.layouts.kafka.frames import SliceDigest
from maxbrod.layouts.kafka.reader import log_bytes_max, read_object
from maxbrod.layouts.kafka.slices import verify_slice
from maxbrod.model import MENDABLE, PartitionId, now_ms
from maxbrod.storage.interface import ObjectInfo, Storage

FOLDERS: Final = ("packs", "segments")
UNCOMMITTED_MS: Final = 3600 * 1000
"""An object that is younger may be of a run that has not committed yet."""
HINT: Final = (
    "a run was killed, or its entry of the catalog's log is lost: 'maxbrod backup' archives these offsets again, if "
    "the source still has them; 'maxbrod repair' takes in what continues the archive"
)
_READERS: Final = 8
_DAMAGES: Final = (CorruptDataError, UnsupportedFormatError, ObjectNotFoundError)

_OR_KILLED: Final = "newer entries are lost, or the run was killed just before its commit"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlistedRange:
    """Offsets of a partition that an object holds and no row of the catalog covers, data or gap."""

    path: str
    bytes: int
    topic: str
    topic_id: str
    partition: int
    first_offset: int
    end_offset: int
    """The object may hold more."""
    continues: bool
    """True if the offsets follow those of the archive, or fill a gap of it: then a repair takes them in."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}, offsets {self.first_offset} to {self.end_offset}, in {self.path}"


class _Extent(NamedTuple):
    """The offsets of one partition in an object, or the part of it that was read."""

    topic: str
    id: PartitionId
    base: int
    end: int
    epoch: int


def not_young(objects: Iterable[ObjectInfo]) -> list[ObjectInfo]:
    """Without objects that may be of a run that has not committed yet."""
    until_ms = now_ms() - UNCOMMITTED_MS
    return [info for info in objects if info.modified_ms < until_ms]


def find_unlisted(storage: Storage, catalog: Catalog, unnamed: Iterable[ObjectInfo]) -> list[UnlistedRange]:
    """The records of objects that no row names, as far as the catalog lacks them. Reads those objects.

    What a commit has named before is known to the ledger: its offsets are covered, whatever became of them.
    """
    objects = [info for info in unnamed if info.path.startswith(FOLDERS) and info.path.endswith((".log", ".log.zst"))]
    known = named_in_ledger(storage, last=catalog.ledger) if objects else set()
    objects = [info for info in objects if info.path not in known]
    if not objects:
        return []
    coverage = _Coverage(storage, catalog)

    def look(info: ObjectInfo) -> list[UnlistedRange]:
        return [
            UnlistedRange(
                path=info.path,
                bytes=info.size,
                topic=extent.topic,
                topic_id=extent.id.topic_id,
                partition=extent.id.partition,
                first_offset=extent.base,
                end_offset=extent.end,
                continues=coverage.is_continued_by(extent),
            )
            for extent in _extents(storage, info, coverage)
            if coverage.lacks(extent)
        ]

    with ThreadPoolExecutor(_READERS) as pool:
        found = [extent for ranges in pool.map(look, objects) for extent in ranges]
    return sorted(found, key=lambda extent: (extent.topic_id, extent.partition, extent.first_offset, extent.path))


class _Coverage:
    """The offsets that the rows of a catalog account for."""

    def __init__(self, storage: Storage, catalog: Catalog) -> None:
        self._held: Mapping[PartitionId, ArchivedRange] = catalog.positions()
        self._ends: Mapping[PartitionId, int] = {}
        run = last_snapshot_run(catalog.runs())
        if run is not None:
            with suppress(*_DAMAGES):
                self._ends = read_snapshot(storage, run).ends
        gaps: dict[PartitionId, list[tuple[int, int]]] = {}
        for row in catalog.gaps(MENDABLE):
            place = PartitionId(topic_id=row.topic_id, partition=row.partition)
            gaps.setdefault(place, []).append((row.base_offset, row.end_offset))
        self._gaps: Mapping[PartitionId, Intervals] = {place: merge(found) for place, found in gaps.items()}

    def lacks(self, extent: _Extent) -> bool:
        # Tasks of a DataFrame number records provisionally. Each of its commits has a snapshot, which tells of a loss.
        if extent.id.topic_id == topic_id_for(extent.topic):
            return False
        held = self._held.get(extent.id)
        if held is None or self.meets_gap(extent):
            return True
        if 0 <= extent.epoch < (-1 if held.last_leader_epoch is None else held.last_leader_epoch):
            # Epochs only rise along a log: it is of a history that the log has lost and the archive never had.
            return False
        return not (held.first_offset <= extent.base and extent.end <= held.end_offset)

    def meets_gap(self, extent: _Extent) -> bool:
        """True if the archive lacks some of these offsets because an object was lost or damaged: perhaps this one."""
        return meets(self._gaps.get(extent.id, []), extent.base, extent.end)

    def is_continued_by(self, extent: _Extent) -> bool:
        held = self._held.get(extent.id)
        end = self._ends.get(extent.id, extent.base) if held is None else held.end_offset
        return extent.base == end or any(
            first <= extent.base and extent.end <= stop for first, stop in self._gaps.get(extent.id, ())
        )


def _extents(storage: Storage, info: ObjectInfo, coverage: _Coverage) -> Iterator[_Extent]:
    """The contents of an object. Nothing, if it is damaged, or nobody can know whose records they are.

    What may fill a gap is read as a whole: a repair leaves damaged objects behind.
    """
    contents = None
    with suppress(*_DAMAGES):
        contents = read_contents(storage, info.path, info.size)
    if contents is not None:
        for entry in contents.entries:
            place = PartitionId(topic_id=entry.topic_id, partition=entry.partition)
            found = entry.slice
            extent = _Extent(entry.topic, place, found.base_offset, found.end_offset, found.last_leader_epoch)
            if not coverage.meets_gap(extent) or all(problem.limit for problem in verify_slice(storage, found)):
                yield extent
        return
    name = parse_segment_path(info.path)
    if name is None:
        return
    place = PartitionId(topic_id=name.topic_id, partition=name.partition)
    seen: _Extent | None = None
    room = log_bytes_max(info.size)
    try:
        for data, headers in read_object(storage, info.path, 0, info.size, raw_bytes_max=room, digest=SliceDigest()):
            facts = describe(data, headers, exact=False).facts
            base = int(facts.first_offset[0]) if seen is None else seen.base
            seen = _Extent(name.topic, place, base, int(facts.last_offset[-1]) + 1, int(headers["leader_epoch"][-1]))
            if coverage.lacks(seen) and not coverage.meets_gap(seen):
                # The rest changes nothing.
                break
    except _DAMAGES:
        if seen is not None and coverage.meets_gap(seen):
            return
    if seen is not None:
        yield seen


def find_lost_end(
    storage: Storage, catalog: Catalog, named: Collection[str | None], *, until_ms: int | None = None
) -> str | None:
    """The reason why the newest entries of the log seem lost: nothing in the log shows that, but other objects may.

    They are snapshots, of which `named` are those of known runs; files of rows, and documents of the ledger. A run that
    was killed just before its commit looks the same. Everything that these account for is durable, so it may be taken
    for committed. A run that is about to commit looks the same, too: `until_ms` leaves younger objects out. So does a
    copy from another archive that was killed, or is under way, but that is announced.
    """
    version = catalog.version
    if (found := find_lost_commit(storage, catalog, until_ms=until_ms)) is not None:
        return found
    for info, number in documents_in(storage):
        known = until_ms is None or info.modified_ms < until_ms
        if (commit := version_of(number)) > version and known and commit > announced_version(storage):
            return f"it ends with version {version}, but {info.path} is of version {commit}: {_OR_KILLED}"
    for info in storage.list("snapshots"):
        if info.path in named or (until_ms is not None and info.modified_ms >= until_ms):
            continue
        with suppress(*_DAMAGES):
            snapshot = decode(bytes(storage.get(info.path)), object_name=info.path)
            commit = -1 if snapshot.run is None else snapshot.run.commit
            if snapshot.run is not None and commit > version and commit > announced_version(storage):
                return (
                    f"it ends with version {version}, but run {snapshot.run_id} has a snapshot for version "
                    f"{snapshot.run.commit}: {_OR_KILLED}"
                )
    return None


def find_lost_commit(storage: Storage, catalog: Catalog, *, until_ms: int | None = None) -> str | None:
    """The same by files of rows alone. Of all traces, they are put last: hardly a killed run leaves one."""
    lost = catalog.lost_commits(until_ms=until_ms)
    copied = announced_version(storage) if lost else -1
    for commit, run_id in (found for found in lost if found[0] > copied):
        return f"it ends with version {catalog.version}, but run {run_id} has rows for version {commit}: {_OR_KILLED}"
    return None
