"""Queries as plain functions, for Python programs and notebooks."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - for those who look at the annotations
from typing import TYPE_CHECKING

from maxbrod.archive.opening import open_archive
from maxbrod.archive.selection import words_of
from maxbrod.config import Config, StorageConfig
from maxbrod.query.run import Query
from maxbrod.query.scope import QueryScope, select

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from maxbrod.engine.session import Session


def query(
    archive: str | Path,
    sql: str,
    *,
    topics: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    partitions: str | None = None,
    since: str | None = None,
    until: str | None = None,
    as_of: str | None = None,
    isolation: str = "read_committed",
    key: str | Iterable[str] = (),
    value: str | Iterable[str] = (),
    permissive: bool = False,
    limit: int | None = None,
    layout: str | None = None,
    storage: StorageConfig | None = None,
    session: Session | None = None,
) -> pa.Table:
    """Ask an archive by SQL, and get the rows as an Arrow table.

    Args:
        archive: a folder or a URL, of any layout.
        sql: a query over `records`, the topics by their names, `segments`, `gaps`, `runs` and `groups`.
        topics: names, globs, or regular expressions between slashes; all topics without.
        exclude: the same, for topics to leave out.
        partitions: numbers and ranges, such as `0,3-5`.
        since: the first time, in milliseconds or ISO 8601 with a zone.
        until: the first time no longer.
        as_of: a run, the beginning of its id, or `latest`.
        isolation: `read_committed`, or `read_uncommitted`.
        key: how keys are decoded, as `utf8` or `confluent`; several with TOPIC= before each.
        value: the same for values.
        permissive: what cannot be decoded is null, and does not end the query.
        limit: no more rows than that.
        layout: where looking at the archive would not tell.
        storage: how to reach the archive, beyond its URL.
        session: a Spark session to use, which stays open and sees nothing of this.

    Raises:
        UsageError: it is no query that Spark understands.
        MaxbrodError: nothing could be read; `maxbrod.errors` has the kinds.
    """
    config = Config(archive=str(archive), layout=layout, storage=storage or StorageConfig())
    scope = QueryScope(
        topics=words_of(topics),
        exclude=words_of(exclude),
        partitions=partitions,
        since=since,
        until=until,
        as_of=as_of,
        isolation=isolation,
        key=words_of(key),
        value=words_of(value),
        permissive=permissive,
    )
    with Query(config, scope, session=session) as opened:
        return opened.collect(opened.ask(sql), limit=limit).table


def views(
    spark: Session,
    archive: str | Path,
    *,
    prefix: str = "",
    topics: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    since: str | None = None,
    until: str | None = None,
    as_of: str | None = None,
    isolation: str = "read_committed",
    key: str | Iterable[str] = (),
    value: str | Iterable[str] = (),
    permissive: bool = False,
    layout: str | None = None,
    storage: StorageConfig | None = None,
) -> list[str]:
    """Make an archive's tables views of a session, and return their names; `prefix` stands before each.

    All columns of `records` and all records of a topic are read, whatever a query uses: name few topics and a time, or
    see `maxbrod.query`.
    """
    from maxbrod.query.views import Views  # noqa: PLC0415 - pyspark
    from maxbrod.table.registering import register  # noqa: PLC0415
    from maxbrod.table.views import create_every_view  # noqa: PLC0415

    scope = QueryScope(
        topics=words_of(topics),
        exclude=words_of(exclude),
        since=since,
        until=until,
        as_of=as_of,
        isolation=isolation,
        key=words_of(key),
        value=words_of(value),
        permissive=permissive,
    )
    opened = open_archive(str(archive), storage, layout=layout)
    register(spark)
    selected = select(opened, scope, layout=layout)
    found = Views(spark, opened, selected, scope).every()
    create_every_view(spark, found, prefix)
    return [prefix + each.name for each in found]
