"""How long a JVM may take to exit. A program that connects as a JVM does stands in for one, as Spark takes seconds."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from maxbrod.engine import gateway

if TYPE_CHECKING:
    from pathlib import Path

JVM = """
import os, pathlib, struct, sys, time
place = pathlib.Path(os.environ["_PYSPARK_DRIVER_CONN_INFO_PATH"])
place.with_suffix(".new").write_bytes(struct.pack("!ii", 1, 1) + b"x")
place.with_suffix(".new").rename(place)
sys.stdin.read()
time.sleep(1)
pathlib.Path(sys.argv[1].partition("=")[2]).write_text("classes")
"""


@pytest.mark.parametrize(("option", "written"), [("-XX:ArchiveClassesAtExit=", True), ("-Dx=", False)])
def test_only_a_jvm_that_writes_its_classes_may_take_long_to_exit(
    option: str, *, written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "STOP_SECONDS_MAX", 0.05)
    classes = tmp_path / "classes"
    command = [sys.executable, "-c", JVM, f"{option}{classes}"]
    gateway.launch(command, scratch=tmp_path, log=tmp_path / "log").close()
    assert classes.exists() is written
