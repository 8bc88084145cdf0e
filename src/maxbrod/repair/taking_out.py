"""Takes lost and damaged objects out of a catalog that can be read: their offsets become gaps `corrupt`.

Never silently: every gap has a notice, and the next backup reads such offsets again. Sound batches at the start of a
damaged slice are copied into a new object first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from maxbrod.catalog.replaced import as_replaced, count_revisions
from maxbrod.catalog.retrying import commit_with_retries
from maxbrod.catalog.rows import SLICE_FIELDS, Gap, Run, Segment, decode_rows, encode_rows, slice_of
from maxbrod.catalog.schema import Kind
from maxbrod.check.job import verify_slices
from maxbrod.engine.progress import Progress
from maxbrod.engine.windows import spread
from maxbrod.model import GapReason, now_ms
from maxbrod.repair.job import salvage_slices
from maxbrod.repair.plan.found import LostRange
from maxbrod.repair.plan.rebuild import lost_notices
from maxbrod.repair.rebuilding import gaps_by_reason, statistics_of
from maxbrod.repair.report import Action, RepairReport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maxbrod.catalog.catalog import Catalog
    from maxbrod.config import StorageConfig
    from maxbrod.engine.progress import OnProgress
    from maxbrod.engine.session import Session
    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.storage.interface import Storage

_FOLDERS: Final = ("segments", "packs")


@dataclass(frozen=True, slots=True)
class _Bad:
    row: Segment
    live: bool
    """False: a replaced row, which only queries as of an older run return."""
    message: str
    exists: bool


def take_out(
    storage: Storage,
    catalog: Catalog,
    options: StorageConfig,
    open_session: Callable[[], Session],
    *,
    run_id: str,
    parallelism: Callable[[], int],
    deep: bool,
    apply: bool,
    on_progress: OnProgress,
) -> RepairReport:
    """Find bad objects, and with `apply` commit gaps in their place."""
    on_progress(Progress(phase="listing objects"))
    started_at = now_ms()
    rows = [row for row in decode_rows(catalog.rows()) if isinstance(row, Segment)]
    former = [row for row in decode_rows(catalog.replaced()) if isinstance(row, Segment)]
    bad = _absent(storage, rows, former)
    if deep:
        known = {id(each.row) for each in bad}
        sound = [
            (row, live) for live, found in ((True, rows), (False, former)) for row in found if id(row) not in known
        ]
        bad += _damaged(storage.url, options, open_session(), sound, run_id, parallelism(), on_progress)
    objects = len({row.path for row in (*rows, *former)})
    report = RepairReport(
        archive=storage.url,
        run_id=run_id,
        action=Action.TAKEN_OUT if bad else Action.NONE,
        applied=apply and bool(bad),
        problem=None,
        version=catalog.version,
        topics=len({each.row.topic_id for each in bad}),
        partitions=len({(each.row.topic_id, each.row.partition) for each in bad}),
        rows=len(bad),
        objects=objects,
        bytes=sum(row.bytes for row in rows) if deep else 0,
        notices=tuple(lost_notices(_lost(each) for each in bad)),
    )
    if not bad or not apply:
        return report
    damaged = [each for each in bad if each.exists and each.live]
    copies = salvage_slices(open_session(), storage.url, options, [_lost(each) for each in damaged], run_id=run_id)
    saved = {_key(each.row): copy for each, copy in zip(damaged, copies, strict=True) if copy is not None}
    added = [row for each in bad if each.live for row in _instead(each.row, saved.get(_key(each.row)), run_id)]
    report = replace(
        report,
        gaps=gaps_by_reason(added),
        salvaged_records=sum(copy.records for copy in saved.values()),
    )
    version = _commit(catalog, bad, added, report, started_at)
    return replace(report, version=version)


def _absent(storage: Storage, rows: Sequence[Segment], former: Sequence[Segment]) -> list[_Bad]:
    sizes = {info.path: info.size for folder in _FOLDERS for info in storage.list(folder)}
    bad = []
    for live, found in ((True, rows), (False, former)):
        for row in found:
            size, end = sizes.get(row.path), row.position + row.bytes
            if size is None:
                bad.append(_Bad(row, live, "the object is not there", exists=False))
            elif size < end:
                bad.append(_Bad(row, live, f"the object has {size} bytes, the slice ends at {end}", exists=True))
    return bad


def _damaged(
    url: str,
    options: StorageConfig,
    session: Session,
    rows: Sequence[tuple[Segment, bool]],
    run_id: str,
    parallelism: int,
    on_progress: OnProgress,
) -> list[_Bad]:
    """Read every slice."""
    on_progress(Progress(phase="reading", bytes_total=sum(row.bytes for row, _ in rows)))
    items = [(row.bytes, (number, slice_of(row))) for number, (row, _) in enumerate(rows)]
    found = verify_slices(session, url, options, spread(items, parallelism), name=run_id)
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
    )


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
    catalog: Catalog, bad: Sequence[_Bad], added: Sequence[Segment | Gap], report: RepairReport, started_at: int
) -> int:
    """One commit. If another writer was faster, the same change on its version: the bad rows must still be there."""
    live = encode_rows([each.row for each in bad if each.live])

    def commit(_: int) -> int:
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
        return catalog.commit(new, replaced=pa.concat_tables([live, former]))

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
