"""Erases records from an archive: look for them, remember that they are erased, write objects anew, commit, delete.

The order keeps a promise at every instant. The document of the ledger comes first: from then on no reader returns the
records, whatever else happens. Then objects are written without them, and one commit for each wave puts these in the
place of the old ones. Only then are old objects deleted. A kill leaves records that no reader returns, and objects that
the same command, or `--again`, deletes. At the end everything is looked at again, and a certificate says the outcome.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

import pyarrow as pa

from maxbrod.archive.archive import Archive, open_archive, open_for_writing
from maxbrod.archive.erasures import (
    ErasedPartition,
    ErasedTopic,
    Erasure,
    certificate_path,
    hashes_of,
    ledger_salt,
    outside,
    put_erasure,
)
from maxbrod.archive.holds import HOLD_COLUMNS, active_holds
from maxbrod.archive.runs import STOPPED
from maxbrod.archive.selection import select_names
from maxbrod.archive.snapshots import find_moment
from maxbrod.archive.undo import read_document, undoable
from maxbrod.archive.upkeep import read_clocks
from maxbrod.batch.erased import ErasedRecords, Ranges
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.commits import commit_with_retries
from maxbrod.catalog.rows import Run, encode_rows, new_run_id, slice_of
from maxbrod.catalog.schema import SCHEMA
from maxbrod.config import Config, StorageConfig, config_with
from maxbrod.erase.deletion import Deletion, delete_old
from maxbrod.erase.options import KEY_VARIABLE
from maxbrod.erase.plan import (
    ObjectPlan,
    SliceKey,
    Sought,
    StoredRow,
    count_offsets,
    key_of,
    last_rows,
    new_rows,
    plan_objects,
    ranges_by_partition,
    seen_by_partition,
    stored_rows,
    table_of,
)
from maxbrod.erase.report import ErasedTopicReport, EraseFault, EraseReport, certificate_of
from maxbrod.erase.task import EraseContext, RewriteItem, ScanItem, rewrite_objects, scan_slices
from maxbrod.errors import MaxbrodError, UsageError
from maxbrod.layouts.kafka.format import Slice
from maxbrod.model import PartitionId, now_ms
from maxbrod.signature import SigningKey, parse_key, read_key, signed
from maxbrod.work.preflight import needs_storage
from maxbrod.work.progress import OnProgress, silent
from maxbrod.work.reach import Place
from maxbrod.work.session import Session, parallelism_of
from maxbrod.work.windows import cut_waves, spread
from maxbrod.work.work import Work

if TYPE_CHECKING:
    from maxbrod.keywords import EraseKeywords

_PASSES_MAX: Final = 5
"""Looks at the archive, each after a commit. Others may commit rows meanwhile that were read from the source before."""
_TASKS_PER_CORE: Final = 4
_DRY_SALT: Final = b"a dry run has no ledger"
_ENCODINGS: Final = ("utf-8", "hex", "base64")
_KEYS, _WHERE, _LOG_START, _LEDGER = "keys", "where", "below-log-start", "ledger"


def erase_archive(work: Work) -> EraseReport:
    """Erase the records that the options choose."""
    config, options = work.config, work.config.erase
    how = _how(work)
    key = _signing_key(work)
    keys = _read_keys(work) if how == _KEYS else []
    with work.looking("reading the archive"):
        archive = open_archive(config.archive_url, config.storage, layout=config.layout, groups=False, records=True)
    if not archive.is_native:
        raise UsageError(
            f"records cannot be erased from an archive in the layout {archive.layout}",
            object_name=archive.url,
            hint="'maxbrod convert' makes one of maxbrod's own layout of it; erase from that, and delete this one",
        )
    if not options.dry_run:
        archive = open_for_writing(archive.url, config.storage, single_writer=options.single_writer)
    return _Erasing(work, archive, how, keys, key).run()


def _how(work: Work) -> str:
    options = work.config.erase
    asked = {
        _KEYS: bool(options.keys) or options.keys_file is not None,
        _WHERE: options.where is not None,
        _LOG_START: options.below_log_start,
        _LEDGER: options.again,
    }
    chosen = [how for how, is_asked in asked.items() if is_asked]
    if len(chosen) != 1:
        raise UsageError(
            "nothing says which records to erase" if not chosen else f"{' and '.join(chosen)} are given together",
            hint="give one of --key and --keys-file, --where, --below-log-start, --again",
        )
    if not options.topics and chosen != [_LEDGER]:
        raise UsageError("no topic is named", hint="give --topic")
    return chosen[0]


def _signing_key(work: Work) -> SigningKey | None:
    if work.config.erase.signing_key_file is not None:
        return read_key(work.config.erase.signing_key_file)
    text = os.environ.get(KEY_VARIABLE)
    return parse_key(text.encode(), name=f"${KEY_VARIABLE}") if text else None


def _read_keys(work: Work) -> list[bytes]:
    options = work.config.erase
    texts: list[str] = list(options.keys)
    if options.keys_file is not None:
        try:
            whole = sys.stdin.read() if str(options.keys_file) == "-" else options.keys_file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the keys cannot be read: {error}", object_name=str(options.keys_file)) from None
        texts += [line for line in whole.split("\n") if line]
    if not texts:
        raise UsageError("there are no keys", object_name=str(options.keys_file))
    return [_key(text, options.key_encoding) for text in texts]


def _key(text: str, encoding: str) -> bytes:
    try:
        match encoding:
            case "utf-8":
                return text.encode()
            case "hex":
                return bytes.fromhex(text)
            case "base64":
                return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        # The key itself stays out of messages.
        raise UsageError(f"a key is not valid {encoding}") from None
    raise UsageError(f"keys cannot be written as {encoding!r}", hint=f"use one of {', '.join(_ENCODINGS)}")


class _Erasing:
    """One erasure. Its run, its document of the ledger and its certificate have the same id."""

    def __init__(
        self, work: Work, archive: Archive, how: str, keys: Sequence[bytes], signing_key: SigningKey | None
    ) -> None:
        assert isinstance(archive.catalog, Catalog)  # noqa: S101 - of our own layout
        self._work, self._options = work, work.config.erase
        self._archive, self._catalog = archive, archive.catalog
        self._how, self._signing_key = how, signing_key
        self._run_id = new_run_id()
        self._topics = self._chosen_topics()
        self._erasures = archive.erasures()
        positions = self._catalog.positions()
        self._bounds = {place: found.end_offset for place, found in positions.items()}
        self._epochs = {
            place: -1 if found.last_leader_epoch is None else found.last_leader_epoch
            for place, found in positions.items()
        }
        self._salt = ledger_salt(archive.storage) if how == _KEYS and not self._options.dry_run else _DRY_SALT
        self._hashes = hashes_of(self._salt, keys)
        self._workers = work.workers(
            needs_storage(archive.url, archive.options, writes=not self._options.dry_run), jvm_works=how == _WHERE
        )
        self._context = EraseContext(place=Place(url=archive.url, storage=archive.options), run_id=self._run_id)
        self._clean: set[SliceKey] = set()
        """Slices that were looked at and have none of the records."""
        self._failed: set[SliceKey] = set()
        self._held: dict[str, str] = {}
        self._faults: list[EraseFault] = []
        self._unsettled = 0
        """Records that the last look found: others keep committing rows that have them."""
        self._holding: set[str] = set()
        """Objects that held records."""
        self._report = EraseReport(
            archive=archive.url,
            run_id=None,
            dry_run=self._options.dry_run,
            how=how,
            hashes=() if self._salt == _DRY_SALT else self._hashes,
            started_at_ms=work.started_at_ms,
            finished_at_ms=work.started_at_ms,
            topics=(),
        )

    def run(self) -> EraseReport:
        sought = self._sought()
        rows, undo = self._rows(), self._undo_rows()
        found = self._scan([*rows, *undo], sought)
        self._report = replace(self._report, topics=self._topics_of([*rows, *undo], found))
        if self._options.dry_run:
            return self._ended()
        self._remember([*rows, *undo], found)
        for _ in range(_PASSES_MAX):
            if self._work.is_stopped():
                break
            if found:
                self._rewrite(found)
            self._catalog.refresh()
            rows = self._rows()
            left = [row for row in rows if row.key not in self._clean and row.key not in self._failed]
            left = [row for row in left if row.segment.path not in self._held]
            if not left:
                break
            found = self._scan(left, sought, again=True)
            if not found:
                break
        else:
            self._unsettled = sum(count_offsets(ranges) for ranges in found.values())
        if not self._work.is_stopped():
            self._record_run()
            self._delete(sought)
            self._look_through_readers(sought)
        report = self._ended()
        return report if self._work.is_stopped() else self._certify(report)

    # What to look for, and where

    def _chosen_topics(self) -> dict[str, str]:
        stored = self._catalog.topics()
        names = dict(zip(stored["topic_id"].to_pylist(), stored["topic"].to_pylist(), strict=True))
        chosen = set(select_names(set(names.values()), self._options.topics, self._options.exclude))
        found = {topic_id: name for topic_id, name in names.items() if name in chosen}
        if self._how == _LEDGER:
            known = self._archive.erasures().topic_ids
            found = {topic_id: name for topic_id, name in found.items() if topic_id in known}
        return found

    def _sought(self) -> Sought | None:
        """None: what the ledger says."""
        if self._how == _KEYS:
            return Sought(salt=self._salt, hashes=bytes.fromhex("".join(self._hashes)))
        if self._how == _LOG_START:
            return Sought(offsets=self._below_log_starts())
        if self._how == _WHERE:
            return Sought(offsets=self._by_condition())
        return None

    def _below_log_starts(self) -> dict[PartitionId, Ranges]:
        moment = find_moment(self._archive.storage, self._catalog.runs(), None, needed=True)
        starts = {} if moment.snapshot is None else moment.snapshot.log_starts
        return {place: ((0, start),) for place, start in starts.items() if place.topic_id in self._topics and start}

    def _by_condition(self) -> dict[PartitionId, Ranges]:
        from maxbrod.erase.job import find_by_condition  # noqa: PLC0415 - Spark

        rows = [*self._rows(), *self._undo_rows()]
        slices = {row.key: (row.name, self._archive.erasures().slice_of(row.segment)) for row in rows}
        session = self._workers.session()
        return find_by_condition(
            session,
            self._context.place,
            list(slices.values()),
            str(self._options.where),
            tasks=_TASKS_PER_CORE * parallelism_of(self._work.config.spark.master, session),
            meter=self._work.meter("looking for records", sum(stored.bytes for _, stored in slices.values())),
            stop=self._work.stop,
        )

    def _rows(self) -> list[StoredRow]:
        rows = stored_rows(self._catalog.stored(topic_ids=self._topics))
        return [row for row in rows if row.segment.base_offset < self._bounds.get(row.segment.id, 0)]

    def _undo_rows(self) -> list[StoredRow]:
        """Rows that a prune took away and an undo may bring back."""
        clocks = read_clocks(self._archive, ask_store=False, demand=False)
        found: list[StoredRow] = []
        for prune in undoable(self._archive.storage, self._catalog.runs(), clocks):
            rows = stored_rows(read_document(self._archive.storage, prune.document))
            found += [row for row in rows if row.segment.topic_id in self._topics]
        return found

    # Looking

    def _scan(
        self, rows: Sequence[StoredRow], sought: Sought | None, *, again: bool = False, through: bool = False
    ) -> dict[SliceKey, Ranges]:
        """Return what each slice has of the records. `through`: as readers get it, else as it is stored."""
        by_key = {row.key: row for row in rows}
        items: list[ScanItem] = []
        for row in by_key.values():
            wanted = self._wanted(row, sought)
            if wanted is None:
                self._clean.add(row.key)
                continue
            stored = self._archive.erasures().slice_of(row.segment) if through else slice_of(row.segment)
            items.append(ScanItem(number=len(items), stored=stored, sought=wanted))
        total = sum(item.stored.bytes for item in items)
        executor = self._workers.for_bytes(total)
        tasks = spread([(item.stored.bytes, item) for item in items], _TASKS_PER_CORE * executor.parallelism)
        meter = self._work.meter("looking again" if again else "looking for records", total, tasks=len(tasks))
        outcomes = executor.run(
            scan_slices,
            self._context,
            tasks,
            name=f"erase-{uuid.uuid4().hex[:12]}",
            meter=meter,
            stop=self._work.stop,
        )
        found: dict[SliceKey, Ranges] = {}
        keys = [key_of(item.stored) for item in items]
        for outcome in outcomes:
            key = keys[outcome.number]
            if outcome.failure is not None:
                self._fail(by_key[key], outcome.failure)
            elif outcome.found:
                found[key] = outcome.found
            else:
                self._clean.add(key)
        self._holding |= {key[0] for key in found}
        if again:
            self._report = replace(self._report, looked_again=self._report.looked_again + len(items))
        return found

    def _wanted(self, row: StoredRow, sought: Sought | None) -> ErasedRecords | None:
        segment = row.segment
        if sought is None:
            return self._erasures.records_in(segment.id, segment.base_offset, segment.end_offset, run_id=segment.run_id)
        return self._within(sought, segment.id, segment.base_offset, segment.end_offset)

    def _within(self, sought: Sought | None, place: PartitionId, base: int, end: int) -> ErasedRecords | None:
        if sought is None:
            return self._erasures.records_in(place, base, end)
        return sought.within(place, base, min(end, self._bounds.get(place, 0)))

    def _fail(self, row: StoredRow, failure: MaxbrodError) -> None:
        segment = row.segment
        self._failed.add(row.key)
        where = segment.topic, segment.partition, segment.base_offset, segment.end_offset
        self._faults.append(EraseFault.of(failure, *where))

    def _topics_of(self, rows: Sequence[StoredRow], found: Mapping[SliceKey, Ranges]) -> tuple[ErasedTopicReport, ...]:
        erased = ranges_by_partition(rows, found)
        keys = {row.key: row.segment.topic_id for row in rows}
        return tuple(
            ErasedTopicReport(
                topic=name,
                topic_id=topic_id,
                slices=sum(owner == topic_id for owner in keys.values()),
                holding=sum(keys[key] == topic_id for key in found),
                records=sum(count_offsets(ranges) for place, ranges in erased.items() if place.topic_id == topic_id),
            )
            for topic_id, name in sorted(self._topics.items(), key=lambda item: (item[1], item[0]))
        )

    # Changing

    def _remember(self, rows: Sequence[StoredRow], found: Mapping[SliceKey, Ranges]) -> None:
        """Put the document of the ledger, unless an older one says the same already."""
        erased = ranges_by_partition(rows, found)
        seen = seen_by_partition(row for row in rows if row.key not in self._failed)
        topics = tuple(
            ErasedTopic(
                topic=name,
                topic_id=topic_id,
                partitions=tuple(
                    ErasedPartition(
                        partition=place.partition,
                        end_offset=end,
                        leader_epoch=self._epochs[place],
                        erased=erased.get(place, ()),
                        seen=seen.get(place, ()),
                    )
                    for place, end in sorted(self._bounds.items())
                    if place.topic_id == topic_id
                ),
            )
            for topic_id, name in sorted(self._topics.items())
        )
        erasure = Erasure(
            id=self._run_id,
            at_ms=now_ms(),
            how=self._how,
            salt=self._salt.hex() if self._how == _KEYS else "",
            hashes=self._hashes if self._how == _KEYS else (),
            topics=topics,
            applied=tuple(older.id for older in self._erasures.documents if self._includes(older)),
        )
        if not found and not self._is_news(erasure):
            return
        put_erasure(self._archive.storage, erasure)
        self._report = replace(self._report, run_id=self._run_id)

    def _includes(self, older: Erasure) -> bool:
        """True if this one erases everything that the older one does."""
        if any(topic.topic_id not in self._topics for topic in older.topics):
            return False
        return self._how == _LEDGER or (bool(older.hashes) and set(older.hashes) <= set(self._hashes))

    def _is_news(self, erasure: Erasure) -> bool:
        """True if the document of an erasure that has found nothing says something new."""
        if self._how == _LEDGER:
            return any(older.id in erasure.applied for older in self._erasures.unfinished())
        return self._how == _KEYS and not any(
            older.id in self._erasures.certified
            and set(erasure.hashes) <= set(older.hashes)
            and all(_says(older, topic) for topic in erasure.topics)
            for older in self._erasures.documents
        )

    def _rewrite(self, found: Mapping[SliceKey, Ranges]) -> None:
        """Write objects without what was found in their slices, wave by wave."""
        paths = {key[0] for key in found}
        rows = stored_rows(self._catalog.stored(paths=paths))
        planned = plan_objects(rows, found, self._holders(rows))
        self._held |= planned.held
        waves = cut_waves(
            planned.objects,
            bytes_of=lambda plan: plan.bytes,
            bytes_max=self._options.commit_bytes,
            rows_of=lambda plan: plan.row_count,
            rows_max=100_000,
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

    def _write(self, wave: Sequence[ObjectPlan]) -> dict[str, dict[SliceKey, Slice]]:
        items = [RewriteItem(number=number, path=plan.path, slices=plan.slices) for number, plan in enumerate(wave)]
        total = sum(plan.bytes for plan in wave)
        executor = self._workers.for_bytes(total)
        tasks = spread(
            [(plan.bytes, item) for plan, item in zip(wave, items, strict=True)],
            _TASKS_PER_CORE * executor.parallelism,
        )
        outcomes = executor.run(
            rewrite_objects,
            self._context,
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
                        self._fail(row, outcome.failure)
                continue
            before = (key_of(stored) for _, stored in items[outcome.number].slices)
            written[plan.path] = dict(zip(before, outcome.written, strict=True))
        return written

    def _commit(self, wave: Sequence[ObjectPlan], written: Mapping[str, Mapping[SliceKey, Slice]]) -> None:
        named: set[str] = set()

        def commit(attempt: int) -> None:
            plans = [plan for plan in wave if self._applies(plan)] if attempt else list(wave)
            plans = [plan for plan in plans if not self._holders([row for row in plan.rows if row.key in plan.erased])]
            if not plans:
                return
            ids = {row.segment.topic_id for plan in plans for row in plan.rows}
            last = last_rows(stored_rows(self._catalog.stored(topic_ids=ids)))
            now = now_ms()
            values = [
                row
                for plan in plans
                for row in new_rows(plan, written[plan.path], last, run_id=self._run_id, now_ms=now)
            ]
            self._catalog.commit(
                pa.Table.from_pylist(values, schema=SCHEMA),
                replaced=table_of(row for plan in plans for row in plan.rows),
                still_valid=(lambda: self._may_follow(plans)) if attempt else None,
            )
            named.update(str(row["path"]) for row in values if row.get("path") is not None)
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

    def _may_follow(self, plans: Sequence[ObjectPlan]) -> bool:
        return not any(self._holders([row for row in plan.rows if row.key in plan.erased]) for plan in plans)

    def _count(self, plans: Sequence[ObjectPlan], written: Mapping[str, Mapping[SliceKey, Slice]]) -> None:
        report = self._report
        slices = [stored for plan in plans for stored in written[plan.path].values()]
        rewritten = sum(len(plan.erased) for plan in plans)
        self._report = replace(
            report,
            commits=report.commits + 1,
            objects=report.objects + len(plans),
            bytes=report.bytes + sum(stored.bytes for stored in slices),
            rewritten=report.rewritten + rewritten,
            carried=report.carried + len(slices) - rewritten,
        )

    def _record_run(self) -> None:
        """Commit the run itself, so that whoever follows the catalog reads the ledger again."""
        if self._report.run_id is None:
            return

        def commit(attempt: int) -> None:
            now = now_ms()
            run = Run(
                run_id=self._run_id,
                started_at=self._work.started_at_ms,
                finished_at=now,
                snapshot=None,
                statistics={
                    "command": "erase",
                    "how": self._how,
                    "topics": len(self._topics),
                    "records": self._report.records,
                    "slices": self._report.rewritten,
                    "exit_code": replace(self._report, faults=tuple(self._faults)).exit_code,
                    **({STOPPED: True} if self._work.is_stopped() else {}),
                },
                written_at=now,
                commit=self._catalog.version + 1,
            )
            self._catalog.commit(encode_rows([run]), still_valid=(lambda: True) if attempt else None)

        commit_with_retries(self._catalog, commit)

    def _delete(self, sought: Sought | None) -> None:
        self._work.tell("deleting")
        wanted = partial(self._within, sought)
        done: Deletion = delete_old(self._archive, self._topics, wanted, holding=self._holding, held=self._held)
        self._report = replace(self._report, deleted=done.deleted, deleted_bytes=done.bytes, kept=tuple(done.kept))

    def _look_through_readers(self, sought: Sought | None) -> None:
        """Look at what stays as it is as readers get it: none of the records may come out."""
        kept = {entry.path for entry in self._report.kept}
        rows = [*self._rows(), *self._undo_rows()]
        left = [row for row in rows if row.segment.path in self._held or row.segment.path in kept]
        inside = self._scan(left, sought, again=True) if left else {}
        found = self._scan(left, sought, again=True, through=True) if left else {}
        self._report = replace(
            self._report,
            suppressed=sum(count_offsets(ranges) for ranges in ranges_by_partition(left, inside).values()),
            found_again=self._unsettled + sum(count_offsets(ranges) for ranges in found.values()),
        )

    def _ended(self) -> EraseReport:
        return replace(
            self._report,
            finished_at_ms=now_ms(),
            faults=tuple(dict.fromkeys(self._faults)),
            interrupted=self._work.is_stopped(),
        )

    def _certify(self, report: EraseReport) -> EraseReport:
        if report.run_id is None:
            return report
        moment = find_moment(self._archive.storage, self._catalog.runs(), None)
        cluster_id = None if moment.cluster is None else moment.cluster.cluster_id
        path = certificate_path(report.run_id)
        text = json.dumps(signed(certificate_of(report, cluster_id=cluster_id), self._signing_key), indent=2).encode()
        self._archive.storage.put(path, text)
        if self._options.certificate is not None:
            _write_file(self._options.certificate, text)
        return replace(report, certificate=path)


def _write_file(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(
            f"the certificate cannot be written: {error.strerror}",
            object_name=str(path),
            hint="the erasure is done, and the archive has the certificate, too",
        ) from error


def _says(older: Erasure, topic: ErasedTopic) -> bool:
    known = {
        part.partition: part for mine in older.topics if mine.topic_id == topic.topic_id for part in mine.partitions
    }
    return all(
        (said := known.get(part.partition)) is not None
        and said.end_offset >= part.end_offset
        and not any(outside(said.seen, first, end) for first, end in part.seen)
        for part in topic.partitions
    )


def _identity(row: StoredRow) -> tuple[Any, ...]:
    names = ("kind", "topic_id", "partition", "base_offset", "end_offset", "path", "position", "run_id", "details")
    return tuple(row.values[name] for name in names)


def erase(
    *,
    archive: str | Path | None = None,
    config: Config | Path | str | None = None,
    storage: StorageConfig | None = None,
    session: Session | None = None,
    on_progress: OnProgress = silent,
    **options: Unpack[EraseKeywords],
) -> EraseReport:
    """Erase the records of a person from an archive in place, and keep them away.

    Args:
        archive: a folder or a URL, in maxbrod's own layout.
        config: a configuration, or the path of a configuration file. All other arguments override it.
        storage: how to reach the archive, beyond its URL.
        session: a Spark session to use. It stays open.
        on_progress: called with each step.
        options: the options of `maxbrod erase`, such as `topics` or `keys`; docs/reference has them all.

    Returns:
        The report. Check `.exit_code`, and `.kept` for what still holds the records.

    Raises:
        MaxbrodError: nothing could be erased.
    """
    whole = config_with(config, "erase", options, archive=archive, storage=storage)
    with Work(whole, session=session, on_progress=on_progress) as work:
        return erase_archive(work)
