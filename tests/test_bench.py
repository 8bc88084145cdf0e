"""Benchmarks assert nothing, but they must run, and say what they measured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from maxbrod.cli.main import run

if TYPE_CHECKING:
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


def test_the_start_benchmark_reports_every_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "start", "--rounds", "1"]) == 0
    shown = capsys.readouterr().out

    assert [line.split("  ")[0] for line in shown.splitlines()[3:]] == [
        "PySpark alone",
        "maxbrod, no class archive",
        "maxbrod",
    ]
