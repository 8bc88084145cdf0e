"""The objects of an archive: every slice must lie within one that exists.

Objects are compared by hashes of their names, in 16 bytes for each, because an archive may have millions of them.

If something else has deleted objects, such as a lifecycle rule of a bucket, `accept_missing` puts the archive in order:
their offsets become gaps `pruned`, and runs whose snapshots are gone are no longer points in time. Only what is missing
is touched: what is damaged stays as it is. An undo document keeps the rows. If the objects come back, from a copy or
from older object versions, `prune --undo` brings the rows back.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from maxbrod.archive.archive import Archive
from maxbrod.archive.holds import active_holds
from maxbrod.archive.snapshots import last_snapshot_run
from maxbrod.archive.undo import Taking, take
from maxbrod.archive.unlisted import FOLDERS
from maxbrod.archive.upkeep import NO_ROWS, read_clocks
from maxbrod.catalog.queries import hash_paths
from maxbrod.catalog.schema import INT64_MAX, SCHEMA, Kind
from maxbrod.check.problems import Problem, ProblemKind
from maxbrod.errors import RefusedError
from maxbrod.storage.interface import ObjectInfo, Storage

GRACE_S: Final = 30 * 24 * 3600
_ABSENT: Final = -1
_WHOLE: Final = INT64_MAX
_ROWS_AT_ONCE: Final = 4096


def check_objects(
    archive: Archive, portions: Callable[[], Iterable[pa.Table]], *, narrow: bool
) -> tuple[int, Iterator[Problem]]:
    """The number of objects that rows name, and the missing slices. Lists folders, not object by object.

    `portions` returns the rows, and is called again to name missing slices. `narrow`: the rows are of a few topics, so
    only their folders are listed.
    """
    needed = NeededObjects(narrow=narrow)
    for rows in portions():
        needed.add(rows)
    lacking = needed.lacking(archive.storage)
    problems = (
        problem for rows in (portions() if lacking else ()) for problem in lacking.problems(archive.storage, rows)
    )
    return lacking.objects, problems


class NeededObjects:
    """The objects that rows name, each with the end of its last slice."""

    def __init__(self, *, narrow: bool) -> None:
        self._narrow = narrow
        self._folders: set[str] = set()
        self._hashes: list[NDArray[np.int64]] = []
        self._ends: list[NDArray[np.int64]] = []

    def add(self, rows: pa.Table) -> None:
        slices = _slices(rows).group_by("path").aggregate([("slice_end", "max")])
        paths = slices["path"].to_pylist()
        folders = {path.rpartition("/")[0] for path in paths}
        self._folders |= {"/".join(folder.split("/")[: 2 if self._narrow else 1]) for folder in folders}
        self._hashes.append(hash_paths(paths))
        self._ends.append(slices["slice_end_max"].to_numpy())

    def lacking(self, storage: Storage) -> LackingObjects:
        """List the objects, and find those that are missing or too short."""
        hashes = np.concatenate([np.empty(0, np.int64), *self._hashes])
        unnamed: list[ObjectInfo] = []
        folders = self._folders if self._narrow else self._folders | set(FOLDERS)
        names, sizes = _list(storage, folders, None if self._narrow else _Sieve(hashes, unnamed))
        ends = np.concatenate([np.empty(0, np.int64), *self._ends])
        order = np.lexsort((ends, hashes))
        hashes, ends = hashes[order], ends[order]
        # The last of each object has the highest end.
        last = np.append(hashes[1:] != hashes[:-1], True)[: len(hashes)]
        hashes, ends = hashes[last], ends[last]
        found = _look_up(hashes, names, sizes, otherwise=_ABSENT)
        short = found < ends
        return LackingObjects(objects=len(hashes), hashes=hashes[short], sizes=found[short], unnamed=tuple(unnamed))


@dataclass(frozen=True, slots=True, kw_only=True)
class LackingObjects:
    """Objects that are missing or too short: sorted hashes of their names, and their sizes."""

    objects: int
    """The number of objects that were looked for."""
    hashes: NDArray[np.int64]
    sizes: NDArray[np.int64]
    unnamed: tuple[ObjectInfo, ...] = ()
    """Objects that no row names. Not looked for if only a few topics are."""

    def __bool__(self) -> bool:
        return bool(len(self.hashes))

    def count(self, rows: pa.Table) -> Counter[ProblemKind]:
        """Count the slices of these rows that are missing or cut off."""
        _, sizes = self._short(_slices(rows))
        missing = int((sizes == _ABSENT).sum())
        return +Counter({ProblemKind.MISSING: missing, ProblemKind.TRUNCATED: len(sizes) - missing})

    def problems(self, storage: Storage, rows: pa.Table) -> Iterator[Problem]:
        """The slices of these rows that are not, or not completely, in their objects."""
        for slices, sizes in self.select(rows):
            for row, size in zip(slices.to_pylist(), sizes, strict=True):
                yield _problem(storage, row, size)

    def select(self, rows: pa.Table) -> Iterator[tuple[pa.Table, list[int | None]]]:
        """The same slices as rows, with `slice_end`, and the sizes of their objects; None: missing. A few at a time."""
        slices, sizes = self._short(_slices(rows))
        for start in range(0, slices.num_rows, _ROWS_AT_ONCE):
            found = sizes[start : start + _ROWS_AT_ONCE].tolist()
            yield slices.slice(start, _ROWS_AT_ONCE), [None if size == _ABSENT else size for size in found]

    def _short(self, slices: pa.Table) -> tuple[pa.Table, NDArray[np.int64]]:
        """The slices that are missing or cut off, and the sizes of their objects. Each object is looked up once."""
        if not slices.num_rows:
            return slices, np.empty(0, np.int64)
        paths = pa.concat_arrays(slices["path"].chunks).dictionary_encode()
        sizes = self._sizes(paths.dictionary.to_pylist())[paths.indices.to_numpy()]
        short = slices["slice_end"].to_numpy() > sizes
        return slices.filter(pa.array(short)), sizes[short]

    def _sizes(self, paths: Sequence[str]) -> NDArray[np.int64]:
        """The size of each object; `_WHOLE` for those that lack nothing."""
        return _look_up(hash_paths(paths), self.hashes, self.sizes, otherwise=_WHOLE)


def _slices(rows: pa.Table) -> pa.Table:
    data = rows.filter(pc.equal(rows["kind"], Kind.DATA))
    return data.append_column("slice_end", pc.add(data["position"], data["bytes"]))


class _Sieve:
    """Keeps the objects that no row names, out of all that are listed."""

    def __init__(self, named: NDArray[np.int64], unnamed: list[ObjectInfo]) -> None:
        self._named, self._unnamed = np.unique(named), unnamed
        self._waiting: list[ObjectInfo] = []

    def add(self, info: ObjectInfo) -> None:
        self._waiting.append(info)
        if len(self._waiting) == _ROWS_AT_ONCE:
            self.empty()

    def empty(self) -> None:
        hashes = hash_paths(info.path for info in self._waiting)
        # Not `np.isin`: it sorts all names again for each few objects.
        for place in np.flatnonzero(_look_up(hashes, self._named, self._named, otherwise=0) != hashes).tolist():
            self._unnamed.append(self._waiting[place])
        self._waiting = []


def _list(
    storage: Storage, folders: Iterable[str], sieve: _Sieve | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Hashes of names, sorted, and the size of each object. All objects go through the sieve."""
    hashes, sizes = array("q"), array("q")
    for folder in sorted(folders):
        for found in storage.list(folder):
            hashes.append(hash(found.path))
            sizes.append(found.size)
            if sieve is not None:
                sieve.add(found)
    if sieve is not None:
        sieve.empty()
    names, known = np.frombuffer(hashes, np.int64), np.frombuffer(sizes, np.int64)
    order = np.argsort(names)
    return names[order], known[order]


def _look_up(
    wanted: NDArray[np.int64], names: NDArray[np.int64], sizes: NDArray[np.int64], *, otherwise: int
) -> NDArray[np.int64]:
    """The size of each wanted object among the sorted names; `otherwise` if it is not there."""
    if not len(names):
        return np.full(len(wanted), otherwise, np.int64)
    # In order: a search among millions that jumps to and fro waits for memory most of the time.
    order = np.argsort(wanted)
    places = np.empty(len(wanted), np.int64)
    places[order] = np.minimum(np.searchsorted(names, wanted[order]), len(names) - 1)
    return np.where(names[places] == wanted, sizes[places], otherwise)


def complaint(size: int | None, end: int) -> str:
    """Say what is wrong with a slice that ends at `end`. `size` is that of its object; None: it is missing."""
    return "the object is not there" if size is None else f"the object has {size} bytes, the slice ends at {end}"


def _problem(storage: Storage, row: dict[str, Any], size: int | None) -> Problem:
    end = row["slice_end"]
    return Problem(
        kind=ProblemKind.MISSING if size is None else ProblemKind.TRUNCATED,
        message=complaint(size, end),
        topic=row["topic"],
        topic_id=row["topic_id"],
        partition=row["partition"],
        first_offset=row["base_offset"],
        end_offset=row["end_offset"],
        object_name=storage.name_of(row["path"]),
        hint="restore it from a copy or an older object version, or 'maxbrod repair' makes gaps of its offsets"
        + ("; if something deleted it on purpose, such as a lifecycle rule: check --repair" if size is None else ""),
    )


# Objects that something else has deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Rows and runs whose objects the store does not have."""

    rows: pa.Table
    """Rows of data, of kind data or replaced."""
    runs: pa.Table
    """Runs whose snapshots are gone."""
    newest: bool
    """True if the newest snapshot is among what is gone."""

    @property
    def objects(self) -> list[str]:
        return sorted({*self.rows["path"].to_pylist(), *self.runs["path"].to_pylist()})

    @property
    def records(self) -> int:
        return pc.sum(self.rows["records"]).as_py() or 0


def find_missing(archive: Archive) -> Missing:
    """The rows and runs whose objects do not exist.

    The version of the catalog is older than the list of objects, so that all objects of its rows existed.
    """
    catalog = archive.catalog
    runs = catalog.run_rows()
    runs = runs.filter(pc.is_valid(runs["path"]))
    folders = (*FOLDERS, "snapshots")
    there = pa.array([info.path for folder in folders for info in archive.storage.list(folder)], pa.string())
    last = last_snapshot_run(catalog.runs())
    gone = runs.filter(pc.invert(pc.is_in(runs["path"], value_set=there)))
    newest = last is not None and last.snapshot in gone["path"].to_pylist()
    found = [NO_ROWS]
    for rows in chain.from_iterable(catalog.portions_with_replaced(SCHEMA.names)):
        absent = pc.and_(pc.is_valid(rows["path"]), pc.invert(pc.is_in(rows["path"], value_set=there)))
        found.append(rows.filter(absent))
    return Missing(rows=pa.concat_tables(found), runs=gone, newest=newest)


def accept_missing(archive: Archive) -> str | None:
    """Make gaps `pruned` of what is missing; the id of the run, None if nothing is.

    RefusedError: the newest snapshot is missing, or a hold covers what is.
    """

    def taking() -> Taking | None:
        missing = find_missing(archive)
        if missing.newest:
            raise RefusedError(
                "the newest snapshot is missing",
                object_name=archive.url,
                hint="run 'maxbrod backup' first, which writes a new one; then repair the archive",
            )
        if not missing.rows.num_rows and not missing.runs.num_rows:
            return None
        holds = active_holds(archive)
        holders = holds.holders(missing.rows)
        if (holders >= 0).any():
            hold = holds.active[int(holders.max())]
            raise RefusedError(
                f"what is missing is held: {hold}",
                object_name=archive.url,
                hint="restore the objects from a copy or from older object versions, or release the hold",
            )
        return Taking(
            pruned=missing.rows,
            dropped=missing.runs if missing.runs.num_rows else NO_ROWS,
            statistics={
                "command": "check --repair",
                "segments": missing.rows.num_rows,
                "records": missing.records,
                "runs": missing.runs.num_rows,
                "exit_code": 0,
            },
            still_valid=lambda: active_holds(archive).active == holds.active,
        )

    taken = take(archive, taking, read_clocks(archive, ask_store=True, demand=False), grace_s=GRACE_S)
    return None if taken is None else taken.run_id
