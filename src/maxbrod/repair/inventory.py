"""The inventory that a rebuild starts from: snapshots, the remains of the old catalog, undo documents, object names.

A prune leaves its objects in place for a grace period. Only its undo document, or rows of the old catalog, tell that
they are no longer part of the archive: a rebuild must not bring them back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.erasures import Erasures, read_erasures
from maxbrod.archive.snapshot_document import Snapshot, decode
from maxbrod.archive.snapshots import read_snapshot
from maxbrod.archive.undo import PRUNES, UNDO, UNDO_UNTIL, is_undone, read_document
from maxbrod.catalog.codec import LEDGER_ID, Table
from maxbrod.catalog.ledger import SliceKey, documents_in, read_ledger, slice_keys, version_of
from maxbrod.catalog.remains import CatalogRemains, next_version, read_remains, stream_transactions
from maxbrod.catalog.replaced import REVISION_COLUMNS, count_revisions, revisions_of, revive
from maxbrod.catalog.rows import Gap, Run, Segment, decode_rows, slice_of
from maxbrod.catalog.schema import Kind
from maxbrod.errors import EXIT_CORRUPT, EXIT_INCOMPLETE, CorruptDataError, UnsupportedFormatError
from maxbrod.model import GapReason, PartitionId, now_ms
from maxbrod.notices import Notice
from maxbrod.repair.examine import ObjectToExamine
from maxbrod.repair.plan.rebuild import KnownRun, RepairEvidence
from maxbrod.repair.plan.slices import FoundSlice, LostRange, PrunedRange, place_of
from maxbrod.storage.interface import ObjectInfo, Storage
from maxbrod.text import counted

FOLDERS: Final = ("segments", "packs")
_READERS: Final = 8
_STREAM: Final = "maxbrod-stream-"
_GRACE_MS: Final = 7 * 24 * 3600 * 1000
"""The time that a prune can be undone whose own grace period is not known any more."""
_NONCE_CHARACTERS: Final = 17
_SUFFIX: Final = ".parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    objects: list[ObjectToExamine]
    evidence: RepairEvidence
    """Without slices, which the objects tell."""
    other_runs: list[Run]
    """Runs without a snapshot that rows of the old catalog name."""
    dropped_runs: set[str]
    """Runs that were pruned."""
    transactions: dict[str, int]
    generations: pa.Table
    """Rows of kind generations, as the ledger has them."""
    version: int
    """That of the new catalog."""
    has_old_catalog: bool
    notices: list[Notice]
    unknown: list[str]
    """The facts that a rebuild cannot know."""

    @property
    def known_runs(self) -> list[Run]:
        return [*(known.run for known in self.evidence.runs), *self.other_runs]


def take_inventory(storage: Storage, table: Table | None = None) -> Inventory:
    """Return what a rebuild starts from. `table` is the catalog, if its log can be read."""
    remains = read_remains(storage)
    replaced = _of_kind(remains.rows, Kind.REPLACED)
    rows = decode_rows(revive(replaced)) + decode_rows(_of_kind(remains.rows, Kind.DATA, Kind.GAP, Kind.RUN))
    # The newest document counts, unless the catalog shows that its commit never was.
    newest = max((version_of(number) for _, number in documents_in(storage)), default=0)
    ledger = read_ledger(storage, last=None if table is None or newest > table.log.version else table.ledger)
    settled = _data_of(_of_kind(ledger.rows, Kind.DATA, Kind.GAP))
    ledger_replaced = _of_kind(ledger.rows, Kind.REPLACED)
    before = _data_of(revive(ledger_replaced))
    segments = list({_key(row): row for row in (*rows, *settled, *before) if isinstance(row, Segment)}.values())
    listed = [info for folder in FOLDERS for info in storage.list(folder)]
    paths, known = {info.path for info in listed}, _known_slices(segments)
    notices: list[Notice] = []
    old_runs = {row.run_id: row for row in rows if isinstance(row, Run)}
    runs = _runs(storage, old_runs, notices)
    prunes = find_prunes(storage, [row for row in rows if isinstance(row, Gap)], old_runs)
    other_runs = [*_other_runs(old_runs, runs, notices), *prunes.runs]
    commits = [run.commit for run in (*(known_run.run for known_run in runs), *other_runs) if run.commit is not None]
    return Inventory(
        objects=[
            ObjectToExamine(
                path=info.path, size=info.size, modified_ms=info.modified_ms, known=tuple(known.get(info.path, ()))
            )
            for info in listed
            if info.path.endswith((".log", ".log.zst"))
        ],
        evidence=RepairEvidence(
            lost=[_missing(row) for row in segments if row.path not in paths],
            runs=runs,
            gaps=_gaps(
                (row for row in rows if isinstance(row, Gap) and row.run_id not in prunes.undone),
                read_erasures(storage),
            ),
            revisions=count_revisions(pa.concat_tables([replaced, ledger_replaced]).select(REVISION_COLUMNS)),
            compacted=frozenset(topic_id for run in runs for topic_id in _compacted(run.snapshot)),
            pruned=prunes.ranges,
            pruned_slices=prunes.slices,
            sure=ledger.complete and not ledger.unreadable,
            settled=settled,
            replaced=list(zip(before, revisions_of(ledger_replaced), strict=True)),
            retired=ledger.gone | slice_keys(_of_kind(ledger.rows, Kind.REPLACED, Kind.BUILDING)) | remains.retired,
        ),
        other_runs=other_runs,
        dropped_runs=prunes.dropped_runs,
        transactions=_transactions(remains, runs, ledger.last),
        generations=_of_kind(ledger.rows, Kind.GENERATIONS),
        version=next_version(remains.version, max((*commits, version_of(ledger.last) or -1))),
        has_old_catalog=bool(remains.objects),
        notices=[*notices, *map(_unreadable_document, ledger.unreadable), *prunes.notices],
        unknown=_unknown(remains, runs, other_runs),
    )


def _of_kind(rows: pa.Table, *kinds: Kind) -> pa.Table:
    return rows.filter(pc.is_in(rows["kind"], value_set=pa.array(map(str, kinds), pa.string())))


def _data_of(rows: pa.Table) -> list[Segment | Gap]:
    return [row for row in decode_rows(rows) if not isinstance(row, Run)]


def _key(row: Segment) -> SliceKey:
    return row.path, row.position, row.base_offset, row.end_offset


def _unreadable_document(path: str) -> Notice:
    return Notice(
        kind="ledger",
        message=f"{path} cannot be read: what its commit replaced may be in the catalog again",
        hint="restore it from a copy or an older object version, and run the repair again",
        exit_code=EXIT_INCOMPLETE,
    )


def _known_slices(segments: Iterable[Segment]) -> dict[str, list[FoundSlice]]:
    """Return what rows say of each object; of rows about the same bytes the one that was written last."""
    found: dict[str, dict[int, FoundSlice]] = defaultdict(dict)
    for row in sorted(segments, key=lambda row: row.written_at):
        # A row has only the first and the last epoch; in between, the last counts from its last offset.
        epochs = ((row.base_offset, row.first_leader_epoch), (row.end_offset - 1, row.last_leader_epoch))
        found[row.path][row.position] = FoundSlice(
            **place_of(row),
            slice=slice_of(row),
            epochs=epochs[: 1 if row.first_leader_epoch == row.last_leader_epoch else 2],
            modified_ms=row.written_at,
            run_id=row.run_id,
            written_at=row.written_at,
            level=row.level,
            reason=None if row.reason is None else str(row.reason),
        )
    return {path: list(slices.values()) for path, slices in found.items()}


def _missing(row: Segment) -> LostRange:
    return LostRange(
        **place_of(row),
        base=row.base_offset,
        end=row.end_offset,
        path=row.path,
        message="the object is not there",
        missing=True,
    )


def _gaps(gaps: Iterable[Gap], erasures: Erasures) -> dict[PartitionId, list[tuple[int, int, GapReason]]]:
    found: dict[PartitionId, list[tuple[int, int, GapReason]]] = defaultdict(list)
    for row in sorted(gaps, key=lambda row: row.written_at):
        place = PartitionId(topic_id=row.topic_id, partition=row.partition)
        found[place].append((row.base_offset, row.end_offset, row.reason))
    for place, first, end in erasures.ranges():
        found[place].append((first, end, GapReason.ERASED))
    return dict(found)


# Snapshots


def _runs(storage: Storage, rows: Mapping[str, Run], notices: list[Notice]) -> list[KnownRun]:
    """Every run whose snapshot can be read, in the order of commits."""
    listed = [info for info in storage.list("snapshots") if info.path.endswith(".json.zst")]

    def read(info: ObjectInfo) -> Snapshot | Notice:
        try:
            return decode(bytes(storage.get(info.path)), object_name=storage.name_of(info.path))
        except (CorruptDataError, UnsupportedFormatError) as error:
            message = f"the snapshot {info.path} cannot be read, so its run is lost: {error.message}"
            return Notice(kind="snapshot", message=message, exit_code=EXIT_INCOMPLETE)

    with ThreadPoolExecutor(_READERS) as pool:
        answers = list(pool.map(read, listed))
    found = []
    for info, answer in zip(listed, answers, strict=True):
        if isinstance(answer, Notice):
            notices.append(answer)
        else:
            run = rows.get(answer.run_id) or _run_of(info, answer)
            found.append(KnownRun(run=run, snapshot=answer, modified_ms=info.modified_ms))
    found += _sharing(storage, found, rows, notices)

    def order(known: KnownRun) -> tuple[int, int, str]:
        run = known.run
        return -1 if run.commit is None else run.commit, run.finished_at, run.run_id

    return sorted(found, key=order)


def _sharing(
    storage: Storage, known: Sequence[KnownRun], rows: Mapping[str, Run], notices: list[Notice]
) -> list[KnownRun]:
    """Runs that share the snapshot of an earlier run: a later snapshot has their rows, or the old catalog has."""
    there = {known_run.run.run_id for known_run in known}
    times = {known_run.run.snapshot: known_run.modified_ms for known_run in known}
    told = {str(run["run_id"]): run for one in known for run in one.snapshot.runs}
    runs = [rows[name] if name in rows else Run(**run) for name, run in told.items()]
    runs += [run for name, run in rows.items() if name not in told and run.snapshot_changes]
    found = []
    for run in runs:
        if run.run_id in there or run.snapshot not in times:
            continue
        try:
            snapshot = read_snapshot(storage, run)
        except (CorruptDataError, UnsupportedFormatError) as error:
            message = f"the changes that run {run.run_id} made to its snapshot cannot be read: {error.message}"
            notices.append(Notice(kind="snapshot", message=message, exit_code=EXIT_INCOMPLETE))
            continue
        found.append(KnownRun(run=run, snapshot=snapshot, modified_ms=max(times[run.snapshot], run.written_at)))
    return found


def _other_runs(rows: Mapping[str, Run], known: Iterable[KnownRun], notices: list[Notice]) -> list[Run]:
    """Runs that rows of the old catalog name and that have no snapshot, or have lost it."""
    there = {known_run.run.run_id for known_run in known}
    others = [run for run in rows.values() if run.run_id not in there]
    for run in others:
        if run.snapshot is not None:
            message = f"the snapshot of run {run.run_id} is missing or damaged: the run is listed without it"
            notices.append(Notice(kind="snapshot", message=message, exit_code=EXIT_INCOMPLETE))
    return [replace(run, snapshot=None) for run in others]


def _run_of(info: ObjectInfo, snapshot: Snapshot) -> Run:
    facts = snapshot.run
    return Run(
        run_id=snapshot.run_id,
        started_at=snapshot.taken_at_ms if facts is None else facts.started_at,
        finished_at=snapshot.taken_at_ms if facts is None else facts.finished_at,
        snapshot=info.path,
        statistics={} if facts is None else facts.statistics,
        written_at=info.modified_ms if facts is None else facts.finished_at,
        commit=None if facts is None else facts.commit,
    )


def _compacted(snapshot: Snapshot) -> set[str]:
    carried = [topic.get("topic", {}) for topic in (snapshot.carried or {}).get("topics", ())]
    topics: list[Any] = [*snapshot.cluster.get("topics", ()), *carried]
    return {
        topic["topic_id"]
        for topic in topics
        if "compact" in ((topic.get("effective") or {}).get("cleanup.policy") or "")
    }


def _transactions(remains: CatalogRemains, runs: Iterable[KnownRun], document: int) -> dict[str, int]:
    """The last batch of each stream that writes into the archive, so that Spark repeats none; and the last document."""
    found = stream_transactions(remains)
    if document:
        found[LEDGER_ID] = document
    for run in runs:
        stream, batch = run.run.statistics.get("stream"), run.run.statistics.get("batch")
        if isinstance(stream, str) and isinstance(batch, int):
            name = f"{_STREAM}{stream}"
            found[name] = max(batch, found.get(name, 0))
    return found


def _unknown(remains: CatalogRemains, runs: Iterable[KnownRun], other_runs: Iterable[Run]) -> list[str]:
    unknown = ["which generation of a compacted topic was under construction: the next backup begins another"]
    if remains.rows.num_rows == 0:
        unknown.append("runs that recorded no snapshot, such as compactions: they are not listed any more")
    known = {known.run.run_id for known in runs} | {run.run_id for run in other_runs}
    unknown += [
        f"whether run {run_id} was committed, because no entry of the log that can be read says so: it is not listed, "
        "and what it merged or compacted may be as it was before"
        for run_id in sorted(remains.doubtful_runs - known)
    ]
    if any(known.run.commit is None for known in runs):
        unknown.append("the order of runs of older releases: they are ordered by their clocks")
    return unknown


@dataclass(slots=True, kw_only=True)
class Prunes:
    """Offsets, slices and runs that were pruned, as undo documents and the old catalog tell it."""

    ranges: list[PrunedRange] = field(default_factory=list)
    slices: set[tuple[str, int]] = field(default_factory=set)
    """Path and position of slices that were pruned."""
    dropped_runs: set[str] = field(default_factory=set)
    runs: list[Run] = field(default_factory=list)
    """Rows of prunes that no row of the old catalog names, so that they can be undone and `gc` keeps their objects."""
    undone: set[str] = field(default_factory=set)
    notices: list[Notice] = field(default_factory=list)

    def add(self, rows: pa.Table, at_ms: int) -> None:
        names = ("kind", "path", "position", "run_id", "topic", "topic_id", "partition", "base_offset", "end_offset")
        for kind, path, position, run_id, *place in zip(*(rows[name].to_pylist() for name in names), strict=True):
            if kind == Kind.RUN:
                self.dropped_runs.add(run_id)
            elif path is not None:
                self.slices.add((path, position))
                topic, topic_id, partition, base, end = place
                self.ranges.append(
                    PrunedRange(
                        topic=topic,
                        topic_id=topic_id,
                        partition=partition,
                        base=base,
                        end=end,
                        at_ms=at_ms if kind == Kind.DATA else None,
                    )
                )

    def add_doubtful_run(self, run_id: str, info: ObjectInfo, records: int) -> None:
        """Add the run that wrote an undo document before its commit: a prune that was killed in between left it too."""
        until = max(now_ms(), info.modified_ms) + _GRACE_MS
        self.runs.append(
            Run(
                run_id=run_id,
                started_at=info.modified_ms,
                finished_at=info.modified_ms,
                snapshot=None,
                statistics={"command": "prune", "records": records, UNDO: info.path, UNDO_UNTIL: until},
                written_at=info.modified_ms,
            )
        )
        message = (
            f"{counted(records, 'record', 'became a gap', 'became gaps')} 'pruned', "
            f"because the undo document of run {run_id} names them; nothing tells whether that run ended"
        )
        hint = f"if they were not to be pruned: 'maxbrod prune --undo {run_id} --apply', within 7 days"
        self.notices.append(Notice(kind="pruned", message=message, hint=hint, exit_code=EXIT_INCOMPLETE))


def find_prunes(storage: Storage, gaps: Iterable[Gap], runs: Mapping[str, Run]) -> Prunes:
    """Return what was pruned. `gaps` and `runs` are of the old catalog, as far as it can be read."""
    found = Prunes(undone={run_id for run_id in runs if is_undone(run_id, runs.values())})
    for row in gaps:
        by = runs.get(row.run_id)
        if row.reason is GapReason.PRUNED and by is not None and row.run_id not in found.undone:
            found.ranges.append(
                PrunedRange(**place_of(row), base=row.base_offset, end=row.end_offset, at_ms=by.finished_at)
            )
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
            found.notices.append(Notice(kind="pruned", message=message, hint="prune again", exit_code=EXIT_CORRUPT))
            continue
        found.add(rows, info.modified_ms)
        if known is None:
            found.add_doubtful_run(run_id, info, pc.sum(rows["records"]).as_py() or 0)
    return found
