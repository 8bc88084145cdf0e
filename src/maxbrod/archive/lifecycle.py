"""Commits of verbs that look after an archive: prune, hold and the like. Each of them is a run without a snapshot.

Such a verb is overtaken if another writer commits between its plan and its commit. It then plans its change to the
catalog again on the new version and tries once more: what it wants does not depend on who came first.
"""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - a field of a dataclass
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.commits import commit_with_retries
from maxbrod.catalog.rows import Run, encode_rows, new_run_id
from maxbrod.catalog.schema import SCHEMA
from maxbrod.errors import RefusedError
from maxbrod.model import now_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.archive.archive import Archive

NO_ROWS: Final = SCHEMA.empty_table()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Rows that a commit adds and removes, as tables of `SCHEMA`, and what its run records of itself."""

    added: pa.Table = field(default_factory=lambda: NO_ROWS)
    removed: pa.Table = field(default_factory=lambda: NO_ROWS)
    statistics: Mapping[str, Any] = field(default_factory=dict)
    still_valid: Callable[[], bool] | None = None
    """Asked if others have only added rows meanwhile: whether the change is right after theirs. None: it is not."""


def commit_run(archive: Archive, statistics: Mapping[str, Any]) -> str:
    """Commit a run that changes no other row; returns its id."""
    return commit_change(archive, lambda _: Change(statistics=statistics, still_valid=lambda: True)) or ""


def commit_change(archive: Archive, plan: Callable[[str], Change | None]) -> str | None:
    """Commit a change and its run, all or nothing; the id of the run, None if there was nothing to change.

    `plan` gets the id of the run. It is called again whenever another writer was faster, with the catalog at the new
    version: it must read the catalog and all holds each time.
    """
    catalog = archive.catalog
    if not isinstance(catalog, Catalog):
        raise RefusedError("this archive is in the layout of another tool, and has no catalog", object_name=archive.url)
    run_id, started_at = new_run_id(), now_ms()

    def commit(attempt: int) -> str | None:
        change = plan(run_id)
        if change is None:
            return None
        at = now_ms()
        run = Run(
            run_id=run_id,
            started_at=started_at,
            finished_at=at,
            snapshot=None,
            statistics=change.statistics,
            written_at=at,
        )
        rows = pa.concat_tables([change.added, encode_rows([replace(run, commit=catalog.version + 1)])])
        catalog.commit(rows, replaced=change.removed, still_valid=change.still_valid if attempt else None)
        return run_id

    return commit_with_retries(catalog, commit)
