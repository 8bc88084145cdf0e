"""What was pruned, as undo documents and the old catalog tell it: a rebuild must not bring it back.

A prune leaves its objects in place for a grace period. Only its undo document, or rows of the old catalog, tell that
they are no longer part of the archive.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from maxbrod.archive.pruned import places_of
from maxbrod.archive.undo import PRUNES, UNDO, UNDO_UNTIL, is_undone, read_document
from maxbrod.catalog.rows import Gap, Run
from maxbrod.catalog.schema import Kind
from maxbrod.errors import EXIT_CORRUPT, EXIT_INCOMPLETE, CorruptDataError
from maxbrod.model import GapReason, PartitionId, now_ms
from maxbrod.notices import Notice
from maxbrod.repair.plan.found import PrunedRange
from maxbrod.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from maxbrod.storage.interface import ObjectInfo, Storage

_GRACE_MS: Final = 7 * 24 * 3600 * 1000
"""How long a prune can be undone whose own grace period is not known any more."""
_NONCE_CHARACTERS: Final = 17
_SUFFIX: Final = ".parquet"


@dataclass(slots=True, kw_only=True)
class Prunes:
    ranges: list[PrunedRange] = field(default_factory=list)
    slices: set[tuple[str, int]] = field(default_factory=set)
    """Path and position of slices that were pruned."""
    dropped_runs: set[str] = field(default_factory=set)
    runs: list[Run] = field(default_factory=list)
    """Rows of prunes that no row of the old catalog names, so that they can be undone and `gc` keeps their objects."""
    undone: set[str] = field(default_factory=set)
    notices: list[Notice] = field(default_factory=list)


def find_prunes(storage: Storage, gaps: Iterable[Gap], runs: Mapping[str, Run]) -> Prunes:
    """`gaps` and `runs` are of the old catalog, as far as it can be read."""
    found = Prunes(undone={run_id for run_id in runs if is_undone(run_id, runs.values())})
    for row in gaps:
        by = runs.get(row.run_id)
        if row.reason is GapReason.PRUNED and by is not None and row.run_id not in found.undone:
            place = PartitionId(topic_id=row.topic_id, partition=row.partition)
            found.ranges.append(PrunedRange(place, row.topic, row.base_offset, row.end_offset, by.finished_at))
    for info in storage.list(PRUNES):
        run_id = info.path.removeprefix(f"{PRUNES}/").removesuffix(_SUFFIX)[:-_NONCE_CHARACTERS]
        known = runs.get(run_id)
        # A prune that was overtaken writes another document; the one that its run names counts.
        other = known is not None and known.statistics.get(UNDO) != info.path
        if not info.path.endswith(_SUFFIX) or run_id in found.undone or other:
            continue
        try:
            rows = read_document(storage, info.path)
        except CorruptDataError as error:
            message = f"what run {run_id} pruned is in the catalog again, if its objects exist: {error.message}"
            hint = "prune again"
            found.notices.append(Notice(kind="pruned", message=message, hint=hint, exit_code=EXIT_CORRUPT))
            continue
        _add(found, rows, info)
        if known is None:
            found.runs.append(_run_of(run_id, info, rows))
            found.notices.append(_doubt(run_id, rows))
    return found


def _add(found: Prunes, rows: pa.Table, info: ObjectInfo) -> None:
    kinds = rows["kind"].to_pylist()
    names = ("topic", "base_offset", "end_offset", "path", "position", "run_id")
    values = zip(kinds, places_of(rows), *(rows[name].to_pylist() for name in names), strict=True)
    for kind, place, topic, base, end, path, position, run_id in values:
        if kind == Kind.RUN:
            found.dropped_runs.add(run_id)
        elif path is not None:
            found.slices.add((path, position))
            live = kind == Kind.DATA
            found.ranges.append(PrunedRange(place, topic, base, end, info.modified_ms if live else None))


def _run_of(run_id: str, info: ObjectInfo, rows: pa.Table) -> Run:
    return Run(
        run_id=run_id,
        started_at=info.modified_ms,
        finished_at=info.modified_ms,
        snapshot=None,
        statistics={
            "command": "prune",
            "records": pc.sum(rows["records"]).as_py() or 0,
            UNDO: info.path,
            UNDO_UNTIL: max(now_ms(), info.modified_ms) + _GRACE_MS,
        },
        written_at=info.modified_ms,
    )


def _doubt(run_id: str, rows: pa.Table) -> Notice:
    """The document is written before the commit: a prune that was killed in between left it too."""
    records = pc.sum(rows["records"]).as_py() or 0
    message = (
        f"{counted(records, 'record', 'became a gap', 'became gaps')} 'pruned', "
        f"because the undo document of run {run_id} names them; nothing tells "
        "whether that run ended"
    )
    hint = f"if they were not to be pruned: 'maxbrod prune --undo {run_id} --apply', within 7 days"
    return Notice(kind="pruned", message=message, hint=hint, exit_code=EXIT_INCOMPLETE)
