"""Queries as Python functions, for programs and notebooks."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path  # noqa: TC003 - for those who look at the annotations
from typing import TYPE_CHECKING, Unpack

from maxbrod.archive.archive import open_archive
from maxbrod.config import Config, StorageConfig, config_with
from maxbrod.query.run import Query
from maxbrod.query.scope import QueryScope, select

if TYPE_CHECKING:
    import pyarrow as pa

    from maxbrod.query.keywords import QueryKeywords, ScopeKeywords
    from maxbrod.query.options import ScopeOptions
    from maxbrod.work.session import Session


def query(
    archive: str | Path,
    sql: str,
    *,
    layout: str | None = None,
    storage: StorageConfig | None = None,
    session: Session | None = None,
    **options: Unpack[QueryKeywords],
) -> pa.Table:
    """Query an archive with SQL, and return the rows as an Arrow table.

    Args:
        archive: a folder or a URL, in any layout.
        sql: a query over `records`, the topics by their names, `segments`, `gaps`, `runs` and `groups`.
        layout: the archive's layout, if it cannot be detected.
        storage: how to reach the archive, beyond its URL.
        session: a Spark session to use. It stays open, and gets no views.
        options: the options of `maxbrod query`, such as `topics`, `since` or `value`; docs/reference has them all.

    Raises:
        UsageError: Spark does not understand the query.
        MaxbrodError: nothing could be read; `maxbrod.errors` has the kinds.
    """
    base = Config(archive=str(archive), layout=layout, storage=storage or StorageConfig())
    config = config_with(base, "query", options)
    with Query(config, scope_of(config.query), session=session) as opened:
        return opened.answer(sql, limit=config.query.limit).table


def views(
    spark: Session,
    archive: str | Path,
    *,
    prefix: str = "",
    layout: str | None = None,
    storage: StorageConfig | None = None,
    **options: Unpack[ScopeKeywords],
) -> list[str]:
    """Create views of an archive's tables in a session, and return their names, each with `prefix` before it.

    A query reads all columns of `records` and all records of a topic: select few topics and a time, or use
    `maxbrod.query`. `options` are those of `maxbrod query` that select and decode.
    """
    from maxbrod.query.views import Views  # noqa: PLC0415 - pyspark
    from maxbrod.table.registering import register  # noqa: PLC0415
    from maxbrod.table.views import create_every_view  # noqa: PLC0415

    scope = scope_of(config_with(None, "query", options).query)
    opened = open_archive(str(archive), storage, layout=layout)
    register(spark)
    selected = select(opened, scope, layout=layout)
    found = Views(spark, opened, selected, scope).every()
    create_every_view(spark, found, prefix)
    return [prefix + each.name for each in found]


def scope_of(options: ScopeOptions) -> QueryScope:
    """UsageError: a value has no meaning."""
    return QueryScope(**{field.name: getattr(options, field.name) for field in fields(QueryScope)})
