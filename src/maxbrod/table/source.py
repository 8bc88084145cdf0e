"""The data source that Spark calls: the format `maxbrod`, its reader and its writers.

Spark pickles readers and writers and sends them to other processes, so they hold options only. Archives are opened
where they are read.

The reader does not implement `pushFilters`, because Spark would apply the filters of one scan to another. For each
`load()` the JVM has one `PythonDataSourceV2`, which every scan of that frame or view shares, and it keeps *one* plan:
the partitions and the pickled reader after the last `pushFilters`. Spark optimizes all scans of a query before it runs
the first one, so each of them reads what the last one asked for. A scan without filters does not call `pushFilters`,
and gets the plan that an earlier query left. So a self-join, a union or two subqueries would silently lose rows.
Nothing in a task tells which scan it belongs to. Hence the plan must be the same for all scans, and only options narrow
a read.
`maxbrod query`, which knows all scans of its query before it creates a frame, puts their filters into an option
(`scans`).

Other objects either live only as long as what they were created for, or hold options only:

- a stream reader belongs to one query. Two queries, or both sides of a self-join, of one stream share only the pickled
  reader for tasks, which is made from options and gets everything else with its partition;
- a writer is created for every write and for every batch of a stream. The one that commits a batch is yet another one,
  and takes what it commits from the messages of the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from maxbrod.table.read.columns import column_names, names_in, spark_schema
from maxbrod.table.read.options import GivenOptions, StreamOptions, TableOptions, parse_options, parse_stream_options
from maxbrod.table.read.scope import Scope
from maxbrod.table.stream.plan import encode_start
from maxbrod.work.worker_garbage import settle

if TYPE_CHECKING:
    from maxbrod.table.sink.archive import ArchiveSink
    from maxbrod.table.sink.kafka import KafkaSink
    from maxbrod.table.stream.follower import Follower


QUERY_ID: Final = "sql.streaming.queryId"
"""The local property that has the id of a stream's query. The id is in the checkpoint, so a restart keeps it."""
_TO_KAFKA: Final = "kafka.bootstrap.servers"
"""If this option is given, a DataFrame is written into a cluster, not into an archive."""


class Travelling:
    """A reader or writer that pickles as a function that travels by value, and its own class and fields as bytes.

    The session may be somebody else's, so no preflight has tested its workers: one that lacks maxbrod says what to set.
    Spark would report only that a module is missing, from inside of its own unpickling.
    """

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        from pyspark import cloudpickle  # noqa: PLC0415 - only where one travels

        return _opener(), (cloudpickle.dumps((type(self), self.__dict__)),)


def _opener() -> Callable[[bytes], Any]:
    def opened(packed: bytes) -> Any:  # noqa: ANN401 - any of the classes
        import pickle  # noqa: PLC0415 - a nested function travels by value, so it imports all that it needs

        try:
            kind, fields = pickle.loads(packed)  # noqa: S301 - the driver has pickled it
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("maxbrod"):
                raise
            import socket  # noqa: PLC0415
            import sys  # noqa: PLC0415

            raise ModuleNotFoundError(
                f"the Python of the Spark workers on {socket.gethostname()} ({sys.executable}) has no maxbrod: start "
                "the session with spark.archives and spark.pyspark.python as 'maxbrod cluster pack' prints them; "
                "'maxbrod help cluster' says how",
                name=error.name,
            ) from None
        made = kind.__new__(kind)
        made.__dict__.update(fields)
        return made

    return opened


class ArchiveSource(DataSource):  # type: ignore[misc]  # pyspark is not typed
    @classmethod
    def name(cls) -> str:
        return "maxbrod"

    def schema(self) -> StructType:
        # Other options are not checked yet: a stream has others than a read, and Spark does not say which this is.
        given = GivenOptions({name.lower(): value for name, value in self.options.items()})
        return spark_schema(column_names(given.get("columns")))

    def reader(self, schema: StructType) -> ArchiveReader:
        return ArchiveReader(parse_options(self.options), names_in(schema))

    def streamReader(self, schema: StructType) -> ArchiveStreamReader:  # noqa: N802 - Spark's name
        return ArchiveStreamReader(parse_stream_options(self.options), names_in(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        return SinkWriter(self._sink(schema, overwrite=overwrite, stream=False))

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's signature
    ) -> DataSourceStreamWriter:
        return SinkStreamWriter(self._sink(schema, overwrite=overwrite, stream=True))

    def _sink(self, schema: StructType, *, overwrite: bool, stream: bool) -> ArchiveSink | KafkaSink:
        if any(name.lower() == _TO_KAFKA for name in self.options):
            from maxbrod.table.sink.kafka import KafkaSink  # noqa: PLC0415 - only writes need it

            return KafkaSink(self.options, schema, overwrite=overwrite, stream=stream)
        from maxbrod.table.sink.archive import ArchiveSink  # noqa: PLC0415 - as above

        return ArchiveSink(self.options, schema, overwrite=overwrite)


class ArchiveReader(Travelling, DataSourceReader):  # type: ignore[misc]  # as above
    def __init__(self, options: TableOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = tuple(names)

    def partitions(self) -> list[InputPartition]:
        from maxbrod.table.read.splits import open_table, plan_splits  # noqa: PLC0415 - Delta, which no task needs

        # Given no partitions at all, Spark would make up one of its own, with None in it.
        return [InputPartition(split) for split in plan_splits(open_table(self._options), self._options) or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._options.scopes, self._names, partition)


class ArchiveStreamReader(Travelling, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # not typed
    def __init__(self, options: StreamOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = tuple(names)
        self._follower: Follower | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """The same at every call, because Spark calls it again when it repeats the first batch."""
        return encode_start(self._options.starting)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.offsets_max is not None:
            return ReadMaxRows(self._options.offsets_max)
        return ReadAllAvailable() if self._options.bytes_max is None else ReadMaxBytes(self._options.bytes_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return self._following().latest(start, limited=not isinstance(limit, ReadAllAvailable))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._following().stand_still()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(split) for split in self._following().plan(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options.table, [self._options.table.scope], self._names, partition)

    def _following(self) -> Follower:
        if self._follower is None:
            from maxbrod.table.stream.follower import Follower  # noqa: PLC0415 - Delta, which no task needs

            self._follower = Follower(self._options)
        return self._follower


class SinkWriter(Travelling, DataSourceArrowWriter):  # type: ignore[misc]  # as above
    def __init__(self, sink: ArchiveSink | KafkaSink) -> None:
        self._sink: Any = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(iterator, stream=False)

    def commit(self, messages: list[Any]) -> None:
        self._sink.commit(messages, None)

    def abort(self, messages: list[Any]) -> None:
        self._sink.abort(messages)


class SinkStreamWriter(Travelling, DataSourceStreamArrowWriter):  # type: ignore[misc]  # as above
    def __init__(self, sink: ArchiveSink | KafkaSink) -> None:
        self._sink: Any = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(iterator, stream=True)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._sink.commit(messages, batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - as above
        del batchId
        self._sink.abort(messages)


def _read(
    options: TableOptions, scopes: Sequence[Scope], names: Sequence[str], partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    from maxbrod.storage.stores import open_storage  # noqa: PLC0415
    from maxbrod.table.read.rows import read_split  # noqa: PLC0415 - numba, which the plan does not need

    storage = open_storage(options.url, options.storage)
    reads: Any = partition.value
    yield from read_split(storage, reads, scopes, names, committed=options.committed)
    settle()
