"""The ledger: no reader returns erased records, whatever objects and rows still hold them."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.archive import open_archive, open_for_writing
from maxbrod.archive.erasures import (
    ERASURES,
    ErasedOffsets,
    ErasedPartition,
    ErasedTopic,
    Erasure,
    clip,
    outside,
    put_erasure,
)
from maxbrod.archive.holds import add_hold
from maxbrod.batch.decode import decode
from maxbrod.catalog.rows import Gap, Segment, decode_rows
from maxbrod.errors import EXIT_DONE, CorruptDataError, UsageError
from maxbrod.inspect.records import read_page
from maxbrod.model import GapReason, PartitionId
from maxbrod.storage.stores import open_storage
from maxbrod.table.read.counts import count_records, count_whole
from maxbrod.table.read.options import parse_options
from support.conversions import convert
from support.erasures import erase, holds_bytes, read
from support.keyed_archives import Keyed, batch, without_spark
from support.mounts import RawClient, mounted, read_all
from support.native_archives import TOPIC, TOPIC_ID, Making, compact, file_of, in_memory, segments
from support.table_archives import query

if TYPE_CHECKING:
    from collections.abc import Iterator

ANNE, BEN = b"anne-4711", b"ben-0815"
LEFT = [(1, BEN, b"1"), (3, BEN, b"2")]


@pytest.fixture(autouse=True)
def sparkless(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)


@pytest.fixture
def held() -> Iterator[Keyed]:
    """An archive of which a hold keeps every row as it is."""
    with in_memory() as made:
        keyed = Keyed(made)
        keyed.backup({0: [batch(0, (ANNE, b"1"), (BEN, b"1"), (ANNE, b"2"), (BEN, b"2"))]})
        add_hold(open_for_writing(keyed.url), who="law", why="a case")
        assert erase(keyed.url, keys=["anne-4711"]).suppressed == 2
        assert len(holds_bytes(keyed.url, ANNE)) == 1
        yield keyed


def test_a_table_and_counts_from_the_catalog_leave_them_out(held: Keyed) -> None:
    assert [(row["offset"], row["key"], row["value"]) for row in query(held.url)] == LEFT
    options = parse_options({"path": held.url})
    assert count_whole(options) is None
    assert count_records(options) is None


def test_a_page_of_records_leaves_them_out(held: Keyed) -> None:
    page = read_page(
        open_archive(held.url), PartitionId(topic_id=TOPIC_ID, partition=0), 0, count=10, bytes_max=1 << 20
    )
    assert page.records["offset"].to_pylist() == [1, 3]


def test_a_mount_leaves_them_out_also_what_it_had_read_before_the_erasure() -> None:
    with in_memory() as made:
        keyed = Keyed(made)
        keyed.backup({0: [batch(0, (ANNE, b"1"), (BEN, b"1"))]})
        add_hold(open_for_writing(keyed.url), who="law", why="a case")
        with mounted(keyed.url, follow=True, every=0.2) as found:
            with RawClient(found.bootstrap) as client:
                assert ANNE in read_all(client, (TOPIC, 0), 0)
            erase(keyed.url, keys=["anne-4711"])
            for _ in range(200):
                with RawClient(found.bootstrap) as client:
                    data = read_all(client, (TOPIC, 0), 0)
                if ANNE not in data:
                    break
                time.sleep(0.05)
            assert decode(data)["key"].to_pylist() == [BEN]


@pytest.mark.parametrize("layout", ["kafka", "kbak"])
def test_a_conversion_leaves_them_out_and_says_why(held: Keyed, tmp_path: Path, layout: str) -> None:
    report = convert(held.url, tmp_path / "new", layout, verify=True)
    assert report.exit_code == EXIT_DONE
    assert [(row["offset"], row["key"], row["value"]) for row in query(tmp_path / "new")] == LEFT
    if layout == "kafka":
        assert [row.reason for row in segments(tmp_path / "new")] == [GapReason.ERASED]
        assert holds_bytes(tmp_path / "new", ANNE) == []


def test_a_conversion_brings_the_ledger_so_that_what_an_earlier_one_brought_stays_away(tmp_path: Path) -> None:
    keyed = Keyed(Making(str(tmp_path / "archive")))
    keyed.backup({0: [batch(0, (ANNE, b"1"), (BEN, b"1"), (ANNE, b"2"), (BEN, b"2"))]})
    convert(keyed.url, tmp_path / "new", "kafka")
    assert len(query(tmp_path / "new")) == 4
    erase(keyed.url, keys=["anne-4711"])
    convert(keyed.url, tmp_path / "new", "kafka")
    assert read(tmp_path / "new") == LEFT
    assert erase(tmp_path / "new", again=True, topics=[]).exit_code == EXIT_DONE
    assert holds_bytes(tmp_path / "new", ANNE) == []


def test_merging_what_is_held_brings_nobody_back(held: Keyed) -> None:
    held.backup({0: [batch(4, (BEN, b"3"))]})
    assert compact(held.url).commits == 1
    assert read(held.url) == [*LEFT, (4, BEN, b"3")]


def test_an_off_line_copy_brings_nobody_back_once_it_has_the_ledger(tmp_path: Path) -> None:
    keyed = Keyed(Making(str(tmp_path / "archive")))
    keyed.backup({0: [batch(0, (ANNE, b"1"), (BEN, b"1"), (ANNE, b"2"), (BEN, b"2"))]})
    shutil.copytree(tmp_path / "archive", tmp_path / "copy")
    erase(keyed.url, keys=["anne-4711"])
    shutil.copytree(tmp_path / "archive" / ERASURES, tmp_path / "copy" / ERASURES)
    assert len(holds_bytes(tmp_path / "copy", ANNE)) == 1
    assert read(tmp_path / "copy") == LEFT
    assert erase(tmp_path / "copy", again=True, topics=[]).exit_code == EXIT_DONE
    assert holds_bytes(tmp_path / "copy", ANNE) == []
    assert read(tmp_path / "copy") == LEFT


def test_a_gap_that_is_filled_later_brings_nobody_back_because_keys_are_looked_up_there() -> None:
    with in_memory() as made:
        keyed = Keyed(made)
        keyed.backup({0: [batch(0, (ANNE, b"1"), (BEN, b"1"))]})
        hole = Gap(
            topic=TOPIC, topic_id=TOPIC_ID, partition=0, base_offset=2, end_offset=4, reason=GapReason.CORRUPT,
            run_id="run-x", written_at=1,
        )  # fmt: skip
        made.archive.catalog.refresh()
        made.archive.catalog.commit([hole])
        erase(keyed.url, keys=["anne-4711"])
        rows = keyed.backup({0: [batch(2, (ANNE, b"2"), (BEN, b"2"))]}, commit=False)
        made.archive.catalog.commit([row for row in rows if isinstance(row, Segment)], replaced=[hole])
        assert read(keyed.url) == LEFT
        assert len(holds_bytes(keyed.url, ANNE)) == 1
        assert erase(keyed.url, again=True, topics=[]).exit_code == EXIT_DONE
        assert read(keyed.url) == LEFT
        assert holds_bytes(keyed.url, ANNE) == []


def test_after_a_truncation_other_records_have_the_offsets_and_stay() -> None:
    with in_memory() as made:
        keyed = Keyed(made)
        keyed.backup({0: [batch(0, (ANNE, b"1"), (BEN, b"1"), leader_epoch=3)]})
        erase(keyed.url, keys=["anne-4711"])
        made.archive.catalog.refresh()
        gone = decode_rows(made.archive.catalog.rows())
        rows = keyed.backup({0: [batch(0, (BEN, b"other"), (BEN, b"new"), leader_epoch=4)]}, commit=False)
        made.archive.catalog.commit([row for row in rows if isinstance(row, Segment)], replaced=gone)
        assert read(keyed.url) == [(0, BEN, b"other"), (1, BEN, b"new")]


def test_a_truncated_history_loses_the_records_and_others_at_the_same_offsets_stay() -> None:
    with in_memory() as made:
        keyed = Keyed(made)
        keyed.backup({0: [batch(0, (ANNE, b"1"), (BEN, b"1"), leader_epoch=3)]}, packed=False)
        made.archive.catalog.refresh()
        older = decode_rows(made.archive.catalog.rows())
        rows = keyed.backup({0: [batch(0, (BEN, b"other"), (BEN, b"new"), leader_epoch=5)]}, packed=False, commit=False)
        made.archive.catalog.commit(rows, retired=older)
        report = erase(keyed.url, keys=["anne-4711"])
        assert (report.exit_code, report.records, report.rewritten) == (EXIT_DONE, 1, 1)
        assert read(keyed.url) == [(0, BEN, b"other"), (1, BEN, b"new")]
        assert read(keyed.url, "run-000001") == [(1, BEN, b"1")]


def test_rows_that_an_erasure_has_written_are_read_as_they_are() -> None:
    with in_memory() as made:
        keyed = Keyed(made)
        keyed.backup({0: [batch(0, (ANNE, b"1"), (BEN, b"1"))]}, packed=False)
        keyed.backup({0: [batch(2, (BEN, b"2"))]}, packed=False)
        erase(keyed.url, keys=["anne-4711"])
        erasures = open_archive(keyed.url).erasures()
        assert [erasures.slice_of(row).erased for row in segments(keyed.url)] == [None, None]


def test_a_ledger_that_cannot_be_read_stops_readers(held: Keyed) -> None:
    path = open_archive(held.url).erasures().documents[0].path
    file = file_of(held.making, path)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptDataError, match="ledger of erasures") as error:
        read(held.url)
    assert path in str(error.value.object_name)


@pytest.mark.parametrize("change", [{"hashes": ("00",)}, {"salt": ""}, {"id": "other"}, {"salt": "xx"}])
def test_a_ledger_that_contradicts_itself_stops_readers(change: dict[str, object]) -> None:
    with in_memory() as made:
        keyed = Keyed(made)
        keyed.backup({0: [batch(0, (BEN, b"1"))]})
        part = ErasedPartition(
            partition=0, end_offset=1, leader_epoch=-1, erased=(ErasedOffsets(leader_epoch=-1, offsets=((0, 1),)),)
        )
        topic = ErasedTopic(topic=TOPIC, topic_id=TOPIC_ID, partitions=(part,))
        sound = Erasure(id="e", at_ms=1, how="keys", salt="ab" * 32, hashes=("cd" * 32,), topics=(topic,))
        wrong = replace(sound, **change)  # type: ignore[arg-type]
        storage = open_storage(keyed.url)
        put_erasure(storage, wrong)
        if wrong.id != "e":
            storage.put(sound.path, bytes(storage.get(wrong.path)))
            storage.delete([wrong.path])
        with pytest.raises(CorruptDataError):
            open_archive(keyed.url).erasures()


def test_an_archive_of_another_tool_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with in_memory() as made:
        keyed = Keyed(made)
        keyed.backup({0: [batch(0, (BEN, b"1"))]})
        convert(keyed.url, tmp_path / "other", "kbak")
    with pytest.raises(UsageError, match="layout kbak") as refused:
        erase(tmp_path / "other", keys=["ben-0815"])
    assert "maxbrod convert" in str(refused.value.hint)


def test_ranges_are_clipped_and_completed() -> None:
    assert clip(((0, 3), (5, 9)), 2, 6) == ((2, 3), (5, 6))
    assert clip(((0, 3),), 3, 6) == ()
    assert outside(((0, 3), (5, 9)), 2, 12) == ((3, 5), (9, 12))
    assert outside((), 2, 2) == ()
