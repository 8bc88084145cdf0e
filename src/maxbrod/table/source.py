"""What Spark calls: the format `maxbrod`, what writes it, and the reader that plans a query and reads its splits.

Spark pickles both and sends them around, so that they hold options only. Archives are opened where they are read.

The reader takes no filters (`pushFilters`), because Spark mixes up whose they are. For each `load()` the JVM has one
`PythonDataSourceV2`, which every scan of that frame or view shares, and it keeps *one* plan of a read: the partitions
and the pickled reader that the last `pushFilters` left. Spark optimises all scans of a query before the first one runs,
so that each of them reads what the last one asked for. A scan without filters asks for none, and takes what an earlier
query has left. So a self-join, a union or two subqueries lose rows without a word. Nothing in a task tells which scan
it belongs to, and hence the plan must be the same for all of them: options alone narrow a read. `maxbrod query`, which
knows all scans of its query before it makes a frame, puts their filters into an option (`conditions`).

Of the other things that Spark calls, none outlives what it was made for, or else it holds options only:

- a stream's reader belongs to one query. Two queries, or two ends of a self-join, of one stream share nothing but the
  pickled reader for tasks, which is made of options and gets all else with its partition;
- a writer is made anew for every write and for every batch of a stream; the one that commits a batch is another one
  again, made for this commit, and takes what it commits from the tasks' messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from maxbrod.table.read.columns import column_names, names_in, spark_schema
from maxbrod.table.read.options import parse_options, wanted_columns
from maxbrod.table.stream.options import parse_stream_options
from maxbrod.table.stream.reader import ArchiveStreamReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from maxbrod.table.read.options import TableOptions

_TO_KAFKA: Final = "kafka.bootstrap.servers"
"""The option that says that a DataFrame goes into a cluster, not into an archive."""


class ArchiveSource(DataSource):  # type: ignore[misc]  # pyspark is not typed
    @classmethod
    def name(cls) -> str:
        return "maxbrod"

    def schema(self) -> StructType:
        # Not all options are looked at: a stream has others than a read, and which it is, is not known yet.
        return spark_schema(column_names(wanted_columns(self.options)))

    def reader(self, schema: StructType) -> ArchiveReader:
        return ArchiveReader(parse_options(self.options), names_in(schema))

    def streamReader(self, schema: StructType) -> ArchiveStreamReader:  # noqa: N802 - Spark's name
        return ArchiveStreamReader(parse_stream_options(self.options), names_in(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        if self._to_kafka():
            from maxbrod.table.kafka_sink.writer import kafka_writer  # noqa: PLC0415 - only who writes needs it

            return kafka_writer(self.options, schema, overwrite=overwrite)
        from maxbrod.table.archive_sink.writer import archive_writer  # noqa: PLC0415 - as above

        return archive_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's signature
    ) -> DataSourceStreamWriter:
        if self._to_kafka():
            from maxbrod.table.kafka_sink.writer import kafka_stream_writer  # noqa: PLC0415 - as above

            return kafka_stream_writer(self.options, schema, overwrite=overwrite)
        from maxbrod.table.archive_sink.writer import archive_stream_writer  # noqa: PLC0415 - as above

        return archive_stream_writer(self.options, schema, overwrite=overwrite)

    def _to_kafka(self) -> bool:
        return any(name.lower() == _TO_KAFKA for name in self.options)


class ArchiveReader(DataSourceReader):  # type: ignore[misc]  # as above
    def __init__(self, options: TableOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = tuple(names)

    def partitions(self) -> list[InputPartition]:
        from maxbrod.table.read.splits import open_table, plan_splits  # noqa: PLC0415 - Delta, which no task needs

        # Given no partitions at all, Spark would make up one of its own, with None in it.
        return [InputPartition(split) for split in plan_splits(open_table(self._options), self._options) or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from maxbrod.storage.opening import open_storage  # noqa: PLC0415
        from maxbrod.table.read.reading import read_split  # noqa: PLC0415 - numba, which the plan does not need

        options = self._options
        storage = open_storage(options.url, options.storage)
        reads: Any = partition.value
        yield from read_split(storage, reads, options.scopes, self._names, committed=options.committed)
