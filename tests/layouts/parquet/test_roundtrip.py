"""Any records come back as they were, but for what the layout is documented to lose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.batch.columns import RECORD_SCHEMA
from maxbrod.errors import UsageError
from maxbrod.layouts.parquet.survey import LAYOUT
from maxbrod.layouts.parquet.writer import Thresholds, roll
from support.parquet_trees import KEPT, WHERE, batches_of_records, kept, local, read, rows, write
from support.storages import fresh_storage

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.layouts.foreign import ForeignSegment
    from maxbrod.storage.interface import Storage


@settings(max_examples=60)
@given(
    batches=batches_of_records(),
    codec=st.sampled_from([None, "zstd", "none"]),
    records_max=st.sampled_from([1, 4, 100]),
)
def test_any_records_come_back_equal(batches: list[pa.RecordBatch], codec: str | None, records_max: int) -> None:
    with fresh_storage() as storage:
        written = write(storage, batches, codec=codec, segment_records_max=records_max)
        survey = LAYOUT.survey(storage)
        found = read(storage, survey.segments)
        assert found.select(KEPT).to_pylist() == kept(batches)
        assert found.schema == RECORD_SCHEMA
        found.validate(full=True)
        assert [segment.path for segment in survey.segments] == [segment.path for segment in written]
        _bounds_hold(storage, (survey.segments[0], written[-1]))
        assert not list(LAYOUT.check(storage, survey, deep=True)) or len(written) > 1


def _bounds_hold(storage: Storage, segments: tuple[ForeignSegment, ...]) -> None:
    for segment in segments:
        times = [row["timestamp_ms"] for row in read(storage, [segment]).to_pylist()]
        assert segment.min_timestamp is None or segment.min_timestamp <= min(times)
        assert segment.max_timestamp is None or segment.max_timestamp >= max(times)


@given(batches=batches_of_records(), names=st.sets(st.sampled_from(RECORD_SCHEMA.names), min_size=1))
@settings(max_examples=40)
def test_any_columns_are_read_alone_as_in_the_whole(batches: list[pa.RecordBatch], names: set[str]) -> None:
    with fresh_storage() as storage:
        written = write(storage, batches)
        columns = [name for name in RECORD_SCHEMA.names if name in names]
        assert read(storage, written, columns).equals(read(storage, written).select(columns))


def test_columns_that_nobody_asks_for_are_never_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = local(tmp_path)
    values = pa.array([bytes([index % 251]) * 10_000 for index in range(1000)], pa.binary())
    batch = rows(1000)
    batch = batch.set_column(4, batch.schema.field("value"), values)
    (segment,) = write(storage, [batch], codec="none")
    fetched = []
    whole = storage.get_range

    def counted(path: str, start: int, size: int) -> memoryview:
        fetched.append(size)
        return whole(path, start, size)

    monkeypatch.setattr(storage, "get_range", counted)
    assert read(storage, [segment], ["timestamp_ms", "key"]).num_rows == 1000
    assert segment.bytes > 10_000_000
    assert sum(fetched) < 300_000


def test_a_large_segment_is_read_in_pieces(tmp_path: Path) -> None:
    storage = local(tmp_path)
    batch = rows(300_000)
    (segment,) = write(storage, [batch])
    pieces = list(LAYOUT.read(storage, segment))
    assert len(pieces) > 3
    assert pa.Table.from_batches(pieces).equals(pa.Table.from_batches([batch]))


def rewritten(storage: Storage, segment: ForeignSegment, **options: Any) -> ForeignSegment:
    """The same segment as another engine would write it: nullable fields, dictionaries, other pages, more groups."""
    source = pq.ParquetFile(pa.BufferReader(bytes(storage.get(segment.path))))
    table = source.read()
    loose = pa.schema([pa.field(field.name, field.type) for field in table.schema], source.schema_arrow.metadata)
    sink = pa.BufferOutputStream()
    pq.write_table(table.cast(loose), sink, **options)
    data = sink.getvalue().to_pybytes()
    storage.replace(segment.path, data)
    return LAYOUT.survey(storage).segments[0]


@pytest.mark.parametrize("options", [{"row_group_size": 7}, {"data_page_version": "2.0", "compression": "lz4"}, {}])
def test_a_segment_that_another_engine_wrote_again_is_read(tmp_path: Path, options: dict[str, Any]) -> None:
    storage = local(tmp_path)
    batch = rows(100)
    (segment,) = write(storage, [batch])
    assert read(storage, [rewritten(storage, segment, **options)]).equals(pa.Table.from_batches([batch]))


def test_a_segment_ends_at_the_first_threshold_that_it_reaches(tmp_path: Path) -> None:
    storage = local(tmp_path)
    by_count = write(storage, [rows(25), rows(5, start=25)], segment_records_max=10)
    assert [segment.records for segment in by_count] == [10, 10, 10]
    by_bytes = write(storage, [rows(100, start=1000)], segment_bytes_max=260)
    # As the tool counts: 16 bytes a record, and keys and values of ten bytes here. A segment ends with the record that
    # fills it.
    assert [segment.records for segment in by_bytes] == [10] * 10
    ticks = iter(range(100))
    batches = [rows(1, start=index) for index in range(9)]
    by_age = roll(batches, Thresholds(seconds_max=3), clock=lambda: float(next(ticks)))
    assert all(1 < len(each) < 9 for each in by_age)


def test_records_that_do_not_follow_are_refused(tmp_path: Path) -> None:
    storage = local(tmp_path)
    write(storage, [rows(10)])
    for batches in ([rows(5, start=5)], [rows(5, start=20), rows(5, start=20)]):
        with pytest.raises(UsageError, match="do not follow"):
            write(storage, batches)
    assert LAYOUT.survey(storage).positions == {WHERE: 10}
