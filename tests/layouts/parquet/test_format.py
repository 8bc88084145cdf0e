"""What we write is what the tool's strict reader takes, by what Parquet itself says of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from maxbrod.errors import UsageError
from support.parquet_trees import WHERE, kept, local, read, rows, write

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.storage.interface import Storage

ALL_CODECS = {"snappy": "SNAPPY", "gzip": "GZIP", "zstd": "ZSTD", "none": "UNCOMPRESSED"}

TOOL_FIELDS = [
    "required binary field_id=-1 key;",
    "required binary field_id=-1 value;",
    "required int64 field_id=-1 offset (Int(bitWidth=64, isSigned=false));",
    "required int64 field_id=-1 timestamp;",
    "required group field_id=-1 headers (List) {",
    "repeated group field_id=-1 list {",
    "required group field_id=-1 element {",
    "required binary field_id=-1 key;",
    "required binary field_id=-1 value;",
]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return local(tmp_path)


def opened(storage: Storage, path: str) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(bytes(storage.get(path))))


def test_the_name_has_both_offsets_and_the_footer_says_the_same(storage: Storage) -> None:
    (segment,) = write(storage, [rows(3, start=40, step=2)], extra={"region": "us-east-1"})
    assert segment.path == "data/us-east-1/sensor.events/107/0/00000000000000000040-00000000000000000044"
    keys = {key.decode(): value.decode() for key, value in opened(storage, segment.path).metadata.metadata.items()}
    created = keys.pop("createdTimestamp")
    assert created.startswith("20")
    assert created.endswith("Z")
    assert keys == {
        "region": "us-east-1",
        "topic": "sensor.events",
        "partition": "107",
        "level": "0",
        "startOffset": "40",
        "endOffset": "44",
        "messageCount": "3",
    }


def test_the_tools_columns_come_first_and_every_field_is_required(storage: Storage) -> None:
    (segment,) = write(storage, [rows(3)])
    shown = [line.strip() for line in str(opened(storage, segment.path).schema).splitlines()]
    fields = [line for line in shown if line.startswith(("required", "repeated", "optional"))][1:]
    assert fields[: len(TOOL_FIELDS)] == TOOL_FIELDS
    assert not [line for line in fields if line.startswith("optional")]


@pytest.mark.parametrize(("codec", "name"), ALL_CODECS.items())
def test_pages_are_plain_and_of_version_1_in_every_codec(storage: Storage, codec: str, name: str) -> None:
    batch = rows(5_000)
    (segment,) = write(storage, [batch], codec=codec)
    metadata, data = opened(storage, segment.path).metadata, bytes(storage.get(segment.path))
    for index in range(metadata.num_columns):
        chunk = metadata.row_group(0).column(index)
        assert chunk.compression == name
        # The header of a page begins with its type, a thrift field: 0 is a data page of version 1, 3 one of version 2.
        assert data[chunk.data_page_offset : chunk.data_page_offset + 2] == bytes((0x15, 0x00))
        if index < 6:
            assert not chunk.has_dictionary_page
            assert set(chunk.encodings) <= {"PLAIN", "RLE"}
    assert read(storage, [segment]).equals(pa.Table.from_batches([batch]))


def test_any_parquet_engine_reads_the_same_records(storage: Storage) -> None:
    batch = rows(100)
    (segment,) = write(storage, [batch])
    table = opened(storage, segment.path).read()
    assert table.column("offset").to_pylist() == list(range(100))
    assert table.column("value").to_pylist() == batch.column("value").to_pylist()
    assert [time // 1_000_000 for time in table.column("timestamp").to_pylist()] == [
        row["timestamp_ms"] for row in kept([batch])
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"codec": "lz4"},
        {"codec": "brotli"},
        {"codec": "gzip", "level": 10},
        {"codec": "snappy", "level": 1},
        {"segment_bytes_max": 0},
        {"segment_records_max": 0},
        {"extra": {"region": "../up"}},
        {"extra": {"region": ".."}},
        {"extra": {"bucket": "x"}},
        {"extra": {"segment_seconds_max": "soon"}},
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_written(
    storage: Storage, options: dict[str, Any]
) -> None:
    with pytest.raises(UsageError):
        write(storage, [rows(3)], **options)
    assert not list(storage.list())


def test_control_records_are_never_written(storage: Storage) -> None:
    batch = rows(4)
    flags = pa.array([False, True, False, True])
    marked = batch.set_column(batch.schema.get_field_index("control"), batch.schema.field("control"), flags)
    (segment,) = write(storage, [marked])
    assert (segment.base_offset, segment.end_offset, segment.records) == (0, 3, 2)
    assert read(storage, [segment]).column("offset").to_pylist() == [0, 2]
    assert segment.where == WHERE
