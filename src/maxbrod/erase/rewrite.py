"""Writes objects anew, without what was found in their slices, and commits them in the place of the old ones.

One commit for each wave, all or nothing. If another writer replaces rows meanwhile, those objects stay as they are, and
the next look finds them again.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from maxbrod.archive.archive import Archive
from maxbrod.archive.holds import HOLD_COLUMNS, active_holds
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.commits import commit_with_retries
from maxbrod.catalog.schema import SCHEMA
from maxbrod.erase.plan import (
    ByEpoch,
    ObjectPlan,
    SliceKey,
    StoredRow,
    key_of,
    last_rows,
    new_rows,
    plan_objects,
    stored_rows,
    table_of,
)
from maxbrod.erase.search import TASKS_PER_CORE, RecordSearch
from maxbrod.erase.task import RewriteItem, rewrite_objects
from maxbrod.errors import MaxbrodError
from maxbrod.layouts.kafka.format import Slice
from maxbrod.model import now_ms
from maxbrod.work.windows import cut_waves, spread

if TYPE_CHECKING:
    from maxbrod.work.executor import Workers
    from maxbrod.work.work import Work

_WAVE_ROWS: Final = 100_000
Written = Mapping[str, Mapping[SliceKey, Slice]]
"""By the path of the old object: the new slice of each old one."""


class ObjectRewrite:
    """The objects that an erasure writes anew, and what it has written so far."""

    def __init__(self, work: Work, archive: Archive, catalog: Catalog, workers: Workers, search: RecordSearch) -> None:
        self._work, self._archive, self._catalog = work, archive, catalog
        self._workers, self._search = workers, search
        self._run_id = search.context.run_id
        self.held: dict[str, str] = {}
        """Objects that a hold keeps, and the hold."""
        self.commits = self.objects = self.bytes = self.rewritten = self.carried = 0

    def run(self, found: Mapping[SliceKey, ByEpoch]) -> None:
        """Write objects without what was found, wave by wave."""
        rows = stored_rows(self._catalog.stored(paths={key[0] for key in found}))
        planned = plan_objects(rows, found, self._holders(rows))
        self.held |= planned.held
        waves = cut_waves(
            planned.objects,
            bytes_of=lambda plan: plan.bytes,
            bytes_max=self._work.config.erase.commit_bytes,
            rows_of=lambda plan: plan.row_count,
            rows_max=_WAVE_ROWS,
        )
        for wave in waves:
            if self._work.is_stopped():
                break
            written = self._write(wave)
            self._work.tell("committing")
            self._commit([plan for plan in wave if plan.path in written], written)

    def _holders(self, rows: Sequence[StoredRow]) -> dict[SliceKey, str]:
        holds = active_holds(self._archive)
        if not holds.active or not rows:
            return {}
        numbers = holds.holders(table_of(rows).select(HOLD_COLUMNS)).tolist()
        return {
            row.key: f"{holds.active[number]} (until it is released)"
            for row, number in zip(rows, numbers, strict=True)
            if number >= 0
        }

    def _is_held(self, plan: ObjectPlan) -> bool:
        return bool(self._holders([row for row in plan.rows if row.key in plan.erased]))

    def _write(self, wave: Sequence[ObjectPlan]) -> dict[str, dict[SliceKey, Slice]]:
        items = [RewriteItem(number=number, path=plan.path, slices=plan.slices) for number, plan in enumerate(wave)]
        total = sum(plan.bytes for plan in wave)
        executor = self._workers.for_bytes(total)
        sized = [(plan.bytes, item) for plan, item in zip(wave, items, strict=True)]
        tasks = spread(sized, TASKS_PER_CORE * executor.parallelism)
        outcomes = executor.run(
            rewrite_objects,
            self._search.context,
            tasks,
            name=f"erase-{uuid.uuid4().hex[:12]}",
            meter=self._work.meter("rewriting", total, tasks=len(tasks)),
            stop=self._work.stop,
        )
        written: dict[str, dict[SliceKey, Slice]] = {}
        for outcome in outcomes:
            plan = wave[outcome.number]
            if outcome.failure is not None:
                for row in plan.rows:
                    if row.key in plan.erased:
                        self._search.fail(row, outcome.failure)
                continue
            before = (key_of(stored) for _, stored in items[outcome.number].slices)
            written[plan.path] = dict(zip(before, outcome.written, strict=True))
        return written

    def _commit(self, wave: Sequence[ObjectPlan], written: Written) -> None:
        named: set[str] = set()

        def commit(attempt: int) -> None:
            # Right before the commit: a hold that comes later changes the catalog, and so refuses it.
            plans = [plan for plan in wave if (not attempt or self._applies(plan)) and not self._is_held(plan)]
            if not plans:
                return
            ids = {row.segment.topic_id for plan in plans for row in plan.rows}
            last, now = last_rows(stored_rows(self._catalog.stored(topic_ids=ids))), now_ms()
            rows = [
                row
                for plan in plans
                for row in new_rows(plan, written[plan.path], last, run_id=self._run_id, now_ms=now)
            ]
            self._catalog.commit(
                pa.Table.from_pylist(rows, schema=SCHEMA),
                replaced=table_of(row for plan in plans for row in plan.rows),
                still_valid=(lambda: not any(map(self._is_held, plans))) if attempt else None,
            )
            named.update(str(row["path"]) for row in rows if row.get("path") is not None)
            self._count(plans, written)

        commit_with_retries(self._catalog, commit)
        # Of slices that became gaps, and of plans that others have overtaken. Nobody else knows these objects.
        unused = {stored.path for slices in written.values() for stored in slices.values()} - named
        with suppress(MaxbrodError):
            self._archive.storage.delete(sorted(unused))

    def _applies(self, plan: ObjectPlan) -> bool:
        """True if exactly the same rows name the object."""
        there = stored_rows(self._catalog.stored(paths=[plan.path]))
        return {_identity(row) for row in there} == {_identity(row) for row in plan.rows}

    def _count(self, plans: Sequence[ObjectPlan], written: Written) -> None:
        slices = [stored for plan in plans for stored in written[plan.path].values()]
        rewritten = sum(len(plan.erased) for plan in plans)
        self.commits += 1
        self.objects += len(plans)
        self.bytes += sum(stored.bytes for stored in slices)
        self.rewritten += rewritten
        self.carried += len(slices) - rewritten


def _identity(row: StoredRow) -> tuple[Any, ...]:
    names = ("kind", "topic_id", "partition", "base_offset", "end_offset", "path", "position", "run_id", "details")
    return tuple(row.values[name] for name in names)
