"""Takes lost and damaged objects out of a catalog that can be read: their offsets become gaps `corrupt`.

Never silently: every gap has a notice, and the next backup reads such offsets again. Sound batches at the start of a
damaged slice are copied into a new object first. A generation under construction that lacks an object is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.catalog.commits import commit_with_retries
from maxbrod.catalog.replaced import as_replaced, count_revisions, revive
from maxbrod.catalog.rows import SLICE_FIELDS, Gap, Run, Segment, decode_rows, encode_rows, slice_of
from maxbrod.catalog.schema import SCHEMA, Kind
from maxbrod.check.job import verify_slices
from maxbrod.check.objects import LackingObjects, NeededObjects, complaint
from maxbrod.model import GapReason, now_ms
from maxbrod.repair.job import RepairContext, salvage_slices
from maxbrod.repair.plan.found import LostRange
from maxbrod.repair.plan.rebuild import lost_notices
from maxbrod.repair.rebuilding import gaps_by_reason, statistics_of
from maxbrod.repair.report import Action, RepairReport
from maxbrod.repair.unfinished import as_unfinished, drop_generations
from maxbrod.work.progress import OnProgress, Progress
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from maxbrod.catalog.catalog import Catalog
    from maxbrod.layouts.kafka.format import Slice
    from maxbrod.notices import Notice
    from maxbrod.storage.interface import Storage
    from maxbrod.work.executor import Workers

_COUNT_COLUMNS: Final = ("topic_id", "partition", "kind", "details", "path", "position", "bytes")
"""What is needed to count lost slices, but not to name them."""


@dataclass(frozen=True, slots=True)
class _Bad:
    row: Segment
    live: bool
    """False: a replaced row, which only queries as of an older run return."""
    message: str
    exists: bool


class SliceSums:
    """What is looked for in the store: the objects of all slices, live or replaced."""

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
        """How many more are looked at; None: all."""
        return None if self._kept_max is None or self._on_notice is not None else self._kept_max - len(self.kept)

    def add(self, lost: LostRange, *, unfinished: bool = False) -> None:
        for found in lost_notices([lost]):
            notice = as_unfinished(found) if unfinished else found
            if self._on_notice is not None:
                self._on_notice(notice)
            if self._kept_max is None or len(self.kept) < self._kept_max:
                self.kept.append(notice)


def take_out(
    storage: Storage,
    catalog: Catalog,
    workers: Workers,
    context: RepairContext,
    needed: SliceSums,
    *,
    deep: bool,
    apply: bool,
    on_progress: OnProgress,
    notices: Notices,
) -> RepairReport:
    """Find bad objects, and with `apply` commit gaps in their place."""
    on_progress(Progress(phase="listing objects"))
    started_at, run_id = now_ms(), context.run_id
    building = catalog.building()
    needed.objects.add(building)
    lacking = needed.objects.lacking(storage)
    unfinished = [
        each
        for slices, sizes in (lacking.select(building) if lacking else ())
        for each in _decoded(slices, sizes, live=True, count=None)
    ]
    count = 0
    partitions: set[tuple[str, int]] = set()
    bad: list[_Bad] = []
    for live, slices, sizes in _absent(catalog, lacking, SCHEMA.names):
        # Whoever only looks needs no values, and there may be millions of rows.
        for each in _decoded(slices, sizes, live=live, count=None if apply or deep else notices.room):
            notices.add(_lost(each))
            bad += [each] if apply or deep else []
        if not apply and not deep and notices.room == 0:
            break
    for _, slices, sizes in _absent(catalog, lacking, _COUNT_COLUMNS):
        count += len(sizes)
        partitions.update(zip(slices["topic_id"].to_pylist(), slices["partition"].to_pylist(), strict=True))
    if deep:
        known = {_identity(each.row, live=each.live) for each in bad}
        sound = [segment for segment in _segments(catalog) if _identity(segment[0], live=segment[1]) not in known]
        damaged = _damaged(workers, context, sound, on_progress)
        for each in damaged:
            notices.add(_lost(each))
        bad += damaged
        known = {_identity(each.row, live=True) for each in unfinished}
        rows = [(row, True) for row in decode_rows(building) if isinstance(row, Segment)]
        sound = [each for each in rows if _identity(each[0], live=True) not in known]
        if sound:
            unfinished += _damaged(workers, context, sound, on_progress)
        count = len(bad)
        partitions = {(each.row.topic_id, each.row.partition) for each in bad}
    for each in unfinished:
        notices.add(_lost(each), unfinished=True)
    dropped = {each.row.topic_id for each in unfinished}
    report = RepairReport(
        archive=storage.url,
        run_id=run_id,
        action=Action.TAKEN_OUT if count or dropped else Action.NONE,
        applied=apply and bool(count or dropped),
        problem=None,
        version=catalog.version,
        topics=len({topic_id for topic_id, _ in partitions}),
        partitions=len(partitions),
        rows=count,
        generations=len(dropped),
        objects=lacking.objects,
        bytes=needed.live_bytes if deep else 0,
        notices=tuple(notices.kept),
    )
    if not report.applied:
        return report
    cut = [each for each in bad if each.exists and each.live]
    damages = [[_lost(each)] for each in cut]
    executor = workers.for_bytes(sum(each.row.bytes for each in cut))
    copies = executor.run(salvage_slices, context, damages, name=run_id)
    saved = {_key(each.row): copy for each, copy in zip(cut, copies, strict=True) if copy is not None}
    added = [row for each in bad if each.live for row in _instead(each.row, saved.get(_key(each.row)), run_id)]
    report = replace(
        report,
        gaps=gaps_by_reason(added),
        salvaged_records=sum(copy.records for copy in saved.values()),
    )
    version = _commit(catalog, bad, added, dropped, report, started_at)
    return replace(report, version=version)


def _portions(catalog: Catalog, columns: Sequence[str]) -> Iterator[tuple[bool, pa.Table]]:
    """The rows in portions: live ones, and those that were replaced, as they were."""
    for rows, replaced in catalog.portions_with_replaced(columns):
        yield True, rows
        yield False, revive(replaced)


def _segments(catalog: Catalog) -> Iterator[tuple[Segment, bool]]:
    for live, table in _portions(catalog, SCHEMA.names):
        yield from ((row, live) for row in decode_rows(table) if isinstance(row, Segment))


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


def _damaged(
    workers: Workers, context: RepairContext, rows: Sequence[tuple[Segment, bool]], on_progress: OnProgress
) -> list[_Bad]:
    """Read every slice."""
    total = sum(row.bytes for row, _ in rows)
    on_progress(Progress(phase="reading", bytes_total=total))
    executor = workers.for_bytes(total)
    items = [(row.bytes, (number, slice_of(row))) for number, (row, _) in enumerate(rows)]
    tasks = spread(items, executor.parallelism)
    checked = executor.run(verify_slices, context.place, tasks, name=context.run_id)
    # What is larger than what is looked into is not damaged.
    found = [each for each in checked if not each.limit]
    first = {each.number: each for each in reversed(found)}
    return [_Bad(*rows[number], first[number].message, exists=True) for number in sorted(first)]


def _lost(each: _Bad) -> LostRange:
    row = each.row
    return LostRange(
        topic=row.topic,
        topic_id=row.topic_id,
        partition=row.partition,
        base=row.base_offset,
        end=row.end_offset,
        path=row.path,
        message=each.message if each.live else f"{each.message} (needed only as of an earlier run)",
        slice=slice_of(row) if each.exists else None,
        missing=not each.exists,
    )


def _identity(row: Segment, *, live: bool) -> tuple[object, ...]:
    return row.topic_id, row.partition, row.base_offset, row.path, row.position, live


def _key(row: Segment) -> tuple[str, int]:
    return row.path, row.position


def _instead(row: Segment, copy: Slice | None, run_id: str) -> list[Segment | Gap]:
    """What is left of a bad row: the sound batches at its start, and a gap."""
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
        topic=row.topic,
        topic_id=row.topic_id,
        partition=row.partition,
        base_offset=base,
        end_offset=row.end_offset,
        reason=GapReason.CORRUPT,
        run_id=run_id,
        written_at=at,
    )


def _commit(
    catalog: Catalog,
    bad: Sequence[_Bad],
    added: Sequence[Segment | Gap],
    dropped: Collection[str],
    report: RepairReport,
    started_at: int,
) -> int:
    """One commit. If another writer was faster, the same change on its version: the bad rows must still be there."""
    live = encode_rows([each.row for each in bad if each.live])

    def commit(attempt: int) -> int:
        former = _former(catalog, [each.row for each in bad if not each.live])
        run = Run(
            run_id=report.run_id,
            started_at=started_at,
            finished_at=now_ms(),
            snapshot=None,
            statistics=statistics_of(report),
            written_at=now_ms(),
            commit=catalog.version + 1,
        )
        new = pa.concat_tables([encode_rows([*added, run]), _former_gaps(former, report.run_id)])
        generations = drop_generations(catalog, dropped, report.run_id)
        return catalog.commit(
            new,
            replaced=pa.concat_tables([live, former]),
            generations=generations,
            still_valid=(lambda: True) if attempt else None,
        )

    return commit_with_retries(catalog, commit)


def _former(catalog: Catalog, rows: Sequence[Segment]) -> pa.Table:
    """The rows of kind replaced that name these slices, as the catalog has them."""
    table = catalog.replaced_rows()
    keys = {_key(row) for row in rows}
    pairs = zip(table["path"].to_pylist(), table["position"].to_pylist(), strict=True)
    return table.filter(pa.array([pair in keys for pair in pairs], pa.bool_()))


def _former_gaps(former: pa.Table, run_id: str) -> pa.Table:
    """The same offsets as gaps, which the same revision replaced."""
    if not former.num_rows:
        return former
    numbers = [max(count_revisions(former.slice(row, 1)).values()) for row in range(former.num_rows)]
    kinds = former.set_column(
        former.schema.get_field_index("kind"), "kind", pa.array([str(Kind.DATA)] * former.num_rows, pa.string())
    )
    kinds = kinds.set_column(
        former.schema.get_field_index("details"), "details", pa.nulls(former.num_rows, pa.string())
    )
    rows = [row for row in decode_rows(kinds) if isinstance(row, Segment)]
    at = now_ms()
    return as_replaced(encode_rows([_gap(row, row.base_offset, run_id, at) for row in rows]), numbers)
