"""A local directory under kill -9, a full disk and people who look into it."""

from __future__ import annotations

import errno
import os
import re
import resource
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.config import StorageConfig
from maxbrod.errors import AccessDeniedError, ObjectExistsError, StorageFullError, UsageError
from maxbrod.storage import local
from maxbrod.storage.beneath import Root
from maxbrod.storage.stores import open_storage
from maxbrod.storage.urls import RESERVED
from support.processes import environment, program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.storage.interface import Writer

MIB = 1024 * 1024


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, *code.split(), *arguments], env=environment, capture_output=True, text=True, check=True
    )


def test_killed_before_any_call_to_the_system_an_object_is_whole_or_absent(tmp_path: Path) -> None:
    command = program("put_kill_sweep", tmp_path)
    seen = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout.strip()
    # First absent, from the link on whole; at least: make, write and start to write out three times, sync, link, sync,
    # remove, close.
    assert re.fullmatch("0{11,}1{3,}", seen)


def test_what_a_killed_writer_left_goes_when_it_is_old_and_its_writer_is_dead(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    alive = storage.create("alive")
    alive.write(b"alive")
    (living,) = (tmp_path / ".maxbrod-tmp").iterdir()
    for name in ("dead", "young"):
        (tmp_path / ".maxbrod-tmp" / name).write_bytes(b"half")
    long_ago = time.time() - local.STALE_AFTER_S - 60
    for path in (living, tmp_path / ".maxbrod-tmp" / "dead"):
        os.utime(path, (long_ago, long_ago))

    open_storage(str(tmp_path)).put("other", b"other")

    assert files(tmp_path) == sorted([f".maxbrod-tmp/{living.name}", ".maxbrod-tmp/young", "other"])
    alive.commit()
    assert bytes(storage.get("alive")) == b"alive"


def test_everything_is_synced_before_and_after_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure cannot be tested here; that the kernel was asked in the right order can."""
    calls: list[tuple[str, str]] = []

    def recording(name: str, original: Any, target: Any) -> Any:
        def act(*arguments: Any, **options: Any) -> Any:
            where = options.get("dst_dir_fd", options.get("dir_fd"))
            above = tmp_path if where is None else Path(f"/proc/self/fd/{where}").readlink()
            calls.append((name, os.path.relpath(above / target(*arguments), tmp_path)))
            return original(*arguments, **options)

        return act

    monkeypatch.setattr(os, "fsync", recording("sync", os.fsync, lambda fd: Path(f"/proc/self/fd/{fd}").readlink()))
    monkeypatch.setattr(os, "link", recording("link", os.link, lambda _, target: target))
    monkeypatch.setattr(os, "mkdir", recording("make", os.mkdir, lambda path, *_: path))
    open_storage(str(tmp_path / "new" / "root")).put("a/x", b"x")

    assert [call for call in calls if ".maxbrod-tmp/" not in call[1]] == [
        ("make", "new"),
        ("sync", "."),
        ("make", "new/root"),
        ("sync", "new"),
        ("make", "new/root/.maxbrod-tmp"),
        ("sync", "new/root"),
        ("make", "new/root/a"),
        ("sync", "new/root"),
        ("link", "new/root/a/x"),
        ("sync", "new/root/a"),
    ]
    drafted = next(index for index, call in enumerate(calls) if ".maxbrod-tmp/" in call[1])
    assert calls[drafted][0] == "sync"
    assert drafted < calls.index(("link", "new/root/a/x"))


def write_pieces(writer: Writer, count: int, size: int) -> None:
    for _ in range(count):
        writer.write(bytes(size))


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, mounted with the options that are the parameter."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", request.param, "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("disk", ["size=2m"], indirect=True)
def test_a_full_disk_is_said_and_nothing_half_written_stays(disk: Path) -> None:
    storage = open_storage(str(disk))
    storage.put("before", b"x" * MIB)
    with pytest.raises(StorageFullError, match=r"No space left.*in .*/big") as caught:
        storage.put("big", bytes(3 * MIB))
    assert caught.value.hint
    with pytest.raises(StorageFullError), storage.create("big") as writer:
        write_pieces(writer, 30, MIB // 10)
    assert files(disk) == ["before"]
    storage.put("after", b"x" * (MIB // 2))
    assert storage.head("after").size == MIB // 2


def test_a_file_larger_than_the_limit_is_said_and_nothing_half_written_stays(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    storage = open_storage(str(tmp_path))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
    try:
        with pytest.raises(StorageFullError):
            storage.put("big", bytes(3 * MIB))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(tmp_path) == []


def test_a_name_that_cannot_be_made_durable_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage(str(tmp_path))
    storage.put("before", b"x")
    fsync = os.fsync

    def failing(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_dir():
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(StorageFullError):
        storage.put("x", b"x")
    assert files(tmp_path) == ["before"]


def test_opening_and_reading_create_nothing(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "none"))
    assert list(storage.list()) == []
    storage.delete(["x"])
    assert not (tmp_path / "none").exists()


def test_listing_ignores_what_is_no_object(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    storage = open_storage(str(tmp_path))
    storage.put("x", b"x")
    assert [info.path for info in storage.list()] == ["x"]


def test_an_object_and_a_folder_of_one_name_are_refused(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    storage.put("a", b"a")
    with pytest.raises(UsageError, match="such a name"):
        storage.put("a/b", b"b")
    storage.put("c/d", b"d")
    with pytest.raises(ObjectExistsError):
        storage.put("c", b"c")
    assert files(tmp_path) == ["a", "c/d"]


@pytest.mark.parametrize("disk", ["ro"], indirect=True)
def test_a_directory_that_may_not_be_written_to_is_said_with_a_hint(disk: Path) -> None:
    with pytest.raises(AccessDeniedError, match=r"Read-only.*in .*/disk/x") as caught:
        open_storage(str(disk)).put("x", b"x")
    assert "mode" in (caught.value.hint or "")


def test_a_process_that_ends_leaves_no_empty_folder_of_drafts(tmp_path: Path) -> None:
    """Another one that finds it gone makes it again."""
    code = f"from maxbrod.storage.stores import open_storage; open_storage({str(tmp_path)!r}).put('a', b'1')"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert files(tmp_path) == ["a"]
    assert [each.name for each in tmp_path.iterdir()] == ["a"]
    storage = open_storage(str(tmp_path))
    with storage.create("b") as writer:
        (tmp_path / ".maxbrod-tmp" / "other").write_bytes(b"half")
        subprocess.run([sys.executable, "-c", code.replace("'a'", "'c'")], check=True)
        writer.write(b"2")
    assert files(tmp_path) == [".maxbrod-tmp/other", "a", "b", "c"]


def test_a_folder_of_drafts_that_goes_between_making_and_using_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, made = Root.folder, []

    @contextmanager
    def folder(self: Root, name: str, *, make: bool = False) -> Iterator[int]:
        with real(self, name, make=make) as descriptor:
            if make and name == RESERVED:
                made.append(name)
                if len(made) == 1:
                    (self.path / name).rmdir()
            yield descriptor

    monkeypatch.setattr(Root, "folder", folder)
    open_storage(str(tmp_path)).put("a", b"1")
    assert files(tmp_path) == ["a"]
    assert len(made) > 1


def modes(root: Path) -> set[tuple[str, int]]:
    return {("folder" if path.is_dir() else "file", path.stat().st_mode & 0o777) for path in [root, *root.rglob("*")]}


def test_what_is_written_is_this_users_alone_unless_it_is_to_be_shared(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        for name, options in (("private", StorageConfig()), ("shared", StorageConfig(shared=True))):
            storage = open_storage(str(tmp_path / name / "below"), options)
            storage.put("a/put", b"x")
            storage.replace("a/replaced", b"x")
            with storage.create("b/c/created") as writer:
                writer.write(b"x")
    finally:
        os.umask(before)
    assert modes(tmp_path / "private") == {("folder", 0o700), ("file", 0o600)}
    assert modes(tmp_path / "shared") == {("folder", 0o755), ("file", 0o644)}


def test_a_stricter_umask_is_kept(tmp_path: Path) -> None:
    before = os.umask(0o277)
    try:
        open_storage(str(tmp_path)).put("x", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o400
