"""Makes the format known to a Spark session. Loads nothing of archives: workers import this, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Let `spark.read.format("maxbrod")` read archives."""
    from maxbrod.table.source import ArchiveSource  # noqa: PLC0415 - Arrow, storage, catalog

    spark.dataSource.register(ArchiveSource)


def register_active() -> None:
    """In workers there is no session, and nothing to do."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    session = SparkSession.getActiveSession()
    if session is not None:
        register(session)
