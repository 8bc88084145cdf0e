"""Log directories are complete or unchanged, and nothing else in them is ever touched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from maxbrod.cli.main import run
from maxbrod.config import Config
from maxbrod.errors import CorruptDataError, IncompleteError, RefusedError, UnavailableError
from maxbrod.layouts.logdir.target import JOURNAL
from maxbrod.restore.cold.run import ColdRestore, staged_so_far
from maxbrod.restore.cold.task import Placing
from maxbrod.restore.meter import RestoreMeter
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.transfer import task as copy_task
from maxbrod.work.work import Work
from support.cold_restores import Cold, contents, log_of, refused, restore
from support.conversions import convert
from support.log_directories import LOGS, TARGET_ID, put_empty, put_source, put_target
from support.native_logs import data_batch
from support.sparkless import run_here, without_spark

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.restore.cold.task import ColdItem, ColdWritten
    from maxbrod.work.progress import Progress
    from maxbrod.work.reach import Place

HOLDER = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


class KilledError(BaseException):
    """In place of `kill -9`: nothing catches it."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return put_source(tmp_path / "source")


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return put_target(tmp_path / "disk")


def test_partitions_are_written_as_they_were_and_others_stay(source: Path, disk: Path) -> None:
    put_empty(disk / "others-4")
    others = contents(disk / "others-4")
    report = restore(source, disk)
    assert (report["complete"], report["records"], report["remembered"]) == (True, 71, False)
    for name, batches in LOGS.items():
        assert log_of(disk / name) == b"".join(batches)
        assert (disk / name / "partition.metadata").read_text() == f"version: 0\ntopic_id: {TARGET_ID}"
    assert contents(disk / "others-4") == others
    assert sorted(each.name for each in disk.iterdir() if each.is_dir()) == ["orders-0", "orders-1", "others-4"]
    noted = {each.name: each.read_text() for each in disk.glob("*-checkpoint")}
    assert noted == {
        "recovery-point-offset-checkpoint": "0\n3\norders 0 60\norders 1 16\nothers 4 44\n",
        "replication-offset-checkpoint": "0\n3\norders 0 60\norders 1 16\nothers 4 44\n",
        "log-start-offset-checkpoint": "0\n1\nothers 4 44\n",
        "cleaner-offset-checkpoint": "",
    }
    assert not [each.name for each in disk.iterdir() if each.name.startswith((".lock", ".maxbrod"))]


def test_nothing_is_written_twice(source: Path, disk: Path) -> None:
    restore(source, disk)
    assert isinstance(error := refused(source, disk), RefusedError)
    assert "not empty" in error.message


def test_a_running_brokers_directory_is_never_written(source: Path, disk: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(disk / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert isinstance(error := refused(source, disk), RefusedError)
        assert "a broker runs" in error.message
        holder.kill()
    assert restore(source, disk)["complete"]


def add_records(disk: Path) -> None:
    (disk / "orders-1" / f"{0:020}.log").write_bytes(data_batch(0))


def move_on(disk: Path) -> None:
    (disk / "orders-1" / f"{0:020}.log").rename(disk / "orders-1" / f"{8:020}.log")


def lose_a_partition(disk: Path) -> None:
    shutil.rmtree(disk / "orders-1")


def link_a_partition(disk: Path) -> None:
    (disk / "orders-1").rename(disk.parent / "elsewhere")
    (disk / "orders-1").symlink_to(disk.parent / "elsewhere", target_is_directory=True)


def add_a_partition(disk: Path) -> None:
    put_empty(disk / "orders-2")


def mix_topics(disk: Path) -> None:
    shutil.rmtree(disk / "orders-1")
    put_empty(disk / "orders-1", "AAAAAAAAAAAAAAAAAAAAAw")


def garble_a_checkpoint(disk: Path) -> None:
    (disk / "replication-offset-checkpoint").write_text("0\n5\nothers 4 44\n")


def forget_the_broker(disk: Path) -> None:
    (disk / "meta.properties").unlink()


@pytest.mark.parametrize(
    ("change", "told", "exit_code"),
    [
        (add_records, "is not empty", 5),
        (move_on, "an empty log that continues at offset 8", 5),
        (lose_a_partition, "no directory has orders-1", 5),
        (link_a_partition, "no directory has orders-1", 5),
        (add_a_partition, "it has 3 partitions, the archived topic 2", 5),
        (mix_topics, "different topic ids", 5),
        (garble_a_checkpoint, "does not have the 5 rows", 4),
        (forget_the_broker, "not the log directory of a broker", 2),
    ],
)
def test_what_is_not_as_expected_is_never_written_over(
    source: Path, disk: Path, change: Callable[[Path], None], told: str, exit_code: int
) -> None:
    change(disk)
    error = refused(source, disk)
    assert told in error.message
    assert error.exit_code == exit_code


def test_directories_of_several_clusters_are_refused(source: Path, tmp_path: Path) -> None:
    one = put_target(tmp_path / "one", ("orders-0",))
    two = put_target(tmp_path / "two", ("orders-1",), node_id=2, cluster_id="another")
    assert "belong to several clusters" in refused(source, one, two).message


def test_a_replica_that_would_stay_empty_is_refused(source: Path, tmp_path: Path) -> None:
    one, two = put_target(tmp_path / "one"), put_target(tmp_path / "two", ("orders-1",), node_id=2)
    assert "more of these directories than others" in refused(source, one, two).message


def test_each_broker_gets_its_own_partitions(source: Path, tmp_path: Path) -> None:
    one = put_target(tmp_path / "one", ("orders-0",))
    two = put_target(tmp_path / "two", ("orders-1",), node_id=2)
    assert restore(source, one, two)["complete"]
    assert log_of(one / "orders-0") + log_of(two / "orders-1") == b"".join([*LOGS["orders-0"], *LOGS["orders-1"]])


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(source: Path, disk: Path) -> None:
    space = os.statvfs(disk)
    full = os.statvfs_result((*space[:4], 0, *space[5:]))
    with patch.object(os, "statvfs", lambda _: full):
        assert "are free" in refused(source, disk).message


def test_what_a_killed_restore_has_left_is_not_in_the_way_of_the_next(source: Path, disk: Path) -> None:
    folder = disk / "orders-0.6d617862726f64aaaaaaaaaaaaaaaaaa-delete"
    folder.mkdir()
    (folder / "00000000000000000000.log").write_bytes(bytes(1 << 20))
    space = os.statvfs(disk)
    full = os.statvfs_result((*space[:4], 0, *space[5:]))
    with patch.object(os, "statvfs", lambda _: full):
        assert restore(source, disk)["complete"]
    assert not folder.exists()


def test_epochs_above_the_targets_own_are_refused_or_lowered(tmp_path: Path, disk: Path) -> None:
    batches = [data_batch(0, 10, leader_epoch=0), data_batch(10, 10, leader_epoch=4)]
    source = put_source(tmp_path / "epochs", {"orders-0": batches, "orders-1": [data_batch(0)]})
    assert "leader epochs up to 4" in refused(source, disk).message
    with without_spark():
        assert run(["restore", "-a", str(source), "--to-logdir", str(disk), "--leader-epochs", "lower", "-q"]) == 0
    lowered = [data_batch(0, 10, leader_epoch=0), data_batch(10, 10, leader_epoch=0)]
    assert log_of(disk / "orders-0") == b"".join(lowered)
    assert (disk / "orders-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


def test_epochs_that_the_target_has_reached_are_kept(tmp_path: Path) -> None:
    batches = [data_batch(0, 10, leader_epoch=0), data_batch(10, 10, leader_epoch=4)]
    source = put_source(tmp_path / "epochs", {"orders-0": batches})
    disk = put_target(tmp_path / "disk", ("orders-0",), leader_epoch=4)
    assert restore(source, disk)["batches_lowered"] == 0
    assert log_of(disk / "orders-0") == b"".join(batches)
    assert (disk / "orders-0" / "leader-epoch-checkpoint").read_text() == "0\n2\n0 0\n4 10\n"


def test_damage_in_the_archive_leaves_the_directories_as_they_were(source: Path, disk: Path) -> None:
    work = ColdRestore(Work(Config(archive=str(source))), RestoreRequest(), [disk])
    plan = work.plan()
    log = source / "orders-1" / f"{0:020}.log"
    log.write_bytes(log.read_bytes()[:-30] + bytes(30))
    before = contents(disk)
    with without_spark():
        report = work.run(plan)
    assert report.exit_code == 4
    assert [each.failure is not None for each in report.partitions] == [False, True]
    assert contents(disk) == before


def test_nothing_behind_the_end_that_is_asked_for_is_written(source: Path, disk: Path) -> None:
    """As of an earlier run, a slice may reach further."""

    def shorter(session: object, settings: Place, tasks: list[list[ColdItem]], **more: Any) -> list[ColdWritten]:
        return run_here(session, settings, [[replace(item, end=15) for item in task] for task in tasks], **more)

    work = ColdRestore(Work(Config(archive=str(source))), RestoreRequest(), [disk])
    with without_spark(shorter):
        assert work.run(work.plan()).complete
    assert log_of(disk / "orders-0") == LOGS["orders-0"][0]
    assert log_of(disk / "orders-1") == b"".join(LOGS["orders-1"][:4])
    assert sorted(each.name for each in (disk / "orders-0").glob("*.log")) == [f"{0:020}.log", f"{15:020}.log"]


def test_stopped_it_leaves_the_directories_as_they_were(source: Path, disk: Path) -> None:
    stop = threading.Event()
    work = ColdRestore(Work(Config(archive=str(source)), stop=stop), RestoreRequest(), [disk])
    plan, before = work.plan(), contents(disk)

    def stopped(*_: object, **__: object) -> Any:
        stop.set()
        raise UnavailableError("cancelled")

    with without_spark(stopped), pytest.raises(IncompleteError):
        work.run(plan)
    assert contents(disk) == before


def killed_after(steps: int, source: Path, *directories: Path) -> bool:
    """A restore that is killed before its next sync or rename. Returns whether it got that far."""
    left = [steps]

    def counted(act: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any) -> Any:
            if not left[0]:
                raise KilledError
            left[0] -= 1
            return act(*arguments)

        return step

    with (
        patch.object(Path, "rename", counted(Path.rename)),
        patch.object(Path, "replace", counted(Path.replace)),
        patch.object(os, "fsync", counted(os.fsync)),
        patch.object(Placing, "__exit__", lambda *_: None),
        suppress(KilledError),
    ):
        restore(source, *directories)
        return False
    return True


def killed_while_placing(source: Path, disk: Path) -> bool:
    """Staged and in the journal, and not yet in place."""
    with patch("maxbrod.restore.cold.task.finish", side_effect=KilledError), suppress(KilledError):
        restore(source, disk)
    return (disk / JOURNAL).exists()


def is_whole(folder: Path) -> bool:
    return log_of(folder) == b"".join(LOGS[folder.name])


def start_a_broker(disk: Path) -> None:
    """What one does first: it clears away what waits to be deleted, and makes the folders that it lacks."""
    for each in disk.glob("*-delete"):
        shutil.rmtree(each)
    for name in LOGS:
        if not (disk / name).exists():
            put_empty(disk / name)


@pytest.mark.parametrize(
    ("meanwhile", "stride"), [(lambda _: None, 1), (start_a_broker, 3)], ids=["nothing", "a broker"]
)
def test_killed_at_any_instant_each_partition_is_whole_or_as_it_was_and_a_rerun_completes(
    tmp_path: Path, source: Path, meanwhile: Callable[[Path], None], stride: int
) -> None:
    whole = put_target(tmp_path / "whole")
    restore(source, whole)
    wanted = contents(whole)
    for steps in count(0, stride):
        disk = put_target(tmp_path / f"disk-{steps}")
        killed = killed_after(steps, source, disk)
        meanwhile(disk)
        for name in LOGS:
            folder = disk / name
            # Between two renames it does not exist, and a broker creates it again.
            assert not folder.exists() or is_whole(folder) or log_of(folder) == b""
        if contents(disk) == wanted:
            break
        assert killed
        assert restore(source, disk)["complete"]
        assert contents(disk) == wanted
    assert steps >= 30


def test_a_rerun_never_replaces_what_was_produced_meanwhile(source: Path, disk: Path) -> None:
    assert killed_while_placing(source, disk)
    add_records(disk)
    with pytest.raises(RefusedError, match="not empty"):
        restore(source, disk)
    assert log_of(disk / "orders-1") == data_batch(0)


def test_another_command_does_not_go_on_with_what_was_begun(source: Path, disk: Path) -> None:
    assert killed_while_placing(source, disk)
    with pytest.raises(RefusedError, match="another restore"):
        restore(source, disk, partitions=frozenset({0}))


def test_a_journal_never_leads_out_of_the_directory(source: Path, disk: Path) -> None:
    assert killed_while_placing(source, disk)
    document = json.loads((disk / JOURNAL).read_text())
    document["staged"][0]["folder"] = "../elsewhere-delete"
    (disk / JOURNAL).write_text(json.dumps(document))
    with pytest.raises(CorruptDataError, match="journal"):
        restore(source, disk)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_belong_to_whom_the_broker_runs_as(source: Path, disk: Path) -> None:
    for each in (disk, *disk.rglob("*")):
        os.chown(each, 4321, 8765)
    restore(source, disk)
    assert {(each.stat().st_uid, each.stat().st_gid) for each in disk.rglob("*")} == {(4321, 8765)}


def test_names_may_be_as_long_as_kafka_allows(tmp_path: Path) -> None:
    name = f"{'n' * 249}-0"
    source = put_source(tmp_path / "source", {name: [data_batch(0, 5)]})
    disk = put_target(tmp_path / "disk", (name,))
    assert restore(source, disk)["complete"]
    assert log_of(disk / name) == data_batch(0, 5)


def test_a_plan_changes_nothing_and_says_what_it_would_do(
    source: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(disk)
    plan = Cold(source, disk)(capsys, "--dry-run")
    assert contents(disk) == before
    assert [(each["target"], each["offsets"], each["records"]) for each in plan["lines"]] == [("orders", "exact", 71)]


@pytest.mark.parametrize(
    "words",
    [
        ["--bootstrap", "localhost:1"],
        ["--groups", "*"],
        ["--partition-count", "5"],
        ["--rate", "5MB"],
        ["--since", "0"],
        ["--until", "0"],
        ["--range", "orders:0:0..5"],
        ["--offsets", "append"],
        ["--provenance"],
        ["--where", "offset > 5"],
        ["--select", "null as value"],
        ["--with-acls"],
        ["--config-set", "a=b"],
        ["--master", "spark://elsewhere:7077"],
        ["--leader-epochs", "raise"],
    ],
)
def test_what_needs_a_cluster_is_refused(
    source: Path, disk: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    before = contents(disk)
    Cold(source, disk)(capsys, *words, exits=2)
    assert contents(disk) == before


def test_on_spark_it_is_the_same(source: Path, disk: Path, tmp_path: Path, spark: Any) -> None:
    whole = put_target(tmp_path / "whole")
    restore(source, whole)
    steps: list[Progress] = []
    work = ColdRestore(
        Work(Config(archive=str(source)), session=spark, on_progress=steps.append), RestoreRequest(), [disk]
    )
    assert work.run(work.plan()).complete
    assert contents(disk) == contents(whole)
    assert [each.phase for each in steps if each.phase != "restoring"] == [
        *("planning", "starting Spark", "putting in place"),
    ]


def test_progress_is_what_has_been_written_aside(disk: Path) -> None:
    folder = disk / "orders-0.6d617862726f64aaaaaaaaaaaaaaaaaa-delete"
    folder.mkdir()
    (folder / "00000000000000000000.log").write_bytes(bytes(1 << 20))
    steps: list[Progress] = []
    RestoreMeter(partial(staged_so_far, [disk]), steps.append, bytes_total=4 << 20, tasks=3).seen(1, 0)
    assert [(each.bytes_done, each.bytes_total, each.tasks_done) for each in steps] == [(1 << 20, 4 << 20, 1)]


@pytest.fixture
def native(source: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The same logs in an archive of our own, with an object for each batch; and the object of offsets 20 to 30."""
    with patch.object(copy_task, "_PACKED_BYTES", 0):
        assert convert(source, tmp_path / "native", "kafka", codec="source", segment_records=10).exit_code == 0
    (victim,) = (tmp_path / "native").glob(f"*/orders/*/0/{20:020}-*")
    return tmp_path / "native", victim


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-3])])
def test_a_missing_object_is_an_obstacle_and_if_it_is_accepted_the_rest_is_written(
    native: tuple[Path, Path], disk: Path, damage: Callable[[Path], None]
) -> None:
    archive, victim = native
    damage(victim)
    before = contents(disk)
    error = refused(archive, disk)
    assert error.exit_code == 4
    assert "offsets 20 to 30 cannot be read: " in str(error)
    assert victim.name in str(error)
    assert contents(disk) == before
    report = restore(archive, disk, accept_gaps=True)
    assert (report["exit_code"], report["complete"], len(report["accepted_gaps"])) == (0, False, 1)
    assert log_of(disk / "orders-0") == b"".join([*LOGS["orders-0"][:2], *LOGS["orders-0"][3:]])
    assert log_of(disk / "orders-1") == b"".join(LOGS["orders-1"])


def test_damage_that_only_reading_finds_is_left_out_where_that_is_accepted(
    native: tuple[Path, Path], disk: Path
) -> None:
    archive, victim = native
    data = bytearray(victim.read_bytes())
    data[-5] ^= 1
    victim.write_bytes(data)
    report = restore(archive, disk)
    assert report["exit_code"] == 4
    (failure,) = (each["failure"] for each in report["partitions"] if each["failure"])
    assert "offsets 20 to 30 cannot be read" in failure["message"]
    assert victim.name in failure["object_name"]
    report = restore(archive, disk, accept_gaps=True)
    assert (report["exit_code"], report["complete"], report["records"]) == (0, False, 61)
    assert log_of(disk / "orders-0") == b"".join([*LOGS["orders-0"][:2], *LOGS["orders-0"][3:]])


def test_a_directory_that_has_changed_while_somebody_was_asked_is_not_written(source: Path, disk: Path) -> None:
    work = ColdRestore(Work(Config(archive=str(source))), RestoreRequest(), [disk])
    plan = work.plan()
    put_empty(disk / "orders-2")
    with without_spark(), pytest.raises(RefusedError):
        work.run(plan)
