"""Plans a copy: which objects the target lacks, what proves each of them, and its storage class. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from maxbrod.catalog.queries import SLICE_COLUMNS, hash_paths
from maxbrod.layouts.kafka.format import is_framed, pack_path, run_of_pack
from maxbrod.option_values import parse_seconds

ABSENT: Final = -1
_ROWS_AT_ONCE: Final = 1 << 16
_IDENTITY: Final = (
    *("topic_id", "partition", "base_offset", "end_offset", "kind", "reason", "digest", "raw_bytes", "run_id"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePlace:
    """Bytes of an object, and the digest that they must have."""

    position: int
    bytes: int
    digest: str

    @property
    def end(self) -> int:
        return self.position + self.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectToCopy:
    """An object of the source that the target lacks."""

    path: str
    slices: tuple[SlicePlace, ...] = ()
    """The slices that rows name, in order; none of a document."""
    storage_class: str | None = None
    damaged_there: bool = False
    """True if the target has an object of this name that is too short."""
    pack: str | None = None
    """The pack of the source, if only these slices of it are copied, into an object of their own."""

    @property
    def bytes(self) -> int:
        """The bytes that the rows know of. The object may have a few more."""
        if self.pack is not None:
            return sum(place.bytes for place in self.slices)
        return max((place.end for place in self.slices), default=0)


class ListedObjects:
    """The sizes of listed objects, in 16 bytes for each: an archive may have millions of them."""

    def __init__(self) -> None:
        self._new: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._names: NDArray[np.int64] = np.empty(0, np.int64)
        self._sizes: NDArray[np.int64] = np.empty(0, np.int64)

    def add(self, paths: Sequence[str], sizes: Sequence[int]) -> None:
        """A later size of the same name counts."""
        self._new.append((hash_paths(paths), np.asarray(sizes, np.int64)))

    def __len__(self) -> int:
        self._settle()
        return len(self._names)

    def sizes(self, paths: Sequence[str]) -> NDArray[np.int64]:
        """The size of each; ABSENT if it was not listed."""
        self._settle()
        wanted = hash_paths(paths)
        places = np.minimum(np.searchsorted(self._names, wanted), max(len(self._names) - 1, 0))
        if not len(self._names):
            return np.full(len(wanted), ABSENT, np.int64)
        return np.where(self._names[places] == wanted, self._sizes[places], ABSENT)

    def _settle(self) -> None:
        if not self._new:
            return
        names = np.concatenate([self._names, *(names for names, _ in self._new)])
        sizes = np.concatenate([self._sizes, *(sizes for _, sizes in self._new)])
        order = np.argsort(names, kind="stable")
        names, sizes = names[order], sizes[order]
        last = np.append(names[1:] != names[:-1], True)[: len(names)]
        self._names, self._sizes, self._new = names[last], sizes[last], []


def lacking_rows(rows: pa.Table, there: ListedObjects) -> pa.Table:
    """The slices that the target does not have, or has no whole object for, with the size that it has (`there`)."""
    sizes = there.sizes(rows["path"].to_pylist())
    ends = rows["position"].to_numpy() + rows["bytes"].to_numpy()
    found = rows.append_column("there", pa.array(sizes))
    return found.filter(pa.array(sizes < ends))


def objects_in(rows: pa.Table, classes: Mapping[str, str], *, now_ms: int) -> Iterator[ObjectToCopy]:
    """The objects of these slices, by path."""
    ages = sorted(((_seconds(age), name) for age, name in classes.items()), reverse=True)
    rows = rows.sort_by([("path", "ascending"), ("position", "ascending")])
    pieces = (rows.slice(start, _ROWS_AT_ONCE).to_pylist() for start in range(0, rows.num_rows, _ROWS_AT_ONCE))
    for path, group in groupby((row for piece in pieces for row in piece), key=lambda row: row["path"]):
        found = list(group)
        # Rows of two kinds may name one slice.
        places = dict.fromkeys((row["position"], row["bytes"], row["digest"]) for row in found)
        newest_ms = max(_newest_ms(row) for row in found)
        yield ObjectToCopy(
            path=path,
            slices=tuple(SlicePlace(position=start, bytes=size, digest=digest) for start, size, digest in places),
            storage_class=next((name for age_s, name in ages if now_ms - newest_ms >= age_s * 1000), None),
            damaged_there=found[0]["there"] != ABSENT,
        )


def differing_rows(source: pa.Table, target: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows of the source that the target lacks, and those of the target that the source does not have.

    Slices are the same if their bytes are: a pack of the target has only what was chosen.
    """
    mine, theirs = _identities(source), _identities(target)
    known, wanted = set(theirs), set(mine)
    return (
        source.filter(pa.array([key not in known for key in mine], pa.bool_())),
        target.filter(pa.array([key not in wanted for key in theirs], pa.bool_())),
    )


def _identities(rows: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in _IDENTITY), strict=True))


def cut_packs(rows: pa.Table) -> pa.Table:
    """The rows as the target has them: slices of a pack are in a pack of their own, one after the other."""
    paths, positions, sizes = (rows[name].to_pylist() for name in ("path", "position", "bytes"))
    by_pack: dict[str, list[int]] = {}
    for number, path in enumerate(paths):
        if path is not None and run_of_pack(path) is not None:
            by_pack.setdefault(path, []).append(number)
    for path, numbers in by_pack.items():
        numbers.sort(key=lambda number: positions[number])
        # The same slices get the same name: a copy that was killed goes on.
        named = hashlib.sha256(repr((path, [positions[number] for number in numbers])).encode())
        cut = pack_path(run_id=run_of_pack(path) or "", nonce=named.hexdigest()[:16], framed=is_framed(path))
        start = 0
        for number in numbers:
            paths[number], positions[number] = cut, start
            start += sizes[number]
    columns = {"path": pa.array(paths, pa.string()), "position": pa.array(positions, pa.int64())}
    for name, column in columns.items():
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), column)
    return rows


def objects_of_chosen(
    rows: pa.Table, cut: pa.Table, there: ListedObjects, classes: Mapping[str, str], *, now_ms: int
) -> list[ObjectToCopy]:
    """The objects that the target lacks for these rows of the source, which are `cut` there."""
    is_slice = pc.is_valid(cut["digest"])
    rows, cut = rows.filter(is_slice).select(SLICE_COLUMNS), cut.filter(is_slice).select(SLICE_COLUMNS)
    lacking = {item.path: item for item in objects_in(lacking_rows(cut, there), classes, now_ms=now_ms)}
    sources: dict[str, tuple[str, list[SlicePlace]]] = {}
    for name, path, position, size, digest in zip(
        cut["path"].to_pylist(), *(rows[name].to_pylist() for name in SLICE_COLUMNS[:4]), strict=True
    ):
        if name in lacking:
            places = sources.setdefault(name, (path, []))[1]
            places.append(SlicePlace(position=position, bytes=size, digest=digest))
    return [
        item
        if (pack := sources[item.path][0]) == item.path
        else replace(item, pack=pack, slices=tuple(sorted(sources[item.path][1], key=attrgetter("position"))))
        for item in lacking.values()
    ]


def _newest_ms(row: Mapping[str, int | None]) -> int:
    """When its newest record was written, as far as is known: never later than the row was."""
    lowest, highest, written = row["min_timestamp"], row["max_timestamp"], row["written_at"] or 0
    # A row whose times contradict each other has none.
    if highest is None or (lowest is not None and highest < lowest):
        return written
    return min(highest, written)


def _seconds(age: str) -> float:
    seconds = parse_seconds(age)
    return float(seconds) if isinstance(seconds, int | float) else 0.0
