"""Erases records from an archive: look for them, remember that they are erased, write objects anew, commit, delete.

The order keeps a promise at every instant. The document of the ledger comes first: from then on no reader returns the
records, whatever else happens. Then objects are written without them, and one commit for each wave puts these in the
place of the old ones. Only then are old objects deleted. A kill leaves records that no reader returns, and objects that
the same command, or `--again`, deletes. At the end everything is looked at again, and a certificate says the outcome.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

from maxbrod.archive.archive import Archive, open_archive, open_for_writing
from maxbrod.archive.erasures import (
    ErasedOffsets,
    ErasedPartition,
    ErasedTopic,
    Erasure,
    certificate_path,
    hashes_of,
    ledger_salt,
    outside,
    put_erasure,
)
from maxbrod.archive.selection import select_names
from maxbrod.archive.snapshots import find_moment
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.commits import commit_with_retries
from maxbrod.catalog.rows import Run, encode_rows, new_run_id
from maxbrod.config import Config, StorageConfig, config_with
from maxbrod.erase.deletion import delete_old
from maxbrod.erase.plan import ByEpoch, SliceKey, StoredRow, count_offsets, erased_by_partition, seen_by_partition
from maxbrod.erase.report import ErasedTopicReport, EraseReport, certificate_of
from maxbrod.erase.request import Choice, choice_of, keys_of, signing_key_of
from maxbrod.erase.rewrite import ObjectRewrite
from maxbrod.erase.search import RecordSearch
from maxbrod.errors import UsageError
from maxbrod.model import now_ms
from maxbrod.signature import SigningKey, signed
from maxbrod.work.preflight import needs_storage
from maxbrod.work.progress import OnProgress, silent
from maxbrod.work.session import Session
from maxbrod.work.work import Work

if TYPE_CHECKING:
    from maxbrod.keywords import EraseKeywords

_PASSES_MAX: Final = 5
"""Looks at the archive, each after a commit. Others may commit rows meanwhile that were read from the source before."""
_DRY_SALT: Final = b"a dry run has no ledger"


def erase_archive(work: Work) -> EraseReport:
    """Erase the records that the options choose."""
    config, options = work.config, work.config.erase
    choice, signing_key = choice_of(options), signing_key_of(options)
    keys = keys_of(options) if choice is Choice.KEYS else []
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
    return _Execution(work, archive, choice, keys, signing_key).run()


class _Execution:
    """One erasure. Its run, its document of the ledger and its certificate have the same id."""

    def __init__(
        self, work: Work, archive: Archive, choice: Choice, keys: Sequence[bytes], signing_key: SigningKey | None
    ) -> None:
        assert isinstance(archive.catalog, Catalog)  # noqa: S101 - of our own layout
        self._work, self._options = work, work.config.erase
        self._archive, self._catalog, self._choice, self._signing_key = archive, archive.catalog, choice, signing_key
        self._run_id = new_run_id()
        self._topics = self._chosen_topics()
        self._erasures = archive.erasures()
        makes_salt = choice is Choice.KEYS and not self._options.dry_run
        self._salt = ledger_salt(archive.storage) if makes_salt else _DRY_SALT
        self._hashes = hashes_of(self._salt, keys)
        needs = needs_storage(archive.url, archive.options, writes=not self._options.dry_run)
        workers = work.workers(needs, jvm_works=choice is Choice.WHERE)
        self._search = RecordSearch(work, archive, self._catalog, self._topics, workers, self._run_id)
        self._rewrite = ObjectRewrite(work, archive, self._catalog, workers, self._search)
        self._remembered = False
        """True if the ledger has a document of this erasure."""
        self._unsettled = 0
        """Records that the last look found: others keep committing rows that have them."""
        self._report = EraseReport(
            archive=archive.url,
            run_id=None,
            dry_run=self._options.dry_run,
            how=choice,
            hashes=self._hashes if makes_salt else (),
            started_at_ms=work.started_at_ms,
            finished_at_ms=work.started_at_ms,
            topics=(),
        )

    def _chosen_topics(self) -> dict[str, str]:
        stored = self._catalog.topics()
        names = dict(zip(stored["topic_id"].to_pylist(), stored["topic"].to_pylist(), strict=True))
        chosen = set(select_names(set(names.values()), self._options.topics, self._options.exclude))
        found = {topic_id: name for topic_id, name in names.items() if name in chosen}
        if self._choice is Choice.LEDGER:
            known = self._archive.erasures().topic_ids
            found = {topic_id: name for topic_id, name in found.items() if topic_id in known}
        return found

    def run(self) -> EraseReport:
        search = self._search
        search.begin(self._choice, salt=self._salt, hashes=self._hashes, where=self._options.where)
        rows = search.all_rows()
        found = search.look(rows)
        self._report = replace(self._report, topics=self._topics_of(rows, found))
        if self._options.dry_run:
            return self._ended()
        self._remember(rows, found)
        for _ in range(_PASSES_MAX):
            if self._work.is_stopped():
                break
            if found:
                self._rewrite.run(found)
            self._catalog.refresh()
            left = [row for row in search.unseen_rows() if row.segment.path not in self._rewrite.held]
            found = search.look(left, again=True) if left else {}
            if not found:
                break
        else:
            self._unsettled = count_offsets(found.values())
        if self._work.is_stopped():
            return self._ended()
        self._record_run()
        self._delete()
        self._look_through_readers()
        return self._certified(self._ended())

    def _topics_of(self, rows: Sequence[StoredRow], found: Mapping[SliceKey, ByEpoch]) -> tuple[ErasedTopicReport, ...]:
        erased = erased_by_partition(rows, found)
        keys = {row.key: row.segment.topic_id for row in rows}
        return tuple(
            ErasedTopicReport(
                topic=name,
                topic_id=topic_id,
                slices=sum(owner == topic_id for owner in keys.values()),
                holding=sum(keys[key] == topic_id for key in found),
                records=count_offsets(epochs for place, epochs in erased.items() if place.topic_id == topic_id),
            )
            for topic_id, name in sorted(self._topics.items(), key=lambda item: (item[1], item[0]))
        )

    # The ledger

    def _remember(self, rows: Sequence[StoredRow], found: Mapping[SliceKey, ByEpoch]) -> None:
        """Put the document of the ledger, unless it would say nothing new."""
        by_keys = self._choice is Choice.KEYS
        erasure = Erasure(
            id=self._run_id,
            at_ms=now_ms(),
            how=self._choice,
            salt=self._salt.hex() if by_keys else "",
            hashes=self._hashes if by_keys else (),
            topics=self._erased_topics(rows, found),
            applied=tuple(older.id for older in self._erasures.documents if self._includes(older)),
        )
        if found or self._is_news(erasure):
            put_erasure(self._archive.storage, erasure)
            self._remembered = True
            self._report = replace(self._report, run_id=self._run_id)

    def _erased_topics(self, rows: Sequence[StoredRow], found: Mapping[SliceKey, ByEpoch]) -> tuple[ErasedTopic, ...]:
        erased = erased_by_partition(rows, found)
        seen = seen_by_partition(row for row in rows if row.key not in self._search.failed)
        partitions: dict[str, list[ErasedPartition]] = {topic_id: [] for topic_id in self._topics}
        for place, end in sorted(self._search.bounds.items()):
            if place.topic_id in partitions:
                partitions[place.topic_id].append(
                    ErasedPartition(
                        partition=place.partition,
                        end_offset=end,
                        leader_epoch=self._search.epochs[place],
                        erased=tuple(
                            ErasedOffsets(leader_epoch=epoch, offsets=ranges)
                            for epoch, ranges in erased.get(place, {}).items()
                        ),
                        seen=seen.get(place, ()),
                    )
                )
        return tuple(
            ErasedTopic(topic=name, topic_id=topic_id, partitions=tuple(partitions[topic_id]))
            for topic_id, name in sorted(self._topics.items())
        )

    def _includes(self, older: Erasure) -> bool:
        """True if this one erases everything that the older one does."""
        if any(topic.topic_id not in self._topics for topic in older.topics):
            return False
        return self._choice is Choice.LEDGER or (bool(older.hashes) and set(older.hashes) <= set(self._hashes))

    def _is_news(self, erasure: Erasure) -> bool:
        """True if the document of an erasure that has found nothing says something new."""
        if self._choice is Choice.LEDGER:
            return any(older.id in erasure.applied for older in self._erasures.unfinished())
        return self._choice is Choice.KEYS and not any(
            older.id in self._erasures.certified
            and set(erasure.hashes) <= set(older.hashes)
            and all(_says(older, topic) for topic in erasure.topics)
            for older in self._erasures.documents
        )

    # The end

    def _record_run(self) -> None:
        """Commit the run itself, so that whoever follows the catalog reads the ledger again."""
        if not self._remembered:
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
                    "how": str(self._choice),
                    "topics": len(self._topics),
                    "records": self._report.records,
                    "slices": self._rewrite.rewritten,
                    "exit_code": self._ended().exit_code,
                },
                written_at=now,
                commit=self._catalog.version + 1,
            )
            self._catalog.commit(encode_rows([run]), still_valid=(lambda: True) if attempt else None)

        commit_with_retries(self._catalog, commit)

    def _delete(self) -> None:
        self._work.tell("deleting")
        search = self._search
        done = delete_old(self._archive, self._topics, search.wanted, holding=search.holding, held=self._rewrite.held)
        self._report = replace(self._report, deleted=done.deleted, deleted_bytes=done.bytes, kept=tuple(done.kept))

    def _look_through_readers(self) -> None:
        """Look at what stays as it is as readers get it: none of the records may come out."""
        kept = {entry.path for entry in self._report.kept} | self._rewrite.held.keys()
        left = [row for row in self._search.all_rows() if row.segment.path in kept]
        inside = self._search.look(left, again=True) if left else {}
        outside_it = self._search.look(left, again=True, through=True) if left else {}
        self._report = replace(
            self._report,
            suppressed=count_offsets(erased_by_partition(left, inside).values()),
            found_again=self._unsettled + count_offsets(outside_it.values()),
        )

    def _ended(self) -> EraseReport:
        rewrite = self._rewrite
        return replace(
            self._report,
            finished_at_ms=now_ms(),
            rewritten=rewrite.rewritten,
            carried=rewrite.carried,
            objects=rewrite.objects,
            bytes=rewrite.bytes,
            commits=rewrite.commits,
            looked_again=self._search.looked_again,
            faults=tuple(dict.fromkeys(self._search.faults)),
            interrupted=self._work.is_stopped(),
        )

    def _certified(self, report: EraseReport) -> EraseReport:
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
