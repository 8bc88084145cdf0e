"""The storage fails in every way it can under a backup: the archive is whole, or the run says so and is repeated."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from deltalake.exceptions import TableNotFoundError

from maxbrod.backup.task import _nothing_written
from maxbrod.errors import EXIT_CORRUPT, EXIT_FAILED, EXIT_REFUSED, RefusedError, StorageFullError
from maxbrod.sandbox.proxy.faults import (
    AnswerError,
    CutAnswer,
    CutRequest,
    FlipAnswerBit,
    HttpMatch,
    LoseAnswer,
    Stall,
    TruncateAnswer,
)
from maxbrod.sandbox.topics import create_topic
from support.archive_oracle import read_archive
from support.backup_plans import item
from support.backup_processes import Driver, driver
from support.backups import back_up, back_up_while, config_of, kinds
from support.ledger import Ledger
from support.storages import s3_section

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.sandbox.proxy.faults import ProxyFault
    from maxbrod.sandbox.proxy.server import FaultProxy
    from maxbrod.sandbox.s3 import LyingS3Server, S3Server

DATA = HttpMatch("PUT", r"archive/(packs|segments)/")
SNAPSHOT = HttpMatch("PUT", r"/snapshots/")
ROWS = HttpMatch("PUT", r"/catalog/segments/[^_].*parquet")
COMMIT = HttpMatch("PUT", r"_delta_log/0*[1-9]\d*\.json")
FIRST_COMMIT = HttpMatch("PUT", r"_delta_log/0{20}\.json")
LOG = HttpMatch("GET", r"_delta_log")
PUT = HttpMatch("PUT")


@pytest.fixture
def ledger(cluster: Cluster, topic: str) -> Ledger:
    create_topic(cluster, topic, partitions=2, config={"retention.ms": "-1"})
    written = Ledger()
    for partition in range(2):
        written.write(cluster, topic, 150, partition=partition)
    return written


@pytest.fixture
def program(cluster: Cluster, topic: str, ledger: Ledger, s3: S3Server, s3_proxy: FaultProxy) -> Iterator[Driver]:
    """Backs up through the proxy, patiently, for faults that pass."""
    storage = s3_section(s3, s3={"endpoint": s3_proxy.endpoint}, request_timeout_s=2, deadline_s=60)
    with driver(cluster, topic, storage) as started:
        yield started


@pytest.fixture
def hasty_program(cluster: Cluster, topic: str, ledger: Ledger, s3: S3Server, s3_proxy: FaultProxy) -> Iterator[Driver]:
    """Backs up through the proxy, soon out of patience, for faults that last."""
    storage = s3_section(s3, s3={"endpoint": s3_proxy.endpoint}, request_timeout_s=2, deadline_s=5)
    with driver(cluster, topic, storage) as started:
        yield started


def stored(s3: S3Server) -> str:
    """The archive around the proxy, and around S3."""
    return str(s3.object_path("archive"))


@pytest.mark.parametrize(
    "fault",
    [
        AnswerError(on=PUT, times=2, status=500, code="InternalError"),
        AnswerError(on=DATA, times=2),
        AnswerError(on=COMMIT, times=1, carried_out=True),
        AnswerError(on=LOG, times=4),
        TruncateAnswer(on=LOG, times=1, keep_bytes=40),
        LoseAnswer(on=FIRST_COMMIT, times=1),
        Stall(on=DATA, times=1),
        Stall(on=SNAPSHOT, times=1, carried_out=True),
        LoseAnswer(on=DATA, times=1),
        LoseAnswer(on=SNAPSHOT, times=2),
        LoseAnswer(on=ROWS, times=1),
        LoseAnswer(on=COMMIT, times=1),
        CutRequest(on=DATA, times=2, after_bytes=900, reset=True),
        CutAnswer(on=PUT, after=3, times=2, after_bytes=5),
    ],
    ids=lambda fault: f"{type(fault).__name__}-{fault.on.path}",
)
def test_a_fault_of_the_store_that_passes_changes_nothing(
    program: Driver, ledger: Ledger, s3: S3Server, s3_proxy: FaultProxy, fault: ProxyFault
) -> None:
    s3_proxy.add(fault)
    said = program.run(f"{s3.url}/archive")
    assert s3_proxy.fired[fault] >= 1
    assert said["exit_code"] == 0, said
    held = read_archive(stored(s3))
    held.assert_equals(ledger)
    assert len(held.runs) == 1


@pytest.mark.parametrize("on", [DATA, SNAPSHOT, ROWS, COMMIT], ids=lambda on: on.path)
def test_a_store_that_stays_broken_fails_the_run_and_the_next_one_completes(
    hasty_program: Driver, ledger: Ledger, s3: S3Server, s3_proxy: FaultProxy, on: HttpMatch
) -> None:
    with s3_proxy.fault(AnswerError(on=on, status=503)) as fault:
        said = hasty_program.run(f"{s3.url}/archive")
        assert s3_proxy.fired[fault] >= 1
    assert said["exit_code"] == EXIT_FAILED, said
    held = read_archive(stored(s3))
    assert not held.rows
    assert hasty_program.run(f"{s3.url}/archive")["exit_code"] == 0
    read_archive(stored(s3)).assert_equals(ledger)


@pytest.mark.parametrize(
    "fault",
    [
        FlipAnswerBit(on=HttpMatch("GET", r"/snapshots/"), at=30, bit=2),
        TruncateAnswer(on=HttpMatch("GET", r"/snapshots/"), keep_bytes=40, consistent=True),
        FlipAnswerBit(on=HttpMatch("GET", r"segments/[^_].*parquet"), at=20, bit=3),
        TruncateAnswer(on=HttpMatch("GET", r"segments/[^_].*parquet"), keep_bytes=100, consistent=True),
        TruncateAnswer(on=HttpMatch("GET", r"_delta_log/0*1\.json"), keep_bytes=100, consistent=True),
    ],
    ids=lambda fault: f"{type(fault).__name__}-{fault.on.path}",
)
def test_a_damaged_read_of_what_was_archived_is_never_built_upon(
    cluster: Cluster,
    topic: str,
    hasty_program: Driver,
    ledger: Ledger,
    s3: S3Server,
    s3_proxy: FaultProxy,
    fault: ProxyFault,
) -> None:
    assert hasty_program.run(f"{s3.url}/archive")["exit_code"] == 0
    ledger.write(cluster, topic, 30)
    before = read_archive(stored(s3))
    with s3_proxy.fault(fault):
        said = hasty_program.run(f"{s3.url}/archive")
        assert s3_proxy.fired[fault] >= 1
    assert said["exit_code"] in {EXIT_FAILED, EXIT_CORRUPT}, said
    after = read_archive(stored(s3))
    assert (after.version, after.records) == (before.version, before.records)
    assert hasty_program.run(f"{s3.url}/archive")["exit_code"] == 0
    read_archive(stored(s3)).assert_equals(ledger)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_fails_the_run_leaves_nothing_half_and_the_next_one_completes(
    cluster: Cluster, topic: str, disk: Path, ledger: Ledger
) -> None:
    config = config_of(cluster, disk / "archive", topic)
    first = back_up(config)
    assert first.exit_code == 0
    held = read_archive(str(disk / "archive"))
    held.assert_equals(ledger)
    ledger.write(cluster, topic, 800, value_bytes=1500)
    report = back_up(config)
    assert report.exit_code == EXIT_FAILED
    assert "storage" in kinds(report)
    assert (report.recovery_point_ms, report.waiting) == (first.started_at_ms, 800)
    again = read_archive(str(disk / "archive"))
    assert again.records == held.records
    # Whatever an object is called by is whole.
    named = {row["path"] for rows in again.rows.values() for row in rows if row["path"]}
    assert {str(path.relative_to(disk / "archive")) for path in (disk / "archive" / "packs").iterdir()} == named
    subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
    assert back_up(config).exit_code == 0
    read_archive(str(disk / "archive")).assert_equals(ledger)


def test_of_two_backups_into_one_archive_one_is_refused_and_nothing_is_mixed(
    cluster: Cluster, topic: str, tmp_path: Path, ledger: Ledger
) -> None:
    config = config_of(cluster, tmp_path / "archive", topic)
    winners: list[Any] = []
    with pytest.raises(RefusedError, match="another writer") as caught:
        back_up_while(config, lambda: winners.append(back_up(config)))
    assert caught.value.exit_code == EXIT_REFUSED
    assert winners[0].exit_code == 0
    held = read_archive(str(tmp_path / "archive"))
    held.assert_equals(ledger)
    assert {run["run_id"] for run in held.runs} == {winners[0].run_id}
    assert {row["run_id"] for rows in held.rows.values() for row in rows} == {winners[0].run_id}
    ledger.write(cluster, topic, 20)
    assert back_up(config).exit_code == 0
    read_archive(str(tmp_path / "archive")).assert_equals(ledger)


def test_a_store_that_ignores_conditional_puts_is_refused_before_anything_is_written(
    cluster: Cluster, topic: str, ledger: Ledger, lying_s3: LyingS3Server
) -> None:
    with driver(cluster, topic, s3_section(lying_s3)) as program:
        said = program.run(f"{lying_s3.url}/archive")
    assert (said["error"], said["exit_code"]) == ("RefusedError", EXIT_REFUSED)
    assert "--single-writer" in said["hint"]
    with pytest.raises(TableNotFoundError):
        read_archive(str(lying_s3.object_path("archive")))


def test_the_path_of_one_partition_is_not_told_of_the_others() -> None:
    """Nothing of a task is archived if one of its objects cannot be written."""
    items = [replace(item(0, 5), partition=number) for number in range(2)]
    full = StorageFullError("the disk is full", object_name="/archive/segments/orders/id/0/00.log")
    told = [each.failure.message for each in _nothing_written(items, full) if each.failure is not None]
    assert told == ["the disk is full"] * 2
    # A pack is everybody's.
    full.object_name = "/archive/packs/run-1.log"
    told = [each.failure.message for each in _nothing_written(items, full) if each.failure is not None]
    assert told == ["the disk is full (in /archive/packs/run-1.log)"] * 2
