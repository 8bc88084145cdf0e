"""Registers the format with a Spark session. Imports nothing else, because workers import this module, too."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Let `spark.read.format("maxbrod")` read archives."""
    from maxbrod.table.source import ArchiveSource  # noqa: PLC0415 - Arrow, storage, catalog

    spark.dataSource.register(ArchiveSource)


def register_active() -> None:
    """Register with the active session. Workers have none, and then nothing happens."""
    if "pyspark.sql.session" not in sys.modules:
        # No session without it. Importing it takes longer than all that `maxbrod query` does before the JVM starts.
        return
    from pyspark.sql import SparkSession  # noqa: PLC0415

    session = SparkSession.getActiveSession()
    if session is not None:
        register(session)
