"""Benchmarks assert nothing, but they must run, and say what they measured."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from maxbrod.bench.planning import SEGMENT_OFFSETS, plan, write_catalog
from maxbrod.bench.race import time_lap
from maxbrod.cli.main import run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


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


def test_the_start_benchmark_reports_every_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "start", "--rounds", "1"]) == 0
    shown = capsys.readouterr().out

    assert [line.split("  ")[0] for line in shown.splitlines()[3:]] == [
        "PySpark alone",
        "maxbrod, no class archive",
        "maxbrod",
    ]


def test_the_backup_benchmark_reports_its_races(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "backup", "--scale", "0.002", "--rounds", "1", "--json"]
    assert run([*arguments, "--only", "a", "--only", "hot"]) == 0
    measured = {each["name"]: each for each in json.loads(capsys.readouterr().out)}

    assert {name for name, each in measured.items() if each["wanted"] is not None} == {
        "A into memory over kcat",
        "A to disk, time over cat and sync",
        "one partition, two tasks over one",
        "peak memory of a Python worker",
    }
    assert all(each["value"] > 0 for each in measured.values())


def test_the_planning_benchmark_plans_every_partition(tmp_path: Path) -> None:
    write_catalog(str(tmp_path), partitions=300, segments=900)
    waves = plan(str(tmp_path), 300)

    assert sum(len(task.items) for wave in waves for task in wave) == 300
    assert {item.start for wave in waves for task in wave for item in task.items} == {3 * SEGMENT_OFFSETS}


def test_processor_time_of_children_counts_once() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    lap = time_lap(lambda: subprocess.run([sys.executable, "-c", burn], check=True))

    assert 0.3 <= lap.cpu_seconds < 3
