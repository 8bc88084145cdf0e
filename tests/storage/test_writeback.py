"""Large files are on their way to the disk while they are written, and are durable only after the sync at the end."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING

import pytest

from maxbrod.errors import StorageFullError
from maxbrod.storage import local
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PIECE = 1000
DATA = os.urandom(10 * PIECE + 1)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "WRITEBACK_BYTES", PIECE)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What is asked of the kernel, in order: where write-back starts, syncs, links."""
    found: list[tuple[str, int, int]] = []
    start_writing, fsync, link = local.start_writing, os.fsync, os.link

    def started(descriptor: int, start: int, size: int) -> bool:
        found.append(("start", start, size))
        assert os.fstat(descriptor).st_size >= start + size
        return start_writing(descriptor, start, size)

    def synced(descriptor: int) -> None:
        found.append(("sync", 0, os.fstat(descriptor).st_size))
        fsync(descriptor)

    def linked(source: str, target: str, **where: int) -> None:
        found.append(("link", 0, 0))
        link(source, target, **where)  # type: ignore[arg-type] # flags are passed on

    monkeypatch.setattr(local, "start_writing", started)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    return found


def write(root: Path, size: int) -> None:
    with open_storage(str(root)).create("x") as writer:
        for start in range(0, len(DATA), size):
            writer.write(DATA[start : start + size])


def failing_with(code: int, counted: list[int] | None = None) -> Callable[..., int]:
    def fail(*arguments: int) -> int:
        if counted is not None:
            counted.append(arguments[1])
        ctypes.set_errno(code)
        return -1

    return fail


@pytest.mark.parametrize("size", [PIECE // 3, PIECE, 3 * PIECE, len(DATA)])
def test_all_but_the_end_is_on_its_way_before_the_sync_and_all_is_synced_before_the_name(
    tmp_path: Path, calls: list[tuple[str, int, int]], size: int
) -> None:
    open_storage(str(tmp_path)).put("before", b"")  # makes folders, which is synced as well
    calls.clear()
    write(tmp_path, size)

    started = [call for call in calls if call[0] == "start"]
    at = 0
    for _, start, length in started:
        assert start == at
        at += length
    assert len(DATA) - PIECE < at <= len(DATA)
    rest = calls[len(started) :]
    assert rest[:2] == [("sync", 0, len(DATA)), ("link", 0, 0)]
    assert bytes(open_storage(str(tmp_path)).get("x")) == DATA


def test_short_writes_leave_nothing_out(
    tmp_path: Path, calls: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, view: real(descriptor, view[: max(1, len(view) // 3)]))
    write(tmp_path, 4 * PIECE)

    assert bytes(open_storage(str(tmp_path)).get("x")) == DATA
    assert sum(size for name, _, size in calls if name == "start") > len(DATA) - PIECE


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_while_it_is_written_fails_the_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(local, "_sync_file_range", lambda: failing_with(code))
    with pytest.raises(StorageFullError):
        write(tmp_path, PIECE)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failure_that_only_the_sync_reports_fails_the_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def broken(_: int) -> None:
        raise OSError(code, os.strerror(code))

    storage = open_storage(str(tmp_path))
    storage.put("before", b"")
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(Exception, match=os.strerror(code)):
        write(tmp_path, PIECE)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["before"]


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EINVAL, errno.ESPIPE])
def test_a_file_system_that_cannot_start_early_is_asked_once_and_synced_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[tuple[str, int, int]], code: int
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(local, "_sync_file_range", lambda: failing_with(code, asked))
    write(tmp_path, PIECE)

    assert asked == [0]
    assert ("sync", 0, len(DATA)) in calls
    assert bytes(open_storage(str(tmp_path)).get("x")) == DATA


def test_a_system_without_the_call_syncs_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[tuple[str, int, int]]
) -> None:
    monkeypatch.setattr(local, "_sync_file_range", lambda: None)
    write(tmp_path, PIECE)

    assert ("sync", 0, len(DATA)) in calls
    assert bytes(open_storage(str(tmp_path)).get("x")) == DATA
