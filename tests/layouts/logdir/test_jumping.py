"""Jumping from header to header finds what reading everything finds; damage it passes over is found in the copying."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maxbrod.archive.archive import open_archive
from maxbrod.catalog.rows import Gap, decode_rows
from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, UnavailableError
from maxbrod.layouts.logdir import reader as scan
from maxbrod.layouts.reader import read_logs
from maxbrod.storage.local import LocalStorage
from maxbrod.transfer import plan as convert_parts
from maxbrod.transfer import task as copy_task
from support.archive_oracle import read_archive
from support.conversions import convert
from support.log_directories import TOPIC_ID, fatal, offsets, put_log, run, survey
from support.native_logs import ABORT, Batch, batches, data_batch, marker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.convert.verb import ConvertReport
    from maxbrod.layouts.foreign import Survey
    from maxbrod.layouts.kafka.format import Slice
    from maxbrod.storage.interface import Storage

FAST = {"check_crc": "false"}


@contextmanager
def small() -> Iterator[None]:
    """Every file is worth jumping in, every batch is large, and every file a task of its own."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(scan, "END_BYTES", 0))
        stack.enter_context(patch.object(scan, "_LARGE_BYTES", 200))
        stack.enter_context(patch.object(scan, "_NARROW_BYTES", 61))
        stack.enter_context(patch.object(scan, "_WINDOW_BYTES", 400))
        stack.enter_context(patch.object(scan, "_GROUP_BATCHES", 3))
        stack.enter_context(patch.object(convert_parts, "_TASK_BYTES_MIN", 1))
        yield


def jumped(root: Path, **extra: str) -> Survey:
    with small():
        return survey(root, **FAST, **extra)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=batches(), tail=st.sampled_from([b"", b"\0" * 500, b"\0\0\0\0\0\0\0\x09abc"]))
def test_jumping_finds_what_reading_everything_finds(tmp_path: Path, found: list[Batch], tail: bytes) -> None:
    put_log(tmp_path, [*(each.data for each in found), tail])
    assert jumped(tmp_path) == survey(tmp_path)


def test_jumping_reads_the_markers_of_transactions(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"attributes": 0x10, "producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    put_log(tmp_path, [data_batch(0, 9), data_batch(9, 2, **fields), marker(11, 7, ABORT), *run(12, 9)])
    found = jumped(tmp_path)
    assert found == survey(tmp_path)
    assert offsets(tmp_path, found) == [*range(9), *range(12, 102)]


def test_of_large_batches_only_the_headers_are_read(tmp_path: Path) -> None:
    put_log(tmp_path, [data_batch(turn, value=bytes(200_000)) for turn in range(100)])
    read = 0
    whole = LocalStorage.get_range

    def counted(storage: LocalStorage, path: str, start: int, size: int) -> memoryview:
        nonlocal read
        read += size
        return whole(storage, path, start, size)

    with patch.object(LocalStorage, "get_range", counted):
        assert survey(tmp_path, **FAST).positions == survey(tmp_path).positions
        everything = read
        read = 0
        survey(tmp_path, **FAST)
    # The end of the file is read as a whole, and the first window.
    assert read < scan.END_BYTES + (2 << 20)
    assert everything > 20_000_000


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_header_that_lies_is_found_at_once(tmp_path: Path, at: int) -> None:
    log = run(0, 3)
    log[at] = log[at][:57] + b"\x7f" + log[at][58:]  # more records than offsets
    put_log(tmp_path, log)
    assert jumped(tmp_path) == survey(tmp_path)


def put_damaged(root: Path) -> list[bytes]:
    """Four files; of the third one a record is damaged."""
    log = run(0, 12)
    for turn in range(4):
        put_log(root, log[3 * turn : 3 * turn + 3], base=30 * turn)
    damaged = [log[6], log[7][:-1] + b"\xff", log[8]]
    put_log(root, damaged, base=60)
    (root / "orders-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}\n")
    return log


def back_up(disks: Path, archive: Path, **more: object) -> ConvertReport:
    with small():
        return convert(disks, archive, "kafka", source_layout="logdir", source_extra=FAST, verify=False, **more)


@pytest.mark.parametrize("commit_bytes", [1, 1 << 30])
def test_damage_that_the_copying_finds_is_told_and_all_else_is_archived(tmp_path: Path, commit_bytes: int) -> None:
    log = put_damaged(tmp_path / "disk")
    assert not fatal(jumped(tmp_path / "disk"))
    report = back_up(tmp_path / "disk", tmp_path / "archive", commit_bytes=commit_bytes)
    assert report.exit_code == EXIT_CORRUPT
    assert "offsets 70 to 89 are in none of the directories" in report.notices[0].message
    held = read_archive(str(tmp_path / "archive"))
    assert held.logs == {(TOPIC_ID, 0): b"".join([*log[:7], *log[9:]])}
    rows = decode_rows(open_archive(str(tmp_path / "archive")).catalog.rows())
    gaps = [(row.base_offset, row.end_offset, str(row.reason)) for row in rows if isinstance(row, Gap)]
    assert gaps == [(70, 90, "corrupt")]
    assert [each.partitions for each in report.topics] == [1]


@pytest.mark.parametrize("commit_bytes", [1, 1 << 30])
def test_what_the_copying_finds_damaged_is_taken_from_another_copy(tmp_path: Path, commit_bytes: int) -> None:
    log = put_damaged(tmp_path / "disks" / "a")
    put_log(tmp_path / "disks" / "b", log[:5])
    put_log(tmp_path / "disks" / "b", log[5:], base=50)
    (tmp_path / "disks" / "b" / "orders-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}\n")
    report = back_up(tmp_path / "disks", tmp_path / "archive", commit_bytes=commit_bytes)
    assert report.exit_code == EXIT_DONE, report.notices
    assert read_archive(str(tmp_path / "archive")).logs == {(TOPIC_ID, 0): b"".join(log)}
    # And a second time, there is nothing left to do.
    assert back_up(tmp_path / "disks", tmp_path / "archive").exit_code == EXIT_DONE


def test_where_the_other_copy_is_cut_elsewhere_what_was_written_is_taken_back(tmp_path: Path) -> None:
    """The damage makes the other copy the longer one, and its files begin at other offsets."""
    log = run(0, 12)
    disks = tmp_path / "disks"
    put_log(disks / "a", log[:3])
    put_log(disks / "a", [*log[3:5], log[5][:-1] + b"\xff", *log[6:]], base=30)
    put_log(disks / "b", log[:5])
    put_log(disks / "b", log[5:11], base=50)
    for name in ("a", "b"):
        (disks / name / "orders-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}\n")
    report = back_up(disks, tmp_path / "archive", commit_bytes=1)
    assert read_archive(str(tmp_path / "archive")).logs == {(TOPIC_ID, 0): b"".join(log[:11])}
    assert report.exit_code == EXIT_DONE, report.notices


def test_behind_a_file_that_could_not_be_copied_nothing_of_its_partition_counts(tmp_path: Path) -> None:
    put_log(tmp_path / "disk", run(0, 3))
    put_log(tmp_path / "disk", run(30, 3), base=30)
    put_log(tmp_path / "disk", run(60, 3), base=60)
    (tmp_path / "disk" / "orders-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}\n")
    whole = read_logs

    def failing(storage: Storage, stored: Slice) -> Any:
        if stored.base_offset == 30:
            raise UnavailableError("the disk does not answer")
        return whole(storage, stored)

    with patch.object(copy_task, "read_logs", failing):
        assert back_up(tmp_path / "disk", tmp_path / "archive").exit_code == UnavailableError.exit_code
    assert list(read_archive(str(tmp_path / "archive")).records[TOPIC_ID, 0]) == list(range(30))
    assert back_up(tmp_path / "disk", tmp_path / "archive").exit_code == EXIT_DONE
    assert list(read_archive(str(tmp_path / "archive")).records[TOPIC_ID, 0]) == list(range(90))
