"""Of a large file the survey of a backup reads the ends alone, and the copying proves what was assumed of the rest."""

from __future__ import annotations

import shutil
import struct
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maxbrod.archive.archive import open_archive
from maxbrod.catalog.rows import Gap, Segment, decode_rows
from maxbrod.convert.sides import ConvertSource
from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, CorruptDataError
from maxbrod.layouts.logdir import reader as scan
from maxbrod.layouts.logdir.reader import MIDDLE_UNREAD, read_batches
from maxbrod.storage.local import LocalStorage
from maxbrod.storage.stores import open_storage
from support.archive_oracle import read_archive
from support.conversions import convert
from support.log_directories import TOPIC_ID, put_checkpoint, put_log, put_watermark, run, survey
from support.native_logs import ABORT, Batch, batches, data_batch, marker, pack
from support.plain_batches import Record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.convert.verb import ConvertReport
    from maxbrod.layouts.foreign import Survey

FAST = {"check_crc": "false"}
_SURVEY_AGAIN = ConvertSource.survey_with_checksums
IN_TRANSACTION: dict[str, Any] = {"attributes": 0x10, "producer_id": 7, "producer_epoch": 0, "base_sequence": 0}


@contextmanager
def small(samples: int = 2) -> Iterator[None]:
    """Every file is worth it that has a middle, of which only the first indexed batch is looked at."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(scan, "END_BYTES", 200))
        stack.enter_context(patch.object(scan, "END_BYTES", 200))
        stack.enter_context(patch.object(scan, "MIDDLE_BYTES_MIN", 1))
        stack.enter_context(patch.object(scan, "_SAMPLES", samples))
        yield


def put_indexed(root: Path, log: list[bytes], *, base: int = 0) -> Path:
    """A log file with the index of a broker that notes every batch but the first."""
    file = put_log(root, log, base=base)
    put_index(file, [sum(map(len, log[:turn])) for turn in range(1, len(log))])
    (file.parent / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}\n")
    return file


def put_index(file: Path, positions: list[int], *, zeros: int = 0) -> None:
    entries = [struct.pack(">ii", turn + 1, position) for turn, position in enumerate(positions)]
    file.with_suffix(".index").write_bytes(b"".join(entries) + bytes(8 * zeros))


def unread(found: Survey) -> list[bool]:
    return [MIDDLE_UNREAD in each.details for each in found.segments]


def without_times(found: Survey) -> Survey:
    """The survey without what cannot be known without the middle."""
    segments = (
        replace(each, max_timestamp=None, codec="none", details={"position": each.details["position"]})
        for each in found.segments
    )
    return replace(found, segments=tuple(segments))


def back_up(disks: Path, archive: Path, **extra: str) -> ConvertReport:
    with small():
        return convert(disks, archive, "kafka", source_layout="logdir", source_extra=FAST | extra, verify=False)


def held(archive: Path) -> tuple[Any, ...]:
    """Bytes, and rows without names and times."""
    rows = decode_rows(open_archive(str(archive)).catalog.rows())
    kept = [
        (row.base_offset, row.end_offset, row.reason)
        + ((row.records, row.digest, row.aborted, row.max_timestamp) if isinstance(row, Segment) else ())
        for row in rows
        if isinstance(row, Segment | Gap)
    ]
    return read_archive(str(archive)).logs, kept


def same_as_checked(tmp_path: Path, disk: Path) -> ConvertReport:
    """Back up by the ends, and with every checksum read first: both archives are the same, and both reports."""
    fast = back_up(disk, tmp_path / "fast")
    checked = back_up(disk, tmp_path / "checked", check_crc="true")
    assert held(tmp_path / "fast") == held(tmp_path / "checked")
    assert [each.message for each in fast.notices] == [each.message for each in checked.notices]
    assert fast.exit_code == checked.exit_code
    return fast


def test_of_a_large_file_only_the_ends_are_read(tmp_path: Path) -> None:
    log = [data_batch(10 * turn, 10, value=bytes(1600)) for turn in range(1250)]
    put_indexed(tmp_path, log)
    read = 0
    whole = LocalStorage.get_ranges

    def counted(storage: LocalStorage, path: str, ranges: Any) -> Any:
        nonlocal read
        read += sum(each.size for each in ranges)
        return whole(storage, path, ranges)

    with patch.object(LocalStorage, "get_ranges", counted):
        found = survey(tmp_path, **FAST)
    assert read < scan.END_BYTES + (1 << 20) < 6_000_000 < sum(map(len, log))
    assert unread(found) == [True]
    assert without_times(found) == without_times(survey(tmp_path))


def test_the_times_of_records_are_never_guessed(tmp_path: Path) -> None:
    log = run(0, 12)
    log[4] = pack([Record(offset=40 + turn, timestamp=1 << 40, key=None, value=b"") for turn in range(10)])
    put_indexed(tmp_path / "disk", log)
    with small():
        assert [each.max_timestamp for each in survey(tmp_path / "disk", **FAST).segments] == [None]
    same_as_checked(tmp_path, tmp_path / "disk")


def test_a_plain_log_is_surveyed_once(tmp_path: Path) -> None:
    for turn in range(3):
        put_indexed(tmp_path / "disk", run(120 * turn, 12), base=120 * turn)
    with patch.object(ConvertSource, "survey_with_checksums", side_effect=AssertionError):
        report = back_up(tmp_path / "disk", tmp_path / "archive")
    assert report.exit_code == EXIT_DONE
    assert read_archive(str(tmp_path / "archive")).logs == {(TOPIC_ID, 0): b"".join(run(0, 36))}


@pytest.mark.parametrize(
    "middle",
    [
        [data_batch(60, 9, **IN_TRANSACTION), marker(69, 7, ABORT)],
        [data_batch(60, 5), data_batch(67, 3)],
        [data_batch(60, 10, leader_epoch=1)],
        [data_batch(60, 10)[:-1] + b"\xff"],
        [data_batch(50, 10)],
        [data_batch(60, 8)],
        [b"\0" * 300],
    ],
    ids=["transaction", "hole", "epoch", "checksum", "order", "hole at the end", "zeros"],
)
def test_what_the_ends_do_not_show_is_found_by_the_copying(tmp_path: Path, middle: list[bytes]) -> None:
    disk = tmp_path / "disk"
    put_indexed(disk, [*run(0, 6), *middle, *run(70, 6)])
    put_indexed(disk, run(130, 12), base=130)
    with small():
        assert all(unread(survey(disk, **FAST)))
    same_as_checked(tmp_path, disk)


def test_damage_in_the_middle_is_taken_from_another_copy(tmp_path: Path) -> None:
    log = run(0, 12)
    put_indexed(tmp_path / "disks" / "a", [*log[:6], log[6][:-1] + b"\xff", *log[7:]])
    put_indexed(tmp_path / "disks" / "b", log)
    assert same_as_checked(tmp_path, tmp_path / "disks").exit_code == EXIT_DONE
    assert read_archive(str(tmp_path / "fast")).logs == {(TOPIC_ID, 0): b"".join(log)}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=batches(), tail=st.sampled_from([b"", b"\0" * 500, b"\0\0\0\0\0\0\0\x09abc"]))
def test_no_log_is_read_otherwise_than_by_its_ends(tmp_path: Path, found: list[Batch], tail: bytes) -> None:
    """Either the segment is what a scan finds, or reading it raises."""
    shutil.rmtree(tmp_path / "orders-0", ignore_errors=True)
    put_indexed(tmp_path, [*(each.data for each in found), tail], base=found[0].first)
    with small():
        by_ends, whole = survey(tmp_path, **FAST), survey(tmp_path)
    if by_ends == whole:
        return
    assert any(unread(by_ends))
    storage = open_storage(str(tmp_path))
    try:
        for each in by_ends.segments:
            list(read_batches(storage, each))
    except CorruptDataError:
        return
    assert without_times(by_ends) == without_times(whole)


@pytest.mark.parametrize(
    ("positions", "zeros"),
    [([], 0), ([], 50), ([7, 9, 300], 0), ([5000, 1, 2], 0), ([1 << 30], 0), ([-5, 70], 0)],
    ids=["empty", "zeros", "no boundaries", "falling", "beyond", "negative"],
)
def test_an_index_that_lies_costs_time_only(tmp_path: Path, positions: list[int], zeros: int) -> None:
    file = put_indexed(tmp_path, run(0, 12))
    put_index(file, positions, zeros=zeros)
    with small():
        assert survey(tmp_path, **FAST) == survey(tmp_path)


def test_an_index_with_zeros_at_its_end_is_used(tmp_path: Path) -> None:
    """A broker that was killed leaves it so."""
    file = put_indexed(tmp_path / "disk", run(0, 12))
    size = file.stat().st_size // 12
    put_index(file, [size * turn for turn in range(1, 12)], zeros=50)
    with small():
        assert unread(survey(tmp_path / "disk", **FAST)) == [True]


def test_a_torn_end_is_found_beside_an_unread_middle(tmp_path: Path) -> None:
    put_indexed(tmp_path / "disk", [*run(0, 12), run(120, 1)[0][:70]])
    with small():
        assert unread(survey(tmp_path / "disk", **FAST)) == [True]
    report = same_as_checked(tmp_path, tmp_path / "disk")
    assert "70 bytes from byte" in report.notices[0].message


@pytest.mark.parametrize(
    "why",
    ["cleaned", "transaction in another file", "gap between files", "samples", "hole in the end", "damage at the end"],
)
def test_where_the_middle_cannot_be_plain_it_is_read_at_once(tmp_path: Path, why: str) -> None:
    """The copying would find out, at the cost of a second copy."""
    disk = tmp_path / "disk"
    second = 120
    log = run(0, 12)
    if why == "cleaned":
        disk.mkdir()
        put_checkpoint(disk / "cleaner-offset-checkpoint", ["orders 0 50"])
    if why == "gap between files":
        second = 125
    if why == "samples":
        log[5] = data_batch(50, 10, **IN_TRANSACTION)
    if why == "hole in the end":
        log[11] = data_batch(112, 8)
    if why == "damage at the end":
        log[10] = log[10][:-1] + b"\xff"  # with which the end begins
    put_indexed(disk, log)
    put_indexed(disk, [*run(second, 11), data_batch(second + 110, 10)], base=second)
    if why == "transaction in another file":
        put_indexed(disk, [data_batch(240, 10, **IN_TRANSACTION)], base=240)
    with small(samples=16):
        assert not unread(survey(disk, **FAST))[0]
    same_as_checked(tmp_path, disk)


def test_leader_epochs_begin_where_the_broker_has_noted_it(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    put_indexed(disk, [*run(0, 4), *run(40, 3, epoch=2), *run(70, 5, epoch=5)])
    put_checkpoint(disk / "orders-0" / "leader-epoch-checkpoint", ["0 0", "2 40", "5 70"])
    with small():
        found = survey(disk, **FAST)
        assert unread(found) == [True]
        assert without_times(found) == without_times(survey(disk))
    with patch.object(ConvertSource, "survey_with_checksums", side_effect=AssertionError):
        assert same_as_checked(tmp_path, disk).exit_code == EXIT_DONE


def test_leader_epochs_that_are_noted_wrongly_are_found_by_the_copying(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    put_indexed(disk, [*run(0, 4), *run(40, 3, epoch=2), *run(70, 5, epoch=5)])
    put_checkpoint(disk / "orders-0" / "leader-epoch-checkpoint", ["0 0", "2 50", "5 70"])
    with small():
        assert unread(survey(disk, **FAST)) == [True]
    again = patch.object(ConvertSource, "survey_with_checksums", autospec=True, side_effect=_SURVEY_AGAIN)
    with again as surveyed:
        same_as_checked(tmp_path, disk)
    assert surveyed.called


def test_a_watermark_within_a_file_cuts_it_as_ever(tmp_path: Path) -> None:
    put_indexed(tmp_path / "disk", run(0, 12))
    put_watermark(tmp_path / "disk", 60)
    assert same_as_checked(tmp_path, tmp_path / "disk").exit_code == EXIT_CORRUPT
    assert list(read_archive(str(tmp_path / "fast")).records[TOPIC_ID, 0]) == list(range(60))
