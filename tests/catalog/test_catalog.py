"""What is committed is found again, by every question; what is refused leaves no trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from maxbrod.catalog import codec
from maxbrod.catalog.commits import StreamBatch
from maxbrod.catalog.queries import ArchivedRange
from maxbrod.catalog.rows import Row, Segment, decode_rows
from maxbrod.catalog.schema import ADDED_COLUMNS, FORMAT_PROPERTY, SCHEMA, TABLE_PROPERTIES
from maxbrod.errors import AccessDeniedError, CorruptDataError, RefusedError, UnsupportedFormatError, UsageError
from maxbrod.model import GapReason, PartitionId
from support.catalog_places import Archive, s3_archive
from support.catalog_rows import TOPIC_ID, gap, run, segment

if TYPE_CHECKING:
    from maxbrod.sandbox.s3 import S3Server

PARTITION = PartitionId(topic_id=TOPIC_ID, partition=0)


def rows_of(archive: Archive) -> list[Row]:
    return decode_rows(archive.open().rows())


def test_a_new_catalog_is_empty_and_answers_every_question(archive: Archive) -> None:
    catalog = archive.create()
    assert (catalog.version, catalog.positions(), catalog.runs(), catalog.rows().num_rows) == (0, {}, [], 0)


def test_what_is_committed_is_there_for_whoever_opens_the_archive(archive: Archive) -> None:
    catalog = archive.create()
    assert catalog.commit([segment(0, 10), gap(10, 12), run("run-1")]) == catalog.version == 1
    assert catalog.commit([segment(12, 2**62, last_leader_epoch=7), run("run-2", finished_at=2**60)]) == 2
    other = archive.open()
    assert decode_rows(other.rows()) == [segment(0, 10), gap(10, 12), segment(12, 2**62, last_leader_epoch=7)]
    assert other.runs() == catalog.runs() == [run("run-1"), run("run-2", finished_at=2**60)]
    expected = ArchivedRange(topic="orders", first_offset=0, end_offset=2**62, last_leader_epoch=7)
    assert other.positions() == catalog.positions() == {PARTITION: expected}


def test_a_catalog_knows_whether_it_is_the_newest(archive: Archive) -> None:
    writer = archive.create()
    reader = archive.open()
    assert (writer.is_newest(), reader.is_newest()) == (True, True)
    writer.commit([segment(0, 10), run("run-1")])
    assert (writer.is_newest(), reader.is_newest()) == (True, False)
    reader.refresh()
    assert reader.is_newest()


def test_rows_are_replaced_in_the_same_commit_as_their_successors(archive: Archive) -> None:
    catalog = archive.create()
    catalog.commit([segment(0, 10), segment(10, 20), segment(0, 10, partition=1), run("run-1")])
    catalog.commit([segment(20, 30), run("run-2")])
    truncated = gap(15, 20, reason=GapReason.TRUNCATED)
    version = catalog.commit([segment(10, 15), truncated, run("run-3")], replaced=[segment(10, 20), segment(20, 30)])
    assert version == 3
    assert rows_of(archive) == [segment(0, 10), segment(10, 15), truncated, segment(0, 10, partition=1)]
    assert {each.run_id for each in archive.open().runs()} == {"run-1", "run-2", "run-3"}


def test_a_streams_batch_is_known_with_its_commit_and_never_before(archive: Archive) -> None:
    catalog, late = archive.create(), archive.open()
    assert catalog.last_batch("one") is None
    catalog.commit([segment(0, 10), run("run-1")], batch=StreamBatch(stream="one", batch_id=7))
    with pytest.raises(RefusedError):
        late.commit([segment(0, 10), run("run-2")], batch=StreamBatch(stream="two", batch_id=0))
    catalog.commit([segment(10, 20), run("run-3")])
    for each in (catalog, archive.open()):
        assert (each.last_batch("one"), each.last_batch("two")) == (7, None)


def test_the_last_snapshot_is_that_of_the_run_that_was_committed_last(folder: Archive) -> None:
    catalog = folder.create()
    assert catalog.last_snapshot_run() is None
    catalog.commit([run("run-2", snapshot="snapshots/b", written_at=9)])
    catalog.commit([run("run-1", snapshot="snapshots/a", written_at=8), run("run-3", snapshot=None, written_at=10)])
    last = catalog.last_snapshot_run()
    assert last is not None
    assert last.snapshot == "snapshots/a"


@pytest.mark.parametrize(
    "absent", [segment(10, 20), segment(0, 9), segment(0, 10, path="elsewhere"), gap(0, 10), segment(0, 10, position=9)]
)
def test_replacing_a_row_that_is_not_there_changes_nothing(folder: Archive, absent: Row) -> None:
    catalog = folder.create()
    catalog.commit([segment(0, 10)])
    with pytest.raises(RefusedError, match="2 rows were to be replaced, but the catalog has 1"):
        catalog.commit([segment(20, 30)], replaced=[segment(0, 10), absent])
    assert rows_of(folder) == [segment(0, 10)]
    assert catalog.commit([segment(10, 20)]) == 2


def test_a_nonsensical_row_takes_the_whole_commit_down(folder: Archive) -> None:
    catalog = folder.create()
    with pytest.raises(RefusedError, match="end_offset 10 is not above"):
        catalog.commit([segment(0, 10), segment(20, 10)])
    assert (catalog.version, rows_of(folder)) == (0, [])


def test_an_archive_is_created_once(archive: Archive) -> None:
    archive.create().commit([segment(0, 10)])
    with pytest.raises(RefusedError, match="already"):
        archive.create()
    assert rows_of(archive) == [segment(0, 10)]


def test_no_archive_is_opened_where_there_is_none(archive: Archive) -> None:
    with pytest.raises(UsageError, match="no archive"):
        archive.open()


def test_an_archive_of_a_newer_major_format_is_refused(folder: Archive) -> None:
    folder.create()
    folder.table().alter.set_table_properties({"maxbrod.format": "2.0"}, raise_if_not_exists=False)
    with pytest.raises(UnsupportedFormatError, match=r"format 2\.0"):
        folder.open()


@pytest.mark.parametrize("version", ["", "1", "one", "1.x"])
def test_a_format_that_cannot_be_read_is_refused(folder: Archive, version: str) -> None:
    folder.create()
    folder.table().alter.set_table_properties({"maxbrod.format": version}, raise_if_not_exists=False)
    with pytest.raises(UnsupportedFormatError):
        folder.open()


def test_someone_elses_delta_table_is_refused(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path / "catalog/segments"), pa.schema([("x", pa.int64())]))
    with pytest.raises(UnsupportedFormatError, match="no catalog of maxbrod"):
        Archive(str(tmp_path)).open()


def test_columns_of_a_newer_minor_format_are_kept_whatever_is_committed(folder: Archive) -> None:
    folder.create().commit([segment(0, 10)])
    table = folder.table()
    table.alter.set_table_properties({"maxbrod.format": "1.7"}, raise_if_not_exists=False)
    table.alter.add_columns(Field("tint", PrimitiveType("string"), nullable=True))
    table.update(updates={"tint": "'mauve'"})
    for entry in Path(folder.url).glob("catalog/segments/_delta_log/*.json"):
        # As every release since 1.2 does.
        entry.write_bytes(codec._with_checksum(entry.read_bytes()))
    catalog = folder.open()
    assert catalog.rows(columns=["base_offset", "tint"]).to_pylist() == [{"base_offset": 0, "tint": "mauve"}]
    for base in range(10, 30):
        catalog.commit([segment(base, base + 1)])
    catalog.commit([gap(10, 11)], replaced=[segment(10, 11)])
    assert len(catalog._files().active) < 8  # it was folded, and so rewritten
    tints = catalog.rows(columns=["tint"])["tint"].to_pylist()
    assert tints == ["mauve", *[None] * 20]


def test_nothing_shows_a_key(s3: S3Server) -> None:
    archive = s3_archive(s3)
    catalog = archive.create()
    assert s3.secret_key not in repr(catalog)
    wrong = s3_archive(s3, s3={"secret_access_key": "not-the-secret"})
    with pytest.raises(AccessDeniedError) as caught:
        wrong.open()
    assert "not-the-secret" not in f"{caught.value} {caught.value.as_dict()} {caught.value.__cause__}"


def test_a_flipped_bit_in_the_catalog_is_not_believed(folder: Archive) -> None:
    catalog = folder.create()
    catalog.commit([segment(base, base + 1) for base in range(100)])
    (path,) = Path(folder.url).glob("catalog/segments/*.parquet")
    content = bytearray(path.read_bytes())
    content[len(content) // 4] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptDataError):
        catalog.rows()


def test_an_archive_of_the_first_format_is_read_and_written_as_it_is(folder: Archive) -> None:
    old = pa.schema([field for field in SCHEMA if field.name not in ADDED_COLUMNS])
    properties = {**TABLE_PROPERTIES, FORMAT_PROPERTY: "1.0"}
    DeltaTable.create(f"{folder.url}/catalog/segments", old, configuration=properties, raise_if_key_not_exists=False)
    catalog = folder.open()
    rows = [segment(0, 10, min_timestamp_exact=True), segment(10, 20), gap(20, 30), run("run-1")]
    for row in rows:
        catalog.commit([row])
    # It has no column to say so, so nothing is left out by it.
    assert rows_of(folder) == [segment(0, 10), *rows[1:3]]
    assert catalog.rows(timestamps=(-1000, -900)).num_rows == 3
    catalog.commit([segment(30, 40)], replaced=[rows[1]])
    assert [row.base_offset for row in rows_of(folder) if isinstance(row, Segment)] == [0, 30]
    assert pa.schema(folder.table().schema().to_arrow()).names == old.names


def test_a_row_is_left_out_by_its_lowest_timestamp_only_where_that_is_exact(folder: Archive) -> None:
    catalog = folder.create()
    times = {"min_timestamp": 100, "max_timestamp": 200}
    catalog.commit(
        [segment(0, 10, min_timestamp_exact=True, **times), segment(10, 20, **times), gap(20, 30), run("run-1")]
    )

    def found(first: int, last: int) -> list[int]:
        bases: list[int] = catalog.rows(timestamps=(first, last), columns=["base_offset"])["base_offset"].to_pylist()
        return bases

    assert found(0, 99) == [10, 20]
    assert found(0, 100) == [0, 10, 20]
    assert found(200, 900) == [0, 10, 20]
    assert found(201, 900) == [20]
