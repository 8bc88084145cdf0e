"""Takes lost and damaged objects out of a catalog that can be read: their offsets become gaps `corrupt`.

Never silently: every gap has a notice, and the next backup reads such offsets again. Sound batches at the start of a
damaged slice are copied into a new object first. A generation under construction that lacks an object is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.commits import commit_with_retries
from maxbrod.catalog.generations import GenerationChanges, encode_generations
from maxbrod.catalog.replaced import as_replaced, revisions_of, revive
from maxbrod.catalog.rows import SLICE_FIELDS, Gap, Segment, decode_rows, encode_rows, slice_of
from maxbrod.catalog.schema import SCHEMA, Kind
from maxbrod.check.deep import verify_slices
from maxbrod.check.objects import LackingObjects, NeededObjects, complaint
from maxbrod.errors import RefusedError
from maxbrod.layouts.kafka.format import Slice
from maxbrod.model import GapReason, now_ms
from maxbrod.notices import Notice
from maxbrod.repair.examine import RepairWork, salvage_slices
from maxbrod.repair.plan.rebuild import lost_notices
from maxbrod.repair.plan.slices import LostRange, place_of
from maxbrod.repair.report import Action, RepairReport, gaps_by_reason
from maxbrod.work.windows import spread

_COUNT_COLUMNS: Final = ("topic_id", "partition", "kind", "details", "path", "position", "bytes")
"""The columns that are needed to count lost slices, but not to name them."""

_WHY = "objects of it are lost or damaged"


@dataclass(frozen=True, slots=True)
class _Bad:
    """A slice that is lost or damaged."""

    row: Segment
    live: bool
    """False: a replaced row, which only queries as of an older run return."""
    message: str
    exists: bool

    @property
    def lost(self) -> LostRange:
        row = self.row
        return LostRange(
            **place_of(row),
            base=row.base_offset,
            end=row.end_offset,
            path=row.path,
            message=self.message if self.live else f"{self.message} (needed only as of an earlier run)",
            slice=slice_of(row) if self.exists else None,
            missing=not self.exists,
        )


class SliceSums:
    """The objects of all slices, live or replaced, which are looked for in the store."""

    def __init__(self) -> None:
        self.objects = NeededObjects(narrow=False)
        self.live_bytes = 0

    def add(self, live: pa.Table, replaced: pa.Table) -> None:
        self.objects.add(live)
        self.objects.add(replaced)
        self.live_bytes += pc.sum(live["bytes"]).as_py() or 0


class Notices:
    """Notices of lost objects: the first of them or all, each of which may be told at once."""

    def __init__(self, kept_max: int | None = None, on_notice: Callable[[Notice], None] | None = None) -> None:
        self._kept_max, self._on_notice = kept_max, on_notice
        self.kept: list[Notice] = []

    @property
    def room(self) -> int | None:
        """The number of further slices to look at; None: all."""
        return None if self._kept_max is None or self._on_notice is not None else self._kept_max - len(self.kept)

    def add(self, bad: _Bad, *, unfinished: bool = False) -> None:
        for notice in lost_notices([bad.lost]):
            if unfinished:
                notice = replace(  # noqa: PLW2901 - the same notice, if only a generation under construction needs it
                    notice,
                    message=f"{notice.message} (needed only by a generation under construction)",
                    hint="that generation is dropped, the active one stays, and the next backup begins another",
                )
            if self._on_notice is not None:
                self._on_notice(notice)
            if self._kept_max is None or len(self.kept) < self._kept_max:
                self.kept.append(notice)


def take_out(repair: RepairWork, catalog: Catalog, needed: SliceSums, notices: Notices) -> RepairReport:
    """Find bad objects, and with `apply` commit gaps in their place."""
    options = repair.work.config.repair
    repair.work.tell("listing objects")
    building = catalog.building()
    needed.objects.add(building)
    lacking = needed.objects.lacking(repair.storage)
    # A repair that only reports needs no values, and there may be millions of rows: then few are decoded.
    losses = _find_absent(catalog, building, lacking, notices, all_decoded=options.apply or options.deep)
    if options.deep:
        losses = _find_damaged(repair, catalog, building, losses, notices)
    for bad in losses.unfinished:
        notices.add(bad, unfinished=True)
    report = RepairReport(
        archive=repair.storage.url,
        run_id=repair.context.run_id,
        action=Action.TAKEN_OUT if losses else Action.NONE,
        applied=options.apply and bool(losses),
        problem=None,
        version=catalog.version,
        topics=len({topic_id for topic_id, _ in losses.partitions}),
        partitions=len(losses.partitions),
        rows=losses.rows,
        generations=len(losses.dropped),
        objects=lacking.objects,
        bytes=needed.live_bytes if options.deep else 0,
        notices=tuple(notices.kept),
    )
    return _apply(repair, catalog, losses, report) if report.applied else report


@dataclass(frozen=True, slots=True, kw_only=True)
class _Losses:
    """The slices that are lost or damaged."""

    bad: Sequence[_Bad]
    """Empty if they are only counted."""
    unfinished: Sequence[_Bad]
    """Those of generations under construction."""
    rows: int
    partitions: Collection[tuple[str, int]]

    @property
    def dropped(self) -> set[str]:
        """The topics whose generation under construction is dropped."""
        return {bad.row.topic_id for bad in self.unfinished}

    def __bool__(self) -> bool:
        return bool(self.rows or self.unfinished)


def _find_absent(
    catalog: Catalog, building: pa.Table, lacking: LackingObjects, notices: Notices, *, all_decoded: bool
) -> _Losses:
    """Find the slices whose objects are missing or cut, without reading any."""
    unfinished = [
        bad
        for slices, sizes in (lacking.select(building) if lacking else ())
        for bad in _decoded(slices, sizes, live=True, count=None)
    ]
    found: list[_Bad] = []
    for live, slices, sizes in _absent(catalog, lacking, SCHEMA.names):
        for bad in _decoded(slices, sizes, live=live, count=None if all_decoded else notices.room):
            notices.add(bad)
            found += [bad] if all_decoded else []
        if not all_decoded and notices.room == 0:
            break
    count = 0
    partitions: set[tuple[str, int]] = set()
    for _, slices, sizes in _absent(catalog, lacking, _COUNT_COLUMNS):
        count += len(sizes)
        partitions.update(zip(slices["topic_id"].to_pylist(), slices["partition"].to_pylist(), strict=True))
    return _Losses(bad=found, unfinished=unfinished, rows=count, partitions=partitions)


def _find_damaged(
    repair: RepairWork, catalog: Catalog, building: pa.Table, absent: _Losses, notices: Notices
) -> _Losses:
    """Read every slice that is there, and add those whose bytes are not what was written."""
    known = {_identity(bad.row, live=bad.live) for bad in absent.bad}
    segments = (
        (row, live)
        for live, table in _portions(catalog, SCHEMA.names)
        for row in decode_rows(table)
        if isinstance(row, Segment)
    )
    present = [(row, live) for row, live in segments if _identity(row, live=live) not in known]
    damaged = _damaged(repair, present)
    for bad in damaged:
        notices.add(bad)
    known = {_identity(bad.row, live=True) for bad in absent.unfinished}
    rows = [row for row in decode_rows(building) if isinstance(row, Segment)]
    present = [(row, True) for row in rows if _identity(row, live=True) not in known]
    unfinished = _damaged(repair, present) if present else []
    every = [*absent.bad, *damaged]
    return _Losses(
        bad=every,
        unfinished=[*absent.unfinished, *unfinished],
        rows=len(every),
        partitions={(bad.row.topic_id, bad.row.partition) for bad in every},
    )


def _apply(repair: RepairWork, catalog: Catalog, losses: _Losses, report: RepairReport) -> RepairReport:
    """Copy the sound batches at the start of damaged slices, and commit gaps for the rest.

    One commit. If another writer was faster, the same change on its version: the bad rows must still be there.
    """
    cut = [bad for bad in losses.bad if bad.exists and bad.live]
    executor = repair.workers.for_bytes(sum(bad.row.bytes for bad in cut))
    tasks = [[bad.lost] for bad in cut]
    copies = executor.run(salvage_slices, repair.context, tasks, name=report.run_id, stop=repair.work.stop)
    saved = {_key(bad.row): copy for bad, copy in zip(cut, copies, strict=True) if copy is not None}
    live = [bad.row for bad in losses.bad if bad.live]
    added = [new for row in live for new in _instead(row, saved.get(_key(row)), report.run_id)]
    report = replace(report, gaps=gaps_by_reason(added), salvaged_records=sum(copy.records for copy in saved.values()))

    def commit(attempt: int) -> int:
        former = _former(catalog, [bad.row for bad in losses.bad if not bad.live])
        run = report.run_row(started_at=repair.work.started_at_ms, commit=catalog.version + 1)
        new = pa.concat_tables([encode_rows([*added, run]), _former_gaps(former, report.run_id)])
        return catalog.commit(
            new,
            replaced=pa.concat_tables([encode_rows(live), former]),
            generations=_drop_generations(catalog, losses.dropped, report.run_id),
            still_valid=(lambda: True) if attempt else None,
        )

    return replace(report, version=commit_with_retries(catalog, commit))


def _portions(catalog: Catalog, columns: Sequence[str]) -> Iterator[tuple[bool, pa.Table]]:
    """The rows in portions: live ones, and those that were replaced, as they were."""
    for rows, replaced in catalog.portions_with_replaced(columns):
        yield True, rows
        yield False, revive(replaced)


def _absent(
    catalog: Catalog, lacking: LackingObjects, columns: Sequence[str]
) -> Iterator[tuple[bool, pa.Table, list[int | None]]]:
    """Slices that are missing or cut, a few at a time, and the sizes of their objects; whether they are live."""
    for live, table in _portions(catalog, columns) if lacking else ():
        for slices, sizes in lacking.select(table):
            yield live, slices, sizes


def _decoded(slices: pa.Table, sizes: Sequence[int | None], *, live: bool, count: int | None) -> Iterator[_Bad]:
    """The first `count` of these slices, or all."""
    for row, size in zip(decode_rows(slices.slice(0, count)), sizes[:count], strict=True):
        assert isinstance(row, Segment)  # noqa: S101 - slices are data
        yield _Bad(row, live, complaint(size, row.position + row.bytes), exists=size is not None)


def _damaged(repair: RepairWork, rows: Sequence[tuple[Segment, bool]]) -> list[_Bad]:
    """Read these slices; return those that are damaged."""
    total = sum(row.bytes for row, _ in rows)
    executor = repair.workers.for_bytes(total)
    items = [(row.bytes, (number, slice_of(row))) for number, (row, _) in enumerate(rows)]
    tasks = spread(items, executor.parallelism)
    meter = repair.work.meter("reading", total, tasks=len(tasks))
    place, name = repair.context.place, repair.context.run_id
    checked = executor.run(verify_slices, place, tasks, name=name, meter=meter, stop=repair.work.stop)
    # A slice that is larger than what is looked into is not damaged.
    first = {number: problem for number, problem in reversed(checked) if not problem.limit}
    return [_Bad(*rows[number], first[number].message, exists=True) for number in sorted(first)]


def _identity(row: Segment, *, live: bool) -> tuple[object, ...]:
    return row.topic_id, row.partition, row.base_offset, row.path, row.position, live


def _key(row: Segment) -> tuple[str, int]:
    return row.path, row.position


def _instead(row: Segment, copy: Slice | None, run_id: str) -> list[Segment | Gap]:
    """Return what is left of a bad row: the sound batches at its start, and a gap."""
    rows: list[Segment | Gap] = []
    base, at = row.base_offset, now_ms()
    if copy is not None:
        values = {name: getattr(copy, name) for name in SLICE_FIELDS if name != "details"}
        rows.append(replace(row, **values, run_id=run_id, written_at=at))
        base = copy.end_offset
    if base < row.end_offset:
        rows.append(_gap(row, base, run_id, at))
    return rows


def _gap(row: Segment, base: int, run_id: str, at: int) -> Gap:
    return Gap(
        **place_of(row),
        base_offset=base,
        end_offset=row.end_offset,
        reason=GapReason.CORRUPT,
        run_id=run_id,
        written_at=at,
    )


def _former(catalog: Catalog, rows: Sequence[Segment]) -> pa.Table:
    """The rows of kind replaced that name these slices, as the catalog has them."""
    table = catalog.replaced_rows()
    keys = {_key(row) for row in rows}
    pairs = zip(table["path"].to_pylist(), table["position"].to_pylist(), strict=True)
    return table.filter(pa.array([pair in keys for pair in pairs], pa.bool_()))


def _former_gaps(former: pa.Table, run_id: str) -> pa.Table:
    """The same offsets as gaps, which the same revision replaced."""
    at = now_ms()
    gaps = [_gap(row, row.base_offset, run_id, at) for row in decode_rows(revive(former)) if isinstance(row, Segment)]
    return as_replaced(encode_rows(gaps), revisions_of(former))


def _drop_generations(catalog: Catalog, topic_ids: Collection[str], run_id: str) -> GenerationChanges:
    """The change that drops what these topics have under construction, on the version that the catalog stands at.

    Their rows cannot become gaps: a generation with such gaps might replace records by nothing.

    RefusedError: a generation has become active, or was dropped, since the objects were looked for.
    """
    if not topic_ids:
        return GenerationChanges()
    at, known = now_ms(), catalog.generations()
    topics = [
        known[topic_id] for topic_id in sorted(topic_ids) if topic_id in known and known[topic_id].building is not None
    ]
    if len(topics) < len(topic_ids):
        raise RefusedError(
            "a backup has completed or dropped a generation meanwhile",
            operation="repair",
            hint="nothing was changed; run the repair again",
        )
    dropped = [topic.without_building(at, _WHY) for topic in topics]
    return GenerationChanges().plus(
        added=[encode_generations(dropped, run_id=run_id, written_at=at)],
        removed=[catalog.generation_rows(topic_ids, kind=Kind.GENERATIONS), catalog.generation_rows(topic_ids)],
    )
