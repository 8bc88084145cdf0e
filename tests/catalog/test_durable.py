"""A commit that was reported survives a power failure: everything that it consists of was synced, in that order."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from maxbrod.catalog.catalog import open_writable
from maxbrod.config import StorageConfig
from support.catalog_places import Archive
from support.catalog_rows import segment

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def synced_by(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inodes of what is synced from now on: a file is synced before it has its name."""
    inodes: list[int] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        inodes.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    return inodes


def inodes(*paths: Path) -> list[int]:
    return [path.stat().st_ino for path in paths]


def test_a_commit_is_never_reported_before_its_files_and_its_log_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "catalog" / "segments"
    log = table / "_delta_log"
    catalog = Archive(str(tmp_path)).create()
    synced = synced_by(monkeypatch)
    before = set(table.glob("*.parquet"))
    catalog.commit([segment(0, 10)])
    (data,) = set(table.glob("*.parquet")) - before
    assert synced == inodes(data, table, log / f"{1:020}.json", log)


def test_a_checkpoint_is_on_disk_with_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Archive(str(tmp_path)).create()
    synced = synced_by(monkeypatch)
    while not (found := list(tmp_path.rglob("*.checkpoint.parquet"))):
        catalog.commit([segment(catalog.version * 10, catalog.version * 10 + 10)])
    assert {*inodes(found[0], found[0].parent / "_last_checkpoint")} <= set(synced)


def test_a_new_catalog_is_on_disk_with_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = synced_by(monkeypatch)
    Archive(str(tmp_path)).create()
    log = tmp_path / "catalog" / "segments" / "_delta_log"
    assert {*inodes(log / f"{0:020}.json", log, *log.parents[:3])} <= set(synced)


def test_a_new_archive_is_its_users_alone_down_to_the_last_file_of_its_catalog(tmp_path: Path) -> None:
    """delta-rs makes files as the umask has it: those of a commit and of a checkpoint too."""
    for name, options, expected in (
        ("private", StorageConfig(), {0o700, 0o600}),
        ("shared", StorageConfig(shared=True), {0o755, 0o644}),
    ):
        before = os.umask(0o022)
        try:
            _, catalog = open_writable(str(tmp_path / name), options)
            while not list((tmp_path / name).rglob("*.checkpoint.parquet")):
                catalog.commit([segment(catalog.version * 10, catalog.version * 10 + 10)])
        finally:
            os.umask(before)
        found = {path.stat().st_mode & 0o777 for path in [tmp_path / name, *(tmp_path / name).rglob("*")]}
        assert found == expected
