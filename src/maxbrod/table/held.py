"""Small tables of records for queries: the driver reads them whole, once, and Spark keeps them in memory.

A Python task costs a query 1.9 s of processor time the first time, and the plan over empty tables that finds columns
and filters 0.7 s (docs/benchmarks.md). Reading as much as one task would read takes less than that, while the JVM
starts, and later queries of the same session find the records in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from maxbrod.errors import MaxbrodError
from maxbrod.storage.local import LocalStorage
from maxbrod.storage.stores import open_storage
from maxbrod.table.read.columns import USUAL, arrow_schema, frame_of, spark_schema
from maxbrod.table.read.options import SPLIT_BYTES, TableOptions, parse_options
from maxbrod.table.read.splits import find_slices, open_table
from maxbrod.table.views import RecordView, View

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from maxbrod.table.read.scope import SliceRead

_STORED_BYTES_MAX: Final = SPLIT_BYTES
_LOCAL_SLICES_MAX: Final = 1000
_REMOTE_SLICES_MAX: Final = 32
"""Each costs a request. More are left to a plan that may need few of them."""
_DECODED_BYTES_MAX: Final = 64 << 20
"""Of all tables of one query or prompt. They are in the driver's heap, which has 1 GiB by default."""
_PARTITION_BYTES: Final = 16 << 20
"""One partition needs no exchange: that is worth more than a second core for so few bytes."""


@dataclass(slots=True, kw_only=True)
class _Held:
    """The records of some slices. None: too many, or not readable."""

    slices: list[SliceRead]
    table: pa.Table | None
    bytes: int = 0
    frame: DataFrame | None = None


class HeldTables:
    """The tables of records that one `Query` holds, by the name of the view."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}

    def read(self, view: RecordView) -> _Held:
        """Read the records of a view, unless those of the same slices are held. Needs no Spark."""
        options = parse_options(view.own_options)
        slices = find_slices(open_table(options), options)
        held = self._held.get(view.name)
        if held is None or held.slices != slices:
            self._held.pop(view.name, None)
            room = _DECODED_BYTES_MAX - sum(each.bytes for each in self._held.values())
            table = _read(options, slices, room)
            held = _Held(slices=slices, table=table, bytes=0 if table is None else table.nbytes)
            self._held[view.name] = held
        return held

    def frames(self, spark: SparkSession, views: Iterable[View]) -> dict[str, DataFrame] | None:
        """A frame of all records for each view of records. None: one of them is too large, or cannot be read."""
        found: dict[str, DataFrame] = {}
        for view in views:
            if isinstance(view, RecordView):
                frame = self.frame(spark, view)
                if frame is None:
                    return None
                found[view.name] = frame
        return found

    def frame(self, spark: SparkSession, view: RecordView) -> DataFrame | None:
        """All records of a view with the usual columns, not decoded."""
        held = self.read(view)
        if held.table is not None:
            # From here on the JVM has the records.
            held.frame, held.table = _frame(spark, held.table), None
        return held.frame


def _read(options: TableOptions, slices: Sequence[SliceRead], bytes_max: int) -> pa.Table | None:
    storage = open_storage(options.url, options.storage)
    slices_max = _LOCAL_SLICES_MAX if isinstance(storage, LocalStorage) else _REMOTE_SLICES_MAX
    if len(slices) > slices_max or sum(each.stored.bytes for each in slices) > _STORED_BYTES_MAX:
        return None
    from maxbrod.table.read.reading import read_split  # noqa: PLC0415 - numba, which large tables leave to the tasks

    batches, size = [], 0
    try:
        for batch in read_split(storage, slices, options.scopes, USUAL, committed=options.committed):
            batches.append(batch)
            size += batch.nbytes
            if size > bytes_max:
                return None
    except MaxbrodError:
        # The query may not need what is damaged or missing; if it does, the task that reads it reports it.
        return None
    return pa.Table.from_batches(batches, arrow_schema(USUAL))


def _frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    # A local relation would be evaluated without compiled code while the query is planned.
    spark.conf.set("spark.sql.execution.arrow.localRelationThreshold", "0")
    frame = frame_of(spark, table, spark_schema(USUAL))
    return frame.coalesce(max(1, min(table.nbytes // _PARTITION_BYTES, spark.sparkContext.defaultParallelism)))
