"""Whatever the number of runs, the table's folder stays small and a commit cheap, and no reader loses its files."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from maxbrod.catalog.commits import FAN_IN
from maxbrod.catalog.files import DataFiles
from maxbrod.catalog.log import entry_name, log_path
from maxbrod.catalog.rows import decode_rows
from maxbrod.catalog.schema import TABLE_PROPERTIES
from maxbrod.catalog.validity import RowFault, find_fault
from maxbrod.errors import RefusedError, UnavailableError
from maxbrod.model import now_ms
from support.catalog_rows import run, segment

if TYPE_CHECKING:
    from support.catalog_places import Archive

pytestmark = pytest.mark.full

DAY_S = 24 * 3600
CHECKPOINT_EVERY = int(TABLE_PROPERTIES["delta.checkpointInterval"])
RUNS = 10 * FAN_IN
OTHER_ACTIONS = 3  # protocol, metadata, transaction


def parquet_files(archive: Archive) -> set[Path]:
    return set(Path(archive.url).glob("catalog/segments/*.parquet"))


def test_dozens_of_runs_leave_a_few_data_files_that_hold_every_row(folder: Archive) -> None:
    catalog = folder.create()
    for base in range(RUNS):
        catalog.commit([segment(base, base + 1), run(f"run-{base:03}", finished_at=base)])
        assert len(catalog._files().active) < FAN_IN
    assert decode_rows(folder.open().rows()) == [segment(base, base + 1) for base in range(RUNS)]
    assert [each.run_id for each in folder.open().runs()] == [f"run-{base:03}" for base in range(RUNS)]


def test_a_follower_folds_what_it_has_written_without_reading_it_again(
    folder: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = folder.create()
    read: list[str] = []
    get = catalog._storage.get

    def counted(path: str, **more: Any) -> Any:
        read.append(path)
        return get(path, **more)

    monkeypatch.setattr(catalog._storage, "get", counted)
    for base in range(4 * FAN_IN):
        catalog.commit([segment(base, base + 1)])
    assert [path for path in read if path.endswith(".zstd.parquet")] == []
    assert len(catalog._files().active) < FAN_IN
    # It keeps the rows of the files in use, and of no others.
    assert catalog._written.keys() == {file.path for file in catalog._files().active}
    assert decode_rows(folder.open().rows()) == [segment(base, base + 1) for base in range(4 * FAN_IN)]


def test_a_fold_of_files_that_another_process_wrote_checks_their_rows_once(
    folder: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = folder.create()
    for base in range(FAN_IN - 1):
        catalog.commit([segment(base, base + 1)])
    checked: list[int] = []

    def counted(rows: pa.Table, **more: Any) -> RowFault | None:
        checked.append(rows.num_rows)
        return find_fault(rows, **more)

    monkeypatch.setattr("maxbrod.catalog.files.find_fault", counted)
    other = folder.open()
    other.commit([segment(FAN_IN - 1, FAN_IN)])
    assert len(other._files().active) == 1
    assert checked == [FAN_IN - 1]


def test_files_that_went_out_of_use_a_day_ago_are_swept_and_younger_ones_stay(
    folder: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = folder.create()
    with monkeypatch.context() as then:
        then.setattr("maxbrod.catalog.commits.now_ms", lambda: now_ms() - 2 * DAY_S * 1000)
        for base in range(20):
            catalog.commit([segment(base, base + 1)])
    reader = folder.open()
    orphans = [Path(folder.url) / "catalog/segments" / f"part-{name}.parquet" for name in ("old", "young")]
    for orphan in orphans:
        orphan.write_bytes(b"what a crash left")
    old = time.time() - 2 * DAY_S
    for path in {*parquet_files(folder)} - {orphans[1]}:
        os.utime(path, (old, old))
    for base in range(20, 63):
        catalog.commit([segment(base, base + 1)])
    assert orphans[0].exists()
    catalog.commit([segment(63, 64)])
    assert catalog.version == 64
    assert not orphans[0].exists()
    assert orphans[1].exists()
    # Old files, out of use since a moment ago: whoever opened the catalog before that reads on.
    assert reader.rows().num_rows == 20
    assert catalog.rows().num_rows == 64


def test_a_catalog_outlives_the_cleanup_of_deltas_own_log(folder: Archive) -> None:
    catalog = folder.create()
    stale = folder.open()
    old = time.time() - 2 * DAY_S
    for base in range(2 * CHECKPOINT_EVERY + 1):
        catalog.commit([segment(base, base + 1), run(f"run-{base}")])
        for path in Path(folder.url).glob("catalog/segments/_delta_log/*"):
            os.utime(path, (old, old))
    log = {path.name for path in Path(folder.url).glob("catalog/segments/_delta_log/*.json")}
    assert "00000000000000000001.json" not in log
    assert len(folder.open().runs()) == 2 * CHECKPOINT_EVERY + 1
    # The name of the entry after the one that `stale` read is free again.
    with pytest.raises(RefusedError, match="another writer"):
        stale.commit([segment(0, 1)])
    assert folder.open().rows().num_rows == 2 * CHECKPOINT_EVERY + 1


HOURS = 2 * CHECKPOINT_EVERY + 1  # the log is cleaned up at every second checkpoint


def commit_for_hours(archive: Archive) -> None:
    """Another writer, until the entries from which a suspended one went out have been cleaned up."""
    catalog = archive.open()
    old = time.time() - 2 * DAY_S
    for base in range(1000, 1000 + HOURS):
        catalog.commit([segment(base, base + 1)])
        for path in Path(archive.url).glob("catalog/segments/_delta_log/*"):
            os.utime(path, (old, old))


@pytest.mark.parametrize("before", [True, False], ids=["before its put", "after its put"])
def test_a_writer_that_was_suspended_for_hours_never_takes_a_lost_commit_for_a_durable_one(
    folder: Archive, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    suspended = folder.create()
    name = log_path(entry_name(1))
    put = suspended._storage.put

    def later(path: str, data: bytes) -> None:
        if path == name and before:
            commit_for_hours(folder)
        put(path, data)
        if path == name and not before:
            commit_for_hours(folder)

    with monkeypatch.context() as then:
        then.setattr(suspended._storage, "put", later)
        with pytest.raises(UnavailableError, match="unknown whether its own commit of version 1 took effect"):
            suspended.commit([segment(0, 1)])
    # Before its put, the name was free again, and nobody reads what stands there now.
    assert (0 in folder.open().rows()["base_offset"].to_pylist()) is not before
    assert folder.open().rows().num_rows == HOURS + (not before)


def test_paths_that_were_named_lately_are_remembered_until_their_files_go(archive: Archive) -> None:
    catalog = archive.create()
    catalog.commit([segment(0, 10, path="old"), run("run-1", snapshot="snapshots/1")])
    catalog.commit([segment(0, 10, path="new")], replaced=[segment(0, 10, path="old")])
    catalog.commit([run("run-2")])
    assert {"old", "snapshots/1"} <= archive.open().recent_paths(0)
    assert archive.open().recent_paths(2**62) == set()
    files = catalog._files()
    files.delete(catalog._table.log.removed_since(0, replaced=True))
    assert "old" not in archive.open().recent_paths(0)


def checkpoints(archive: Archive) -> list[Path]:
    return sorted(Path(archive.url).glob("catalog/segments/_delta_log/*.checkpoint.parquet"))


def removed(checkpoint: Path) -> list[str]:
    return [each["path"] for each in pq.read_table(checkpoint)["remove"].to_pylist() if each]


def test_the_log_grows_with_the_commits_and_not_with_their_square(folder: Archive) -> None:
    catalog = folder.create()
    for base in range(3 * CHECKPOINT_EVERY):
        catalog.commit([segment(base, base + 1)])
    assert len(checkpoints(folder)) == 3
    for each in checkpoints(folder):
        actions = pq.read_table(each)
        assert removed(each) == []
        assert actions.num_rows <= OTHER_ACTIONS + FAN_IN
    # delta-rs reads it, and so does this release.
    assert folder.table().version() == catalog.version
    assert len(folder.table().file_uris()) == len(folder.open()._files().active)
    assert folder.open().rows().num_rows == 3 * CHECKPOINT_EVERY


def test_checkpoints_remember_replaced_rows_for_a_day(folder: Archive) -> None:
    catalog = folder.create()
    catalog.commit([segment(0, 10, path="old")])
    catalog.commit([segment(0, 10, path="new")], replaced=[segment(0, 10, path="old")])
    for base in range(10, 10 + 2 * CHECKPOINT_EVERY):
        catalog.commit([segment(base, base + 1)])
    assert len(removed(checkpoints(folder)[-1])) == 1
    # Commands that planned before the replacement may still read the object: `gc` leaves it alone.
    assert "old" in folder.open().recent_paths(0)


def test_a_file_that_was_in_use_for_long_is_remembered_when_it_is_folded(
    folder: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = folder.create()
    with monkeypatch.context() as then:
        then.setattr("maxbrod.catalog.commits.now_ms", lambda: now_ms() - 2 * 3600 * 1000)
        catalog.commit([segment(0, 1)])
    (old,) = catalog._files().active
    for base in range(1, CHECKPOINT_EVERY):
        catalog.commit([segment(base, base + 1)])
    assert old not in catalog._files().active
    assert removed(checkpoints(folder)[-1]) == [old.path]


def test_a_follower_lists_the_catalogs_folder_once_an_hour(folder: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = folder.create()
    listings: list[int] = []
    now = [now_ms()]

    def unused(_: DataFiles) -> list[str]:
        listings.append(catalog.version)
        return []

    monkeypatch.setattr("maxbrod.catalog.catalog.now_ms", lambda: now[0])
    monkeypatch.setattr(DataFiles, "unused", unused)
    monkeypatch.setattr("maxbrod.catalog.catalog._SWEEP_EVERY", 8)
    for base in range(24):
        now[0] += 4 * 60_000
        catalog.commit([segment(base, base + 1)])
    assert listings == [8, 24]  # at 16 it was half an hour since the last one
