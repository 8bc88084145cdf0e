"""Makes the format known to a Spark session. Loads nothing of archives: workers import this, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILTER_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
"""Off by default in Spark, which then tells sources nothing of a query's filters."""


def register(spark: SparkSession) -> None:
    """Let `spark.read.format("maxbrod")` read archives, and tell them what a query filters by."""
    from maxbrod.datasource.source import ArchiveSource  # noqa: PLC0415 - Arrow, storage, catalog

    spark.conf.set(FILTER_PUSHDOWN, "true")
    spark.dataSource.register(ArchiveSource)


def register_active() -> None:
    """In workers there is no session, and nothing to do."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    session = SparkSession.getActiveSession()
    if session is not None:
        register(session)
