"""The catalog of one archive: open it, query it, commit to it.

A `Catalog` is bound to the version that it read. It answers from that version and commits only onto it: if another
writer has committed since, `commit` is refused, because plans made from the old version may be wrong.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Self

import pyarrow as pa
from deltalake.exceptions import DeltaError

from maxbrod.catalog.codec import Table, decode_log, encode_checkpoint, first_entry, shortened
from maxbrod.catalog.commits import (
    StreamBatch,
    commit_with_retries,
    fenced,
    last_batch,
    missing_object,
    newer_tables,
    overtaken,
    plan_rewrite,
    write_commit,
)
from maxbrod.catalog.empty_places import no_archive, refuse_foreign_objects
from maxbrod.catalog.files import DataFiles
from maxbrod.catalog.generations import GenerationChanges
from maxbrod.catalog.ledger import begin_ledger, put_document
from maxbrod.catalog.log import (
    LAST_CHECKPOINT,
    LOG_FOLDER,
    TABLE_FOLDER,
    Log,
    delete_expired,
    demand_checksums,
    entry_name,
    has_entry,
    log_path,
    put_checkpoint,
    read_log,
)
from maxbrod.catalog.queries import Queries
from maxbrod.catalog.replaced import retire
from maxbrod.catalog.rows import Row, Run, decode_rows, encode_rows
from maxbrod.catalog.schema import FORMAT_PROPERTY, SCHEMA, TABLE_PROPERTIES, check_format, has_checksums
from maxbrod.catalog.statements import CatalogSigner, is_signed, keep_links, signer_of
from maxbrod.catalog.validity import check_rows
from maxbrod.config import StorageConfig
from maxbrod.errors import (
    CorruptDataError,
    MaxbrodError,
    ObjectExistsError,
    RefusedError,
    UnavailableError,
)
from maxbrod.model import now_ms
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import encrypted, open_storage, probe_conditional_puts

_LOG: Final = logging.getLogger(__name__)
_CHECKPOINT_EVERY: Final = int(TABLE_PROPERTIES["delta.checkpointInterval"])
_CLEANUP_EVERY: Final = 2 * _CHECKPOINT_EVERY
_CLEANUP_PAUSE_MS: Final = 600 * 1000
"""Commits, and in one process also the time, between two cleanups of the log. Each lists it, and it has the entries of
an hour: at ten commits a second 36,000."""
_FOLLOWED_MAX: Final = 2 * _CHECKPOINT_EVERY
"""Entries that one who follows has in memory, before a checkpoint takes their place."""
_SWEEP_EVERY: Final = 64
_SWEEP_PAUSE_MS: Final = 3600 * 1000
"""Commits, and in one process also the time, between two sweeps. Each lists the folder, which at a commit a second has
the files of 86,400 commits: so a commit pays for listing a few dozen."""
LATE_MS: Final = 30 * 60 * 1000
"""Objects younger than this are there: half of the shortest grace time, since clocks differ."""
_GARBAGE: Final = "'maxbrod gc' took it for garbage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A later version of a catalog, or the same one."""

    catalog: Catalog
    rows: pa.Table
    """The rows of all files that were added since: new ones, and others that were folded with them."""
    count: int
    """The number of new rows."""


class Catalog(Queries):
    """Not thread-safe."""

    def __init__(self, storage: Storage, table: Table, signer: CatalogSigner | None = None) -> None:
        self.url: Final = storage.url
        # Never in a colder storage class: a catalog that must be thawed first would be useless.
        self._storage: Final = storage.at_hand()
        self._storage.signing = storage.signing
        self._signer = signer
        self._warned = False
        self._table = table
        self.claim: int | None = None
        """The fence that this writer was given, if it is one of several that divide the work."""
        self._swept_at_ms = self._cleaned_at_ms = 0
        # What the next commit adds was written after this.
        self._since_ms, self._since_s = now_ms(), time.monotonic()
        self._written: dict[str, pa.Table] = {}
        """The rows of small files that this process has written and that are in use."""

    def __repr__(self) -> str:
        return f"Catalog({self.url!r}, version={self.version})"

    @classmethod
    def create(cls, storage: Storage) -> Self:
        """The catalog of a new archive, without rows. RefusedError: there is one already."""
        entry, kept, signer = first_entry(), storage.at_hand(), signer_of(storage)
        table = _decode(kept, Log(0, {entry_name(0): entry}))
        if signer is not None:
            entry, table = signer.sign(kept, None, entry, table)
        is_new = read_log(kept) is None
        try:
            if is_new:
                kept.put(log_path(entry_name(0)), entry)
        except ObjectExistsError:
            is_new = False
        if not is_new:
            message = "there is already an archive"
            raise RefusedError(message, operation="create the catalog", object_name=kept.url, hint="open it instead")
        begin_ledger(kept)
        return cls(storage, table, signer)

    @classmethod
    def find(cls, storage: Storage) -> Self | None:
        """The current catalog; None if there is none.

        UnsupportedFormatError: a newer release wrote it. CorruptDataError: one of its objects is damaged or missing.
        """
        table = load_table(storage)
        return None if table is None else cls(storage, table)

    @classmethod
    def open(cls, storage: Storage) -> Self:
        """As `find`, but UsageError if there is none, and CorruptDataError if it was lost."""
        catalog = cls.find(storage)
        if catalog is None:
            raise no_archive(storage)
        return catalog

    @property
    def version(self) -> int:
        """The version of the table that this catalog has read or committed."""
        return self._table.log.version

    @property
    def table(self) -> Table:
        """The table at this version, as its log describes it."""
        return self._table

    @property
    def ledger(self) -> int:
        """The number of the last document of the ledger that was committed; 0 if there is none."""
        return self._table.ledger

    @property
    def format_version(self) -> str:
        """The version of the format in which the archive was created."""
        return str(self._table.properties[FORMAT_PROPERTY])

    def refresh(self) -> None:
        """Read the newest version. Plans made before must be made again."""
        self._table = Catalog.open(self._storage)._table  # noqa: SLF001 - one of the same class

    def own_paths(self) -> set[str]:
        """The objects that this version is made of: entries and checkpoint of the log, its pointer, and data files."""
        entries = {log_path(name) for name in self._table.log.files}
        return {*entries, LAST_CHECKPOINT, *(f"{TABLE_FOLDER}/{file.path}" for file in self._table.files)}

    def follow(self) -> Followed | None:
        """The newest version by the entries since this one, which costs a request for each entry and for each file.

        None: it must be opened again, because commits have done more than add rows, or have been cleaned up.
        """
        table = self._table
        for newer in newer_tables(self._storage, table):
            if newer is None:
                return None
            table = newer
        if table is self._table:
            # See `is_newest`.
            there = has_entry(self._storage, self.version)
            return Followed(catalog=self, rows=SCHEMA.empty_table(), count=0) if there else None
        if len(table.log.files) > _FOLLOWED_MAX:
            table = replace(table, log=shortened(table.log))
        known = {file.path for file in self._table.files}
        catalog = Catalog(self._storage, table, self._signer)
        files = catalog._files()
        rows = files.read(SCHEMA.names, files=[file for file in table.files if file.path not in known])
        count = sum(file.rows for file in table.files) - sum(file.rows for file in self._table.files)
        return Followed(catalog=catalog, rows=rows, count=count)

    def has_next(self) -> bool:
        """True if the commit after this version is there. One request, which cannot tell if all has been cleaned up."""
        return has_entry(self._storage, self.version + 1)

    def is_newest(self) -> bool:
        """True if no writer has committed since this catalog was read. Costs one request if none has.

        `commit` checks this before it writes anything. Between two simultaneous writers, `write_commit` decides.
        """
        if has_entry(self._storage, self.version + 1):
            return False
        # Delta's log is cleaned up from its start. If our own entry is gone, the next one may be gone too, and its name
        # be free again.
        if has_entry(self._storage, self.version):
            return True
        newest = read_log(self._storage)
        return newest is not None and newest.version == self.version

    def demand_presence(self) -> None:
        """UnavailableError: the catalog that was read is gone. Costs one request if it is not."""
        # Entries are cleaned up if others have committed for long.
        if not has_entry(self._storage, self.version) and read_log(self._storage) is None:
            raise UnavailableError(
                "the archive is gone: its catalog was here, and is not any more",
                operation="look at the catalog",
                object_name=self._storage.url,
                hint="mount or bring back what is stored there; to begin a new archive, start the command again",
            )

    @property
    def fence(self) -> int:
        """At this version, the lowest claim of a writer that may still commit. Writers without a claim always may."""
        return self._table.fence

    def raise_fence(self, fence: int) -> None:
        """From now on, refuse all commits of writers with a lower claim, whatever version they have read.

        The fence is an application transaction of the log. A writer that was suspended before its commit finds another
        version, and in it the fence.
        """

        def commit(_: int) -> None:
            if self.fence < fence:
                self._write(encode_rows(()), encode_rows(()), fence=fence)

        self.refresh()
        commit_with_retries(self, commit)

    def lost_commits(self, *, until_ms: int | None = None) -> list[tuple[int, str]]:
        """Versions behind this one of which only the files are left, and their runs.

        Files are written in the moment before the entry: a writer that is about to commit looks the same. `until_ms`
        leaves younger files out.
        """
        files = self._files()
        return sorted(
            (row.commit, row.run_id)
            for info in files.unnamed_since_last()
            if until_ms is None or info.modified_ms < until_ms
            for row in decode_rows(files.runs_in(info))
            if isinstance(row, Run) and row.commit is not None and row.commit > self.version
        )

    def last_batch(self, stream: str) -> int | None:
        """The last committed micro-batch of a stream; None if there is none."""
        return last_batch(self._table.log, stream)

    def recent_paths(self, since_ms: int) -> set[str]:
        """Objects that a row has named since then, even if none does now.

        A reader that plans from an older version may still read them. Reaches back one day, as Delta's files do.
        """
        files = self._files()
        # As far back as Delta's log reaches.
        removed = self._table.log.removed_since(since_ms, replaced=True)
        return {str(path) for file in removed for path in files.read_if_there(file, "path") if path is not None}

    def commit(
        self,
        rows: Iterable[Row] | pa.Table,
        *,
        replaced: Iterable[Row] | pa.Table = (),
        retired: Iterable[Row] | pa.Table = (),
        generations: GenerationChanges | None = None,
        expected_version: int | None = None,
        batch: StreamBatch | None = None,
        since_ms: int | None = None,
        still_valid: Callable[[], bool] | None = None,
    ) -> int:
        """Add rows and remove those that they replace, atomically; returns the new version.

        `retired` rows are replaced as well, but queries as of an older run still return them. `generations` is what
        changes about generations of compacted topics, in the same commit.
        `batch` is the micro-batch of a stream that the rows belong to; `last_batch` returns it afterwards. `since_ms`
        is when the first object of the rows was written, if that was before this catalog was opened. With
        `still_valid`, a commit that others overtake who only add rows follows theirs, as often as it takes, if
        `still_valid` agrees after each look; whatever it reads anew must not be of this catalog.
        FencedError: the catalog's fence is above this writer's claim.
        RefusedError: another writer has committed since this catalog was read (or since `expected_version`, if
        given), a replaced row is missing, a row is invalid, or `gc` has deleted an object of a run that took long;
        nothing is visible. UnavailableError: the store failed; the message says if it is unknown whether the commit
        took effect. After an error this catalog keeps its version, so a commit that did take effect counts as one of
        another writer.
        """
        if not isinstance(rows, pa.Table):
            # Runs get the version that commits them: clocks may step back, so only the version orders them.
            rows = [replace(row, commit=self.version + 1) if isinstance(row, Run) else row for row in rows]
        added, gone, kept = map(_as_table, (rows, replaced, retired))
        if kept.num_rows:
            added, gone = pa.concat_tables([added, retire(kept, self.revisions())]), pa.concat_tables([gone, kept])
        if generations is not None:
            added = pa.concat_tables([added, generations.added])
            gone = pa.concat_tables([gone, generations.removed])
        check_rows(added)
        if not added.num_rows and not gone.num_rows:
            return self.version
        if self.claim is not None and self.claim < self.fence:
            raise fenced(self.url)
        if expected_version not in {None, self.version}:
            raise overtaken(self.version + 1, self.url)
        return self._write(added, gone, batch=batch, since_ms=since_ms, still_valid=still_valid)

    def _write(
        self,
        added: pa.Table,
        gone: pa.Table,
        *,
        batch: StreamBatch | None = None,
        fence: int | None = None,
        since_ms: int | None = None,
        still_valid: Callable[[], bool] | None = None,
    ) -> int:
        if still_valid is None and not self.is_newest():
            raise overtaken(self.version + 1, self.url)
        files = self._files()
        self._signer = self._signer or signer_of(self._storage)
        self._warn_unsigned()
        rewrite = plan_rewrite(files, added, gone)
        if self._signer is not None:
            # Their rows are written again, and signed: they must be those that were signed before.
            files.demand_digests([*rewrite.touched, *rewrite.folded])
        asked_at_ms = self._since_ms if since_ms is None else min(since_ms, self._since_ms)
        # By two clocks: one may be set back, the other stands still while the machine sleeps.
        asked_at_s = self._since_s
        if max(now_ms() - asked_at_ms, (time.monotonic() - asked_at_s) * 1000) > LATE_MS:
            asked_at_ms, asked_at_s = now_ms(), time.monotonic()
            missing = missing_object(self._storage, added, gone)
            if missing is not None:
                raise RefusedError(
                    f"an object of this run was deleted before the run could commit it: {_GARBAGE}",
                    operation="commit to the catalog",
                    object_name=missing,
                    hint="nothing of this commit is visible; run the command again, and give gc a --grace longer than "
                    "a run",
                )

        def may_follow(newer: Table) -> bool:
            return (self.claim is None or self.claim >= newer.fence) and still_valid is not None and still_valid()

        self._table = write_commit(
            self._storage,
            self._table,
            files,
            rewrite,
            batch=batch,
            fence=fence,
            document=lambda onto: put_document(self._storage, onto, added=added, gone=gone),
            may_follow=None if still_valid is None else may_follow,
            signer=self._signer,
        )
        self._written = {
            file.path: rows for file in self._table.files if (rows := self._written.get(file.path)) is not None
        }
        late = max(now_ms() - asked_at_ms, (time.monotonic() - asked_at_s) * 1000) > LATE_MS
        if late and (missing := missing_object(self._storage, added, gone)) is not None:
            raise CorruptDataError(
                f"an object of this run was deleted while the run committed it: {_GARBAGE}",
                operation="commit to the catalog",
                object_name=missing,
                hint="'maxbrod repair' makes gaps of such objects and reads them again from the source",
            )
        self._since_ms, self._since_s = now_ms(), time.monotonic()
        self._keep_small()
        return self.version

    def _warn_unsigned(self) -> None:
        """Say once that commits of this process will fail a check of signatures."""
        last = self._table.log.files.get(entry_name(self.version), b"")
        if self._signer is None and not self._warned and is_signed(last):
            self._warned = True
            _LOG.warning(
                "the catalog of %s is signed, and this process commits without a key: give --signing-key, or 'maxbrod "
                "check --signature' will find version %d unsigned",
                self.url,
                self.version + 1,
            )

    def _keep_small(self) -> None:
        """Keep the log short and sweep unused files. The commit is done, so nothing here may fail it."""
        cleans = now_ms() - self._cleaned_at_ms >= _CLEANUP_PAUSE_MS and self.version % _CLEANUP_EVERY == 0
        self._cleaned_at_ms = now_ms() if cleans else self._cleaned_at_ms
        self._table = keep_short(self._storage, self._table, cleans=cleans)
        if self.version % _SWEEP_EVERY == 0 and now_ms() - self._swept_at_ms >= _SWEEP_PAUSE_MS:
            self._swept_at_ms = now_ms()
            # Not Delta's own vacuum: it commits, and other writers planning on this version would be refused.
            with suppress(MaxbrodError):
                files = self._files()
                files.delete(files.unused())

    def _files(self) -> DataFiles:
        return DataFiles(self._storage, self._table, self._written)


def _as_table(rows: Iterable[Row] | pa.Table) -> pa.Table:
    return rows if isinstance(rows, pa.Table) else encode_rows(rows)


def open_writable(
    url: str,
    options: StorageConfig,
    *,
    single_writer: bool = False,
    before_creating: Callable[[], object] = lambda: None,
) -> tuple[Storage, Catalog]:
    """Open an archive for writing, and check what every commit depends on. In an empty place, create the catalog.

    `before_creating` is called if there is no catalog yet; if it raises, none is created.
    RefusedError: the store ignores conditional puts and `single_writer` does not promise that nobody else writes, or
    there are foreign objects. CorruptDataError: this is an archive that has lost its catalog.
    """
    storage = open_storage(url, options)
    # A key that cannot be used is found out before anything is written.
    signer_of(storage)
    catalog = Catalog.find(storage)
    encrypts = options.encryption.given and not storage.encrypted
    if catalog is None:
        refuse_foreign_objects(storage)
    elif encrypts:
        raise RefusedError(
            "a key is given, and this archive is not encrypted: what is written here could be read without the key",
            object_name=storage.url,
            hint="'maxbrod copy' makes an encrypted copy; to write to this archive as it is, give no key",
        )
    if not probe_conditional_puts(storage) and not single_writer:
        raise RefusedError(
            "the store ignores conditional puts: two writers would overwrite each other's commits",
            operation="open for writing",
            object_name=storage.url,
            hint="use another store, or make sure that nobody else writes to this archive and pass --single-writer",
        )
    if catalog is None:
        before_creating()
        if encrypts:
            storage = encrypted(storage, options.encryption)
        try:
            catalog = Catalog.create(storage)
        except RefusedError:
            # Another writer has created it first.
            catalog = Catalog.open(storage)
    return storage, catalog


def load_table(storage: Storage) -> Table | None:
    """The newest version, refused if this release does not support its format; None if there is none."""
    log = read_log(storage)
    return None if log is None else _decode(storage, log)


def _decode(storage: Storage, log: Log) -> Table:
    table = decode_log(log, name=storage.name_of(LOG_FOLDER))
    check_format(table.properties, table.schema, name=storage.url)
    # Not before: an entry of the future is refused as such.
    demand_checksums(log, name=storage.name_of(LOG_FOLDER), always=has_checksums(table.properties))
    return table


def keep_short(storage: Storage, table: Table, *, cleans: bool) -> Table:
    """Write a checkpoint if one is due, and if it `cleans` delete what it replaces; the same table.

    Never raises: the commit is done.
    """
    if table.log.version % _CHECKPOINT_EVERY:
        return table
    with suppress(MaxbrodError, DeltaError, pa.ArrowException):
        table = replace(table, log=put_checkpoint(storage, table.log, *encode_checkpoint(table.log)))
        # Entries are deleted only after a checkpoint that replaces them.
        if cleans:
            signed = is_signed(table.log.files[entry_name(table.log.version)])
            delete_expired(storage, *([partial(keep_links, storage)] if signed else []))
    return table
