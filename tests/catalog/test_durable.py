"""A commit that was reported survives a power failure: everything that it consists of was synced, in that order."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from catalog.archives import Archive
from catalog.examples import segment

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
