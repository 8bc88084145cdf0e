"""The stream reader that Spark calls: `spark.readStream.format("maxbrod")`.

One reader lives as long as the query, in a process of its own, and plans the ends and slices of batches. Others, which
Spark makes from the options alone, read the slices in tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from maxbrod.table.stream.positions import encode_start
from maxbrod.table.travelling import Travelling
from maxbrod.work.settling import settle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from maxbrod.table.stream.following import Follower
    from maxbrod.table.stream.options import StreamOptions


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
        from maxbrod.storage.stores import open_storage  # noqa: PLC0415
        from maxbrod.table.read.reading import read_split  # noqa: PLC0415 - numba, which the plan does not need

        table = self._options.table
        storage = open_storage(table.url, table.storage)
        reads: Any = partition.value
        yield from read_split(storage, reads, [table.scope], self._names, committed=table.committed)
        settle()

    def _following(self) -> Follower:
        if self._follower is None:
            from maxbrod.table.stream.following import Follower  # noqa: PLC0415 - Delta, which no task needs

            self._follower = Follower(self._options)
        return self._follower
