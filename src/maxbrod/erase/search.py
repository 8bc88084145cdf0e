"""Looks for the records of an erasure: in all rows that name slices of its topics, by tasks on workers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from maxbrod.archive.archive import Archive
from maxbrod.archive.snapshots import find_moment
from maxbrod.archive.undo import read_document, undoable
from maxbrod.archive.upkeep import read_clocks
from maxbrod.batch.erased import ErasedRecords, Ranges
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import slice_of
from maxbrod.erase.plan import ByEpoch, SliceKey, Sought, StoredRow, key_of, stored_rows
from maxbrod.erase.report import EraseFault
from maxbrod.erase.request import Choice
from maxbrod.erase.task import EraseContext, ScanItem, scan_slices
from maxbrod.errors import MaxbrodError
from maxbrod.model import PartitionId
from maxbrod.work.reach import Place
from maxbrod.work.session import parallelism_of
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    from maxbrod.work.executor import Workers
    from maxbrod.work.work import Work

TASKS_PER_CORE: Final = 4


class RecordSearch:
    """What an erasure looks for, where, and what it has seen so far."""

    def __init__(
        self, work: Work, archive: Archive, catalog: Catalog, topics: Mapping[str, str], workers: Workers, run_id: str
    ) -> None:
        """`topics` are the names of those that are searched, by id."""
        self._work, self._archive, self._catalog, self._topics = work, archive, catalog, topics
        self._workers = workers
        self.context = EraseContext(place=Place(url=archive.url, storage=archive.options), run_id=run_id)
        self._erasures = archive.erasures()
        positions = catalog.positions()
        self.bounds = {place: found.end_offset for place, found in positions.items()}
        """Where the archive ends: records that are archived later are not meant."""
        self.epochs = {
            place: -1 if found.last_leader_epoch is None else found.last_leader_epoch
            for place, found in positions.items()
        }
        self._sought: Sought | None = None
        self.clean: set[SliceKey] = set()
        """Slices that were looked at and have none of the records."""
        self.failed: set[SliceKey] = set()
        self.faults: list[EraseFault] = []
        self.holding: set[str] = set()
        """Objects that held records."""
        self.looked_again = 0

    def begin(self, choice: Choice, *, salt: bytes, hashes: Sequence[str], where: str | None) -> None:
        """Decide what to look for. With `Choice.LEDGER`, that is what the ledger says."""
        if choice is Choice.KEYS:
            self._sought = Sought(salt=salt, hashes=bytes.fromhex("".join(hashes)))
        elif choice is Choice.LOG_START:
            self._sought = Sought(offsets=self._below_log_starts())
        elif choice is Choice.WHERE:
            self._sought = Sought(offsets=self._by_condition(str(where)))

    def _below_log_starts(self) -> dict[PartitionId, dict[int | None, Ranges]]:
        moment = find_moment(self._archive.storage, self._catalog.runs(), None, needed=True)
        starts = {} if moment.snapshot is None else moment.snapshot.log_starts
        chosen = {place: start for place, start in starts.items() if place.topic_id in self._topics and start}
        return {place: {None: ((0, start),)} for place, start in chosen.items()}

    def _by_condition(self, where: str) -> dict[PartitionId, dict[int | None, Ranges]]:
        from maxbrod.erase.job import find_by_condition  # noqa: PLC0415 - Spark

        slices = {row.key: (row.name, self._archive.erasures().slice_of(row.segment)) for row in self.all_rows()}
        session = self._workers.session()
        return find_by_condition(
            session,
            self.context.place,
            list(slices.values()),
            where,
            tasks=TASKS_PER_CORE * parallelism_of(self._work.config.spark.master, session),
            meter=self._work.meter("looking for records", sum(stored.bytes for _, stored in slices.values())),
            stop=self._work.stop,
        )

    # Where

    def rows(self) -> list[StoredRow]:
        """Rows of the catalog, live or not, that may have such records."""
        rows = stored_rows(self._catalog.stored(topic_ids=self._topics))
        return [row for row in rows if row.segment.base_offset < self.bounds.get(row.segment.id, 0)]

    def all_rows(self) -> list[StoredRow]:
        """The same, and rows that a prune took away and an undo may bring back."""
        clocks = read_clocks(self._archive, ask_store=False, demand=False)
        found = self.rows()
        for prune in undoable(self._archive.storage, self._catalog.runs(), clocks):
            rows = stored_rows(read_document(self._archive.storage, prune.document))
            found += [row for row in rows if row.segment.topic_id in self._topics]
        return found

    def unseen_rows(self) -> list[StoredRow]:
        """Rows that were not looked at yet, or in which such records were."""
        return [row for row in self.rows() if row.key not in self.clean and row.key not in self.failed]

    # Looking

    def look(self, rows: Sequence[StoredRow], *, again: bool = False, through: bool = False) -> dict[SliceKey, ByEpoch]:
        """Return what each slice has of the records. `through`: as readers get it, else as it is stored."""
        by_key = {row.key: row for row in rows}
        items: list[ScanItem] = []
        for row in by_key.values():
            wanted = self._in_row(row)
            if wanted is None:
                self.clean.add(row.key)
                continue
            stored = self._archive.erasures().slice_of(row.segment) if through else slice_of(row.segment)
            items.append(ScanItem(number=len(items), stored=stored, sought=wanted))
        total = sum(item.stored.bytes for item in items)
        executor = self._workers.for_bytes(total)
        tasks = spread([(item.stored.bytes, item) for item in items], TASKS_PER_CORE * executor.parallelism)
        meter = self._work.meter("looking again" if again else "looking for records", total, tasks=len(tasks))
        name = f"erase-{uuid.uuid4().hex[:12]}"
        outcomes = executor.run(scan_slices, self.context, tasks, name=name, meter=meter, stop=self._work.stop)
        found: dict[SliceKey, ByEpoch] = {}
        keys = [key_of(item.stored) for item in items]
        for outcome in outcomes:
            key = keys[outcome.number]
            if outcome.failure is not None:
                self.fail(by_key[key], outcome.failure)
            elif outcome.found:
                found[key] = outcome.found
            else:
                self.clean.add(key)
        self.holding |= {key[0] for key in found}
        self.looked_again += len(items) if again else 0
        return found

    def _in_row(self, row: StoredRow) -> ErasedRecords | None:
        segment = row.segment
        if self._sought is None:
            return self._erasures.records_in(segment.id, segment.base_offset, segment.end_offset, run_id=segment.run_id)
        return self.wanted(segment.id, segment.base_offset, segment.end_offset)

    def wanted(self, place: PartitionId, base: int, end: int) -> ErasedRecords | None:
        """Return what to look for in the offsets [base, end) of a partition; None: nothing."""
        if self._sought is None:
            return self._erasures.records_in(place, base, end)
        return self._sought.within(place, base, min(end, self.bounds.get(place, 0)))

    def fail(self, row: StoredRow, failure: MaxbrodError) -> None:
        """Remember that a slice could not be read, or not be written anew."""
        segment = row.segment
        self.failed.add(row.key)
        where = segment.topic, segment.partition, segment.base_offset, segment.end_offset
        self.faults.append(EraseFault.of(failure, *where))
