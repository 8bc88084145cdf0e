"""The catalog of a copy: whether it descends from its source, and how a version of the source becomes its newest one.

A version is published by its checkpoint, in one put: it needs no entry before it. So a copy goes from one version of
its source to any later one at once, whatever the source has cleaned up meanwhile and whatever versions in between
name. The entry follows, because the next writer needs it. All bytes but those of the checkpoint are the source's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.codec import Table, encode_checkpoint
from maxbrod.catalog.files import DataFiles
from maxbrod.catalog.log import (
    LOG_FOLDER,
    RETENTION_MS,
    TABLE_FOLDER,
    checkpoint_name,
    delete_expired,
    entry_name,
    log_path,
    put_pointer,
)
from maxbrod.catalog.rows import Run
from maxbrod.catalog.statements import is_signed, keep_links
from maxbrod.errors import MaxbrodError, ObjectExistsError, ObjectNotFoundError, RefusedError
from maxbrod.model import now_ms
from maxbrod.storage.interface import Storage

RunKey = tuple[int, str]
"""The version that committed a run, and its id."""
_REWRITING: Final = frozenset({"prune", "prune --undo", "check --repair", "repair"})
"""The commands that take runs away, or bring them back."""
_CHAIN_MAX: Final = 4096
_ELSEWHERE: Final = "name another DST; if it is no longer needed, delete this one first"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedVersion:
    """A version of a source, as a copy of it remembers it."""

    version: int
    entry: str | None
    """The digest of the log entry of this version; None if the copy was killed before it had the entry."""
    table_id: str
    runs: frozenset[RunKey]
    all_runs: bool = True
    """False if `runs` are only some of the runs at that version."""


def digest_of(entry: bytes) -> str:
    return hashlib.sha256(entry).hexdigest()


def read_entry(storage: Storage, version: int) -> bytes | None:
    """The log entry of a version; None if it was cleaned up."""
    try:
        return bytes(storage.get(log_path(entry_name(version))))
    except ObjectNotFoundError:
        return None


def run_keys(runs: Iterable[Run]) -> frozenset[RunKey]:
    """Runs of older releases, which do not say by which version they came, come first."""
    return frozenset((run.commit or 0, run.run_id) for run in runs)


def version_of_copy(storage: Storage, catalog: Catalog) -> CopiedVersion:
    """The version at which a copy of a whole archive stands."""
    entry = read_entry(storage, catalog.version)
    return CopiedVersion(
        version=catalog.version,
        entry=None if entry is None else digest_of(entry),
        table_id=catalog.table.table_id,
        runs=run_keys(catalog.runs()),
    )


def demand_descent(source: Storage, catalog: Catalog, copied: CopiedVersion, *, name: str) -> None:
    """RefusedError: the copy at `name` holds what this source never was, or is no more.

    Every entry of a log has a random number in it, so the same entry proves the same history. Entries are cleaned up
    after an hour; then the runs up to that version prove it, as far as neither a prune nor a repair came in between.
    """
    if copied.version > catalog.version:
        raise _refused(
            f"it stands at version {copied.version}, and the source at {catalog.version}: the source was rolled back, "
            "or somebody else has written to the copy",
            name,
            "if the source was restored to an older state, keep this copy: it is newer",
        )
    entry = read_entry(source, copied.version)
    if entry is not None and copied.entry is not None:
        if digest_of(entry) != copied.entry:
            raise _refused(
                f"it has another version {copied.version} than the source: it is the copy of another archive, the "
                "source was rolled back or made anew, or somebody else has written to the copy",
                name,
                _ELSEWHERE,
            )
        return
    runs = catalog.runs()
    rewritten = any(run.statistics.get("command") in _REWRITING for run in runs if (run.commit or 0) > copied.version)
    if not _is_continued(
        run_keys(runs), copied, rewritten=rewritten, same_table=catalog.table.table_id == copied.table_id
    ):
        raise _refused(
            f"the runs of the source do not continue those of the copy, which stands at version {copied.version}: it "
            "is the copy of another archive, or the source was rolled back or made anew",
            name,
            _ELSEWHERE,
        )


def _is_continued(runs: Collection[RunKey], copied: CopiedVersion, *, rewritten: bool, same_table: bool) -> bool:
    before = {run for run in runs if run[0] <= copied.version}
    if rewritten:
        # A repair makes a new table.
        return bool(before & copied.runs)
    return same_table and (before == copied.runs if copied.all_runs else copied.runs <= before)


def _refused(message: str, name: str, hint: str) -> RefusedError:
    return RefusedError(f"this is no copy of the source: {message}", operation="copy", object_name=name, hint=hint)


def data_files(table: Table) -> list[str]:
    """The data files that a copy of this version needs. The first ones are those that rows are read from."""
    return [f"{TABLE_FOLDER}/{file.path}" for file in table.files]


def recent_data_files(table: Table) -> list[str]:
    """Data files that were replaced within a day: by them `gc` knows what somebody may still read. Some may be gone."""
    return [f"{TABLE_FOLDER}/{path}" for path in table.log.removed_since(now_ms() - RETENTION_MS, replaced=True)]


def publish(table: Table, source: Storage, target: Storage) -> None:
    """Make this version the newest one of a copy, whose objects and data files are all there."""
    kept, version = target.at_hand(), table.log.version
    checkpoint, pointer = encode_checkpoint(table.log)
    # Another copy of the same version may be at the same point.
    with suppress(ObjectExistsError):
        kept.put(log_path(checkpoint_name(version)), checkpoint)
    entry = table.log.files.get(entry_name(version))
    if entry is not None:
        with suppress(ObjectExistsError):
            kept.put(log_path(entry_name(version)), entry)
    put_pointer(kept, pointer)
    signed = entry is not None and is_signed(entry)
    # Nobody commits to a copy, so nobody else cleans up.
    with suppress(MaxbrodError):
        if signed:
            _copy_chain(source, kept, version)
        delete_expired(kept, *([partial(keep_links, kept)] if signed else []))
        files = DataFiles(kept, table)
        files.delete(files.unused())


def _copy_chain(source: Storage, target: Storage, version: int) -> None:
    """Copy the entries before this one: whoever has pinned an older version follows the chain of their digests."""
    there = {info.path for info in target.list(LOG_FOLDER)}
    entries = {log_path(entry_name(number)) for number in range(max(version - _CHAIN_MAX, 0), version)}
    for info in source.list(LOG_FOLDER):
        if info.path in entries and info.path not in there:
            with suppress(ObjectExistsError, ObjectNotFoundError):
                target.put(info.path, source.get(info.path))
