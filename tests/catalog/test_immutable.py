"""A catalog lives where nothing can be overwritten or deleted, and other programs read it there."""

from __future__ import annotations

import json

import pytest

from maxbrod.catalog import catalog as catalog_module
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.log import LAST_CHECKPOINT, LOG_FOLDER, delete_expired
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_bucket, open_storage
from support.catalog_rows import segment
from support.immutable_s3 import CreateOnlyS3, LockingS3Server, VersionedS3Server
from support.storages import delta_table, s3_options

COMMITS = 12


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint at every fourth commit, and a cleanup and a sweep at every one of them."""
    monkeypatch.setattr(catalog_module, "_CHECKPOINT_EVERY", 4)
    monkeypatch.setattr(catalog_module, "_CLEANUP_EVERY", 4)
    monkeypatch.setattr(catalog_module, "_CLEANUP_PAUSE_MS", 0)
    monkeypatch.setattr(catalog_module, "_SWEEP_EVERY", 4)
    monkeypatch.setattr(catalog_module, "_SWEEP_PAUSE_MS", 0)
    monkeypatch.setattr("maxbrod.catalog.log.LOG_RETENTION_MS", -10_000)
    monkeypatch.setattr("maxbrod.catalog.log.RETENTION_MS", -10_000)
    monkeypatch.setattr("maxbrod.catalog.files.RETENTION_MS", -10_000)


def fill(storage: Storage) -> None:
    catalog = Catalog.create(storage)
    for number in range(COMMITS):
        catalog = Catalog.open(storage) if number % 3 == 0 else catalog
        catalog.commit([segment(number, number + 1)])


def names(storage: Storage) -> list[str]:
    return [info.path.rpartition("/")[2] for info in storage.list(LOG_FOLDER)]


def test_a_create_only_writer_commits_checkpoints_and_overwrites_nothing(create_only_s3: CreateOnlyS3) -> None:
    storage = open_storage(create_only_s3.url, create_only_s3.config(create_only=True))
    fill(storage)
    assert create_only_s3.refused() == 0
    assert Catalog.open(storage).version == COMMITS
    assert sum(name.endswith(".checkpoint.parquet") for name in names(storage)) == COMMITS // 4
    # A pointer that cannot be overwritten would stay behind: other programs list the log without one.
    assert "_last_checkpoint" not in names(storage)
    assert delta_table(create_only_s3.url, s3_options(create_only_s3.server)).version() == COMMITS


def test_under_compliance_without_versions_nothing_goes_and_every_commit_succeeds(locking_s3: LockingS3Server) -> None:
    options = locking_s3.config(lock="1d", lock_mode="compliance")
    storage = open_storage(locking_s3.url, options)
    fill(storage)
    assert Catalog.open(storage).version == COMMITS
    there = names(storage)
    assert sum(name.endswith(".json") for name in there) == COMMITS + 1
    # Written once, and refused from then on: it names the first checkpoint, and what follows that is there.
    assert json.loads(bytes(storage.get(LAST_CHECKPOINT)))["version"] == 4
    assert delta_table(locking_s3.url, locking_s3.config()).version() == COMMITS
    assert len(storage.held_back()) > 0


def test_under_compliance_with_versions_the_log_is_short_and_every_entry_is_still_kept(
    versioned_s3: VersionedS3Server,
) -> None:
    options = versioned_s3.config(lock="1d", lock_mode="compliance")
    storage = open_storage(versioned_s3.url, options)
    fill(storage)
    assert Catalog.open(storage).version == COMMITS
    assert sum(name.endswith(".json") for name in names(storage)) < COMMITS
    assert delta_table(versioned_s3.url, versioned_s3.config()).version() == COMMITS
    bucket = open_bucket(versioned_s3.url, options)
    assert bucket is not None
    kept = {version.path for version in bucket.versions(LOG_FOLDER) if not version.is_marker}
    assert sum(path.endswith(".json") for path in kept) == COMMITS + 1
    assert sum(version.path == LAST_CHECKPOINT for version in bucket.versions(LOG_FOLDER)) == COMMITS // 4


def test_a_cleanup_leaves_what_a_pointer_needs_that_could_not_be_overwritten(
    memory_storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("maxbrod.catalog.log.LOG_RETENTION_MS", 3_600_000)
        fill(memory_storage)
    pointer = json.loads(bytes(memory_storage.get(LAST_CHECKPOINT)))
    memory_storage.replace(LAST_CHECKPOINT, json.dumps({**pointer, "version": 4}).encode())
    delete_expired(memory_storage)
    versions = {int(name.split(".")[0]) for name in names(memory_storage) if not name.startswith("_")}
    assert versions == set(range(4, COMMITS + 1))
    memory_storage.delete([LAST_CHECKPOINT])
    delete_expired(memory_storage)
    versions = {int(name.split(".")[0]) for name in names(memory_storage) if not name.startswith("_")}
    assert versions == {COMMITS}
