"""Undo documents: the rows that a prune took away, kept for a grace period in which they can be brought back.

A document is the Parquet object `prunes/<run>-<nonce>.parquet` with the columns of the catalog. The prune's run names
it, and says until when. `gc` counts the objects in it as named until then. Afterwards document and objects are garbage.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from maxbrod.archive.archive import Archive
from maxbrod.archive.pruned import NEWEST, is_pruned, newest_pruned_ms, prune_rows, restore_rows
from maxbrod.archive.upkeep import NO_ROWS, Change, Clocks, commit_change, read_clocks
from maxbrod.catalog.commits import IDENTITY, absent_rows
from maxbrod.catalog.rows import Run
from maxbrod.catalog.schema import SCHEMA, SORT_ORDER, Kind
from maxbrod.catalog.validity import find_fault
from maxbrod.errors import CorruptDataError, MaxbrodError, ObjectNotFoundError, UsageError
from maxbrod.model import PartitionId
from maxbrod.storage.interface import Storage

PRUNES: Final = "prunes"
"""The folder of undo documents."""
UNDO: Final = "undo"
"""In the statistics of a run: the undo document."""
UNDO_UNTIL: Final = "undo_until_ms"
UNDOES: Final = "undoes"
"""In the statistics of a run: the run that it has undone."""
_PARTLY: Final = "undoes_in_part"
SLACK_MS: Final = 3600 * 1000
"""`gc` waits longer than an undo may begin: their clocks differ, and an undo takes time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taking:
    """The rows that a prune takes away."""

    pruned: pa.Table
    """Rows of data, live or of kind replaced: gaps `pruned` take their place."""
    dropped: pa.Table
    """Rows that go without a trace: runs, and rows of kind replaced that no run can reach."""
    statistics: Mapping[str, Any]
    still_valid: Callable[[], bool]
    """True if nothing but the rows of the catalog, on which it rests, has changed since: holds, for example."""


class Taken(NamedTuple):
    run_id: str
    undo_until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRun:
    """A prune that can be undone."""

    run_id: str
    finished_at: int
    document: str
    until_ms: int
    statistics: Mapping[str, Any]


def take(archive: Archive, plan: Callable[[], Taking | None], clocks: Clocks, *, grace_s: int) -> Taken | None:
    """Take rows out of the catalog and remember them; None if there was nothing to take.

    `plan` is called again if another writer commits meanwhile; it must read the catalog and the holds each time.
    """
    written: list[str] = []
    until_ms = 0

    def change(run_id: str) -> Change | None:
        nonlocal until_ms
        archive.storage.delete(written)
        written.clear()
        taking = plan()
        if taking is None:
            return None
        path = f"{PRUNES}/{run_id}-{secrets.token_hex(8)}.parquet"
        written.append(path)
        swap = prune_rows(
            taking.pruned, *_around(archive, taking.pruned), run_id=run_id, borders=_generation_borders(archive)
        )
        joined = swap.removed.filter(is_pruned(swap.removed))
        stream = pa.BufferOutputStream()
        remembered = pa.concat_tables([taking.pruned, taking.dropped, joined]).sort_by(SORT_ORDER)
        pq.write_table(remembered, stream, compression="zstd", write_page_checksum=True)
        with archive.storage.at_hand().create(path) as writer:
            writer.write(memoryview(stream.getvalue()))
        until_ms = clocks.after_ms(grace_s)
        undo: dict[str, Any] = {UNDO: path, UNDO_UNTIL: until_ms}
        if taking.pruned.num_rows:
            undo[NEWEST] = newest_pruned_ms(taking.pruned, joined, archive.catalog.runs())
        return Change(
            added=swap.added,
            removed=pa.concat_tables([swap.removed, taking.dropped]),
            statistics={**taking.statistics, **undo},
            still_valid=taking.still_valid,
        )

    run_id = commit_change(archive, change)
    return None if run_id is None else Taken(run_id, until_ms)


def _around(archive: Archive, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The live gaps `pruned` and the rows of kind replaced in the topics of these rows."""
    gaps, replaced = [NO_ROWS], [NO_ROWS]
    for live, dead in archive.catalog.portions_with_replaced(SCHEMA.names, topic_ids=_topics(rows)):
        gaps.append(live.filter(is_pruned(live)))
        replaced.append(dead)
    return pa.concat_tables(gaps), pa.concat_tables(replaced)


def _topics(rows: pa.Table) -> list[str]:
    """Runs have no topic."""
    topics: list[str] = rows["topic_id"].unique().drop_null().to_pylist()
    return topics


def _generation_borders(archive: Archive) -> dict[PartitionId, set[int]]:
    """The ends of generations under construction: rows of the archive must have a boundary there until it is active."""
    return {
        PartitionId(topic_id=topic_id, partition=partition): {target}
        for topic_id, topic in archive.catalog.generations().items()
        if topic.building is not None
        for partition, target in topic.building.targets.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoReport:
    """The rows that an undo brings back, and those that it cannot."""

    archive: str
    prune: str
    rows: int
    runs: int
    records: int
    bytes: int
    lost: tuple[str, ...]
    """Objects that are gone."""
    taken: int
    """Rows whose offsets something else has taken since."""
    applied: bool
    run_id: str | None = None


def undo_prune(archive: Archive, run_id: str | None = None, *, apply: bool = False) -> UndoReport:
    """Bring everything back that a prune took, by default the newest one. UsageError: there is none to undo.

    Rows whose objects are gone, or whose offsets something else has taken, stay away and are reported.
    """
    found: list[UndoReport] = []
    used: list[str] = []
    clocks = read_clocks(archive, ask_store=False, demand=False)

    def change(own_id: str) -> Change:
        prune = _chosen(undoable(archive.storage, archive.catalog.runs(), clocks), run_id)
        used[:] = [prune.document]
        document = read_document(archive.storage, prune.document)
        joined = is_pruned(document)
        coming, lost = _present(archive, _absent(archive, document.filter(pc.invert(joined))))
        is_run = pc.equal(coming["kind"], Kind.RUN)
        runs, rows = coming.filter(is_run), coming.filter(pc.invert(is_run))
        swap = restore_rows(
            rows, *_around(archive, rows), run_id=own_id, undone=prune.run_id, older=document.filter(joined)
        )
        back = swap.added.filter(pc.is_valid(swap.added["path"]))
        found[:] = [
            UndoReport(
                archive=archive.url,
                prune=prune.run_id,
                rows=rows.num_rows - swap.left.num_rows,
                runs=runs.num_rows,
                records=pc.sum(back["records"]).as_py() or 0,
                bytes=pc.sum(back["bytes"]).as_py() or 0,
                lost=tuple(lost),
                taken=swap.left.num_rows,
                applied=apply,
            )
        ]
        return Change(
            added=pa.concat_tables([swap.added, runs]),
            removed=swap.removed,
            # What is lost may be put back from a copy: then the undo can be repeated.
            statistics={"command": "prune --undo", (_PARTLY if lost else UNDOES): prune.run_id},
            # Runs alone would be added beside those of another undo; gaps can be taken only once.
            still_valid=(lambda: True) if swap.removed.num_rows else None,
        )

    if not apply:
        change("")
        return found[0]
    done = commit_change(archive, change)
    if not found[0].lost:
        # Nothing needs it any more. If the catalog is lost, the document must not tell that its rows are pruned.
        with suppress(MaxbrodError):
            archive.storage.delete(used)
    return replace(found[0], run_id=done)


def is_undone(run_id: str, runs: Iterable[Run]) -> bool:
    """True if the rows that a prune took are back, all or as many as could be."""
    return any(run_id in (run.statistics.get(UNDOES), run.statistics.get(_PARTLY)) for run in runs)


def undoable(storage: Storage, runs: Sequence[Run], clocks: Clocks, *, slack_ms: int = 0) -> list[PruneRun]:
    """Prunes within their grace period that were not undone, oldest first.

    A grace period counts from the prune's own clock or from the store's, which stamped the document: the later one.
    """
    undone = {run.statistics.get(UNDOES) for run in runs}
    prunes = [run for run in runs if run.statistics.get(UNDO) and run.run_id not in undone]
    # Documents are looked at only if their time may be over.
    over = [run for run in prunes if run.statistics[UNDO_UNTIL] <= clocks.object_ms - slack_ms]
    stamps = {info.path: info.modified_ms for info in storage.list(PRUNES)} if over else {}
    found: list[PruneRun] = []
    for run in prunes:
        document, until_ms = run.statistics[UNDO], run.statistics[UNDO_UNTIL]
        if run in over:
            if document not in stamps:
                continue
            until_ms = max(until_ms, until_ms + stamps[document] - run.finished_at)
        if until_ms > clocks.earliest_ms - slack_ms:
            found.append(
                PruneRun(
                    run_id=run.run_id,
                    finished_at=run.finished_at,
                    document=document,
                    until_ms=until_ms,
                    statistics=run.statistics,
                )
            )
    return found


def _chosen(prunes: Sequence[PruneRun], run_id: str | None) -> PruneRun:
    matching = [prune for prune in prunes if run_id is None or prune.run_id.startswith(run_id)]
    if not matching or (run_id is not None and len(matching) > 1):
        what = "no prune" if not matching else f"{len(matching)} prunes"
        raise UsageError(
            f"{what} of this archive can be undone" + ("" if run_id is None else f" that {run_id!r} names"),
            hint="a prune can be undone within its grace period, and once; see 'maxbrod ls --runs'",
        )
    return matching[-1]


def named_by_undo(storage: Storage, prunes: Iterable[PruneRun]) -> set[str]:
    """The undo documents of these prunes, and every object that they name.

    CorruptDataError: one cannot be read, so that it is unknown what it names.
    """
    found: set[str] = set()
    for prune in prunes:
        found.add(prune.document)
        found.update(path for path in read_document(storage, prune.document)["path"].to_pylist() if path is not None)
    return found


def _absent(archive: Archive, rows: pa.Table) -> pa.Table:
    """Rows that the catalog does not have: an undo that could not bring everything back may be repeated."""
    for there in archive.catalog.portions_with_replaced(IDENTITY, topic_ids=_topics(rows)):
        rows = absent_rows(rows, pa.concat_tables(there))
    return absent_rows(rows, archive.catalog.run_rows())


def _present(archive: Archive, rows: pa.Table) -> tuple[pa.Table, list[str]]:
    """Rows whose objects exist, and the paths of those that do not."""
    paths = {path for path in rows["path"].unique().to_pylist() if path is not None}
    folders = {"/".join(path.split("/")[: 2 if path.startswith("segments/") else 1]) for path in paths}
    there = {info.path for folder in sorted(folders) for info in archive.storage.list(folder)}
    lost = sorted(paths - there)
    gone = pc.is_in(rows["path"], value_set=pa.array(lost, pa.string()))
    return rows.filter(pc.invert(gone)), lost


def read_document(storage: Storage, path: str) -> pa.Table:
    """The rows of an undo document. CorruptDataError: it is missing or damaged."""
    try:
        data = storage.get(path)
        rows = pq.read_table(pa.BufferReader(pa.py_buffer(data)), page_checksum_verification=True)
        rows = rows.select(SCHEMA.names).cast(SCHEMA)
    except ObjectNotFoundError:
        raise _damaged(storage, path, "it is missing") from None
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise _damaged(storage, path, str(error)) from None
    fault = find_fault(rows)
    if fault is not None:
        raise _damaged(storage, path, f"{fault.column} of row {fault.row} {fault.complaint}")
    return rows


def _damaged(storage: Storage, path: str, why: str) -> CorruptDataError:
    return CorruptDataError(
        f"an undo document cannot be read: {why}",
        object_name=storage.name_of(path),
        hint="restore the object from a copy or an older object version; until its time is over, nothing is collected",
    )
