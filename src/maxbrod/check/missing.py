"""Puts an archive in order from which something else has deleted objects, such as a lifecycle rule of a bucket.

Their offsets become gaps `pruned`, and runs whose snapshots are gone are no longer points in time. Only what is missing
is touched: what is damaged stays as it is. An undo document keeps the rows. If the objects come back, from a copy or
from older object versions, `prune --undo` brings the rows back.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.holds import active_holds
from maxbrod.archive.snapshots import last_snapshot_run
from maxbrod.archive.undo import Taking, take
from maxbrod.archive.upkeep import NO_ROWS, read_clocks
from maxbrod.catalog.schema import SCHEMA
from maxbrod.errors import RefusedError

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive

GRACE_S: Final = 30 * 24 * 3600
_FOLDERS: Final = ("packs", "segments", "snapshots")


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Rows and runs whose objects the store does not have."""

    rows: pa.Table
    """Rows of data, of kind data or replaced."""
    runs: pa.Table
    """Runs whose snapshots are gone."""
    newest: bool
    """Whether the newest snapshot is among what is gone."""

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
    there = pa.array(
        [info.path for folder in _FOLDERS for info in archive.storage.list(folder)],
        pa.string(),
    )
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
