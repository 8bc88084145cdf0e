"""A DataFrame into a Kafka cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


def kafka_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceWriter:
    del options, schema, overwrite
    raise UsageError("this release writes DataFrames into archives only", hint="name an archive's URL")


def kafka_stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceStreamWriter:
    del options, schema, overwrite
    raise UsageError("this release writes DataFrames into archives only", hint="name an archive's URL")
