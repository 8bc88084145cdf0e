"""What Spark calls: the format `maxbrod`, what writes it, and the reader that plans a query and reads its splits.

Spark pickles both and sends them around, so that they hold options only. Archives are opened where they are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from maxbrod.datasource.columns import column_names, names_in, spark_schema
from maxbrod.datasource.options import parse_options, wished_columns
from maxbrod.datasource.pushing import if_asked
from maxbrod.datasource.scope import narrow
from maxbrod.datasource.stream import ArchiveStreamReader
from maxbrod.datasource.stream_options import parse_stream_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, Filter
    from pyspark.sql.types import StructType

    from maxbrod.datasource.options import TableOptions

_TO_KAFKA: Final = "kafka.bootstrap.servers"
"""The option that says that a DataFrame goes into a cluster, not into an archive."""


class ArchiveSource(DataSource):  # type: ignore[misc]  # pyspark is not typed
    @classmethod
    def name(cls) -> str:
        return "maxbrod"

    def schema(self) -> StructType:
        # Not all options are looked at: a stream has others than a read, and which it is, is not known yet.
        return spark_schema(column_names(wished_columns(self.options)))

    def reader(self, schema: StructType) -> ArchiveReader:
        return ArchiveReader(parse_options(self.options), names_in(schema))

    def streamReader(self, schema: StructType) -> ArchiveStreamReader:  # noqa: N802 - Spark's name
        return ArchiveStreamReader(parse_stream_options(self.options), names_in(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        if self._to_kafka():
            from maxbrod.datasource.kafka_sink import kafka_writer  # noqa: PLC0415 - only who writes needs it

            return kafka_writer(self.options, schema, overwrite=overwrite)
        from maxbrod.datasource.archive_sink import archive_writer  # noqa: PLC0415 - as above

        return archive_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's signature
    ) -> DataSourceStreamWriter:
        if self._to_kafka():
            from maxbrod.datasource.kafka_sink import kafka_stream_writer  # noqa: PLC0415 - as above

            return kafka_stream_writer(self.options, schema, overwrite=overwrite)
        from maxbrod.datasource.archive_sink import archive_stream_writer  # noqa: PLC0415 - as above

        return archive_stream_writer(self.options, schema, overwrite=overwrite)

    def _to_kafka(self) -> bool:
        return any(name.lower() == _TO_KAFKA for name in self.options)


class ArchiveReader(DataSourceReader):  # type: ignore[misc]  # as above
    def __init__(self, options: TableOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = tuple(names)
        self._scope = options.scope

    @if_asked
    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """All of them go back to Spark, which looks at what is left once more."""
        self._scope = narrow(self._scope, filters)
        return filters

    def partitions(self) -> list[InputPartition]:
        from maxbrod.datasource.archive import look_up  # noqa: PLC0415 - Delta, which no task needs
        from maxbrod.datasource.splits import plan_splits  # noqa: PLC0415

        options = self._options
        archive = look_up(options.url, options.storage, options.layout)
        # Where there is nothing to read, Spark would make up a partition of its own.
        return [InputPartition(split) for split in plan_splits(archive, options, self._scope) or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from maxbrod.datasource.reading import read_split  # noqa: PLC0415 - numba, which the plan does not need
        from maxbrod.storage.opening import open_storage  # noqa: PLC0415

        options = self._options
        storage = open_storage(options.url, options.storage)
        portions: Any = partition.value
        yield from read_split(storage, portions, self._scope, self._names, committed=options.committed)
