"""Registers the format with a Spark session. Imports nothing else, because workers import this module, too."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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


def write(frame: DataFrame, url: str, **options: str | int | bool) -> None:
    """Append the rows of a DataFrame with Kafka's columns to the archive at `url`, which is created if necessary.

    Options are those of the format `maxbrod`. Rows with offsets are sorted by them. Others keep their order and are
    numbered in it.
    """
    register(frame.sparkSession)
    in_order(frame).write.format("maxbrod").options(**options).mode("append").save(url)


def in_order(frame: DataFrame) -> DataFrame:
    if not {"partition", "offset"} <= set(frame.columns):
        return frame
    places = [name for name in ("topic", "partition") if name in frame.columns]
    return frame.repartition(*places).sortWithinPartitions(*places, "offset")
