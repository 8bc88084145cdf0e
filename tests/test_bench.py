"""Benchmarks assert nothing, but they must run, and say what they measured."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from maxbrod.cli.main import run
from maxbrod.config import KafkaConfig
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.sandbox.topics import delete_topic
from maxbrod_bench import backup, follow, restore, table
from maxbrod_bench.erasure import measure_erasure
from maxbrod_bench.planning import SEGMENT_OFFSETS, plan, plan_slices, write_catalog
from maxbrod_bench.race import BackupGroup, TableGroup, race_laps, time_lap
from maxbrod_bench.stage import Stage
from maxbrod_bench.table import LogDirectory, race_logdir
from support.native_logs import data_batch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.work.session import Session

pytestmark = pytest.mark.full


def test_the_benchmark_of_protection_says_how_fast_a_copy_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "protect", "--only", "copy", "--scale", "0.001", "--rounds", "1", "--json"]) == 0
    (figure,) = json.loads(capsys.readouterr().out)
    assert (figure["name"], figure["wanted"]) == ("a copy, speed over cat and sync", 0.8)
    assert figure["value"] > 0


def test_the_codec_benchmark_reports_every_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "codec", "--records", "2000", "--rounds", "1", "--json"]) == 0
    measured = {each["name"]: each for each in json.loads(capsys.readouterr().out)}

    assert set(measured) == {
        "decode lz4",
        "decode uncompressed",
        "kafka-python, the same lz4 bytes",
        "decode lz4 over kafka-python",
        "encode lz4",
        "encode uncompressed",
        "patch",
        "walk and check CRC",
        "memory over decompressed",
        "first decode of a process",
    }
    assert all(each["rate"] >= 0 for each in measured.values())


def test_the_layouts_benchmark_measures_writing_and_reading(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "layouts", "--records", "2000", "--rounds", "1", "--json"]
    assert run([*arguments, "--only", "kbak", "--only", "kbs", "--codec", "lz4"]) == 0
    measured = {each["name"]: each for each in json.loads(capsys.readouterr().out)}

    assert set(measured) == {"kbak write", "kbak read", "kbs write", "kbs read"}
    assert all(each["rate"] > 0 and each["wanted"] == 8e5 for each in measured.values())


def test_the_layouts_benchmark_refuses_a_layout_that_there_is_not() -> None:
    assert run(["bench", "layouts", "--only", "tar"]) == 2


def test_the_start_benchmark_reports_every_way(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The full compiler makes PySpark's own start twice as long, and no figure matters here.
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    measure, seconds = backup._seconds, dict[str, float]()

    def once(program: str, environment: Mapping[str, str]) -> float:
        """Two ways are the same program, once without its archive of classes, which takes longer to start."""
        if program not in seconds:
            sooner = {name: value for name, value in environment.items() if name != "MAXBROD_CACHE"}
            seconds[program] = measure(program, sooner)
        return seconds[program]

    monkeypatch.setattr(backup, "_seconds", once)
    assert run(["bench", "start", "--rounds", "1"]) == 0
    shown = capsys.readouterr().out

    assert [line.split("  ")[0] for line in shown.splitlines()[3:]] == [
        "PySpark alone",
        "maxbrod, no class archive",
        "maxbrod",
    ]


def test_the_backup_benchmark_reports_its_races(cluster: Cluster, spark: Session, tmp_path: Path) -> None:
    stage = Stage(cluster=cluster, session=spark, disk=tmp_path, scale=0.002, warm_up=False)
    found = backup.measure_on(stage, (BackupGroup.A, BackupGroup.HOT), lambda _: None)
    measured = {each.name: each for each in found}

    assert {name for name, each in measured.items() if each.wanted is not None} == {
        "A into memory over kcat",
        "A to disk, time over cat and sync",
        "one partition, two tasks over one",
        "peak memory of a Python worker",
    }
    assert all(each.value > 0 for each in measured.values())
    for topic in ("bench-a", "bench-hot"):
        delete_topic(cluster, topic)


def test_the_planning_benchmark_plans_every_partition(tmp_path: Path) -> None:
    write_catalog(str(tmp_path), partitions=300, segments=900)
    waves = plan(str(tmp_path), 300)

    assert sum(len(task.items) for wave in waves for task in wave) == 300
    assert {item.start for wave in waves for task in wave for item in task.items} == {3 * SEGMENT_OFFSETS}


def test_the_restore_benchmark_races_and_reports(cluster: Cluster, spark: Session, tmp_path: Path) -> None:
    stage = Stage(cluster=cluster, session=spark, disk=tmp_path, scale=0.002, warm_up=False)
    measured = {each.name: each for each in restore._race_b(stage)}

    assert {name for name, each in measured.items() if each.wanted is not None} == {
        "B over ProducerPerformance",
        "B over ProducerPerformance, tuned",
        "B, time over a bare loop",
    }
    assert all(each.value > 0 for each in measured.values())
    with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
        topics = set(client.metadata().topics)
    assert not [name for name in topics if name.startswith(("lap-", "bench-"))], "nothing is left"


def test_the_restore_benchmark_reports_what_exact_offsets_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "restore", "--scale", "0.001", "--only", "offsets", "--json"]) == 0
    measured = {each["name"]: each for each in json.loads(capsys.readouterr().out)}

    assert set(measured) == {
        "map of 100 M contiguous records",
        "fill of 10 M leading offsets",
        "holes closed by markers",
        "single holes between single records",
    }
    assert measured["map of 100 M contiguous records"]["reached"]


def test_the_table_benchmark_races_and_reports(cluster: Cluster, spark: Session, tmp_path: Path) -> None:
    stage = Stage(cluster=cluster, session=spark, disk=tmp_path, scale=0.001, warm_up=False)
    with patch.object(table, "_POINT_RECORDS", 90):
        chosen = frozenset({TableGroup.SCAN, TableGroup.COUNT, TableGroup.POINT})
        measured = {each.name: each for each in table.measure_on(stage, chosen, lambda _: None)}

    assert {name for name, each in measured.items() if each.wanted is not None} == {
        "scan of B over the live topic, per record",
        "scan of B, time over zstd Parquet",
        "objects that a query for one offset reads",
        "objects that a query for one millisecond reads",
    }
    assert all(each.value > 0 for each in measured.values())
    for topic in ("table-b", "table-points"):
        delete_topic(cluster, topic)


def test_the_benchmark_of_log_directories_backs_every_byte_up(spark: Session, tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / "logs" / f"orders-{number}").mkdir(parents=True)
        log = b"".join(data_batch(base, 10) for base in range(0, 200, 10))
        (tmp_path / "logs" / f"orders-{number}" / f"{0:020}.log").write_bytes(log)
    (tmp_path / "logs" / "replication-offset-checkpoint").write_text("0\n2\norders 0 200\norders 1 200\n")
    source = LogDirectory(path=tmp_path / "logs", topic="orders")
    cold = partial(race_laps, warm_up=False)
    with patch.object(table, "race_laps", cold):
        measured = race_logdir(spark, source, tmp_path, rounds=1)

    assert [each.name for each in measured if each.wanted is None] == [
        "log directory over reading the page cache",
        "log directory over copying",
    ]
    assert all(each.value > 0 for each in measured)


def test_the_planning_benchmark_of_restores_finds_every_slice(tmp_path: Path) -> None:
    write_catalog(str(tmp_path), partitions=300, segments=900)

    assert plan_slices(str(tmp_path)) == 900


def test_processor_time_of_children_counts_once() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    lap = time_lap(lambda: subprocess.run([sys.executable, "-c", burn], check=True))

    # Ticks of a hundredth of a second, rounded.
    assert 0.28 <= lap.cpu_seconds < 3


def test_the_follow_benchmark_measures_intervals_and_commits(cluster: Cluster, spark: Session, tmp_path: Path) -> None:
    stage = Stage(cluster=cluster, session=spark, disk=tmp_path, rounds=2)
    assert all("new objects" in each.note and each.value > 0 for each in follow._intervals(stage, 2))
    figures = list(follow.measure_commits(100))
    assert [each.unit for each in figures] == ["seconds", "bytes"]
    assert all(each.value > 0 for each in figures)


def test_the_erasure_benchmark_rewrites_only_the_segments_that_hold_the_key() -> None:
    rewritten, took = measure_erasure(scale=0.02, rounds=1)
    assert (rewritten.value, rewritten.wanted, took.unit) == (10, 10, "seconds")
