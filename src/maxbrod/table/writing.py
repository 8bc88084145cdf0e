"""Writes a DataFrame sorted as an archive needs it: each partition in one task, by offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write(frame: DataFrame, url: str, **options: str | int | bool) -> None:
    """Append the rows of a DataFrame with Kafka's columns to the archive at `url`, which is created if necessary.

    Options are those of the format `maxbrod`. Rows with offsets are sorted by them. Others keep their order and are
    numbered in it.
    """
    from maxbrod.table.registering import register  # noqa: PLC0415 - Spark, only when it is used

    register(frame.sparkSession)
    in_order(frame).write.format("maxbrod").options(**options).mode("append").save(url)


def in_order(frame: DataFrame) -> DataFrame:
    if not {"partition", "offset"} <= set(frame.columns):
        return frame
    places = [name for name in ("topic", "partition") if name in frame.columns]
    return frame.repartition(*places).sortWithinPartitions(*places, "offset")
