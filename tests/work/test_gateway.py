"""How long a JVM may take to exit. A program that connects as a JVM does stands in for one, as Spark takes seconds."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import threading
from contextlib import closing
from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from maxbrod.board import stopped_by
from maxbrod.errors import StoppedError, UnavailableError, UsageError
from maxbrod.java import find_java
from maxbrod.work import gateway, session

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


SILENT = "import sys; sys.stdin.read()"


@pytest.mark.parametrize(("option", "written"), [("-XX:ArchiveClassesAtExit=", True), ("-Dx=", False)])
def test_only_a_jvm_that_writes_its_classes_may_take_long_to_exit(
    option: str, *, written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "STOP_SECONDS_MAX", 0.05)
    classes = tmp_path / "classes"
    command = [sys.executable, "-c", JVM, f"{option}{classes}"]
    gateway.launch(command, scratch=tmp_path, log=tmp_path / "log").close()
    assert classes.exists() is written


def test_a_signal_ends_the_start_of_a_jvm_at_once(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with stopped_by(stop), pytest.raises(StoppedError):
        gateway.launch([sys.executable, "-c", SILENT], scratch=tmp_path, log=tmp_path / "log")


def test_a_signal_kills_a_jvm_that_does_not_answer_yet(tmp_path: Path) -> None:
    stop = threading.Event()
    command = [sys.executable, "-c", JVM, f"-Dx={tmp_path / 'classes'}"]
    with closing(gateway.launch(command, scratch=tmp_path, log=tmp_path / "log")) as jvm, stopped_by(stop):
        with pytest.raises(StoppedError), gateway.ended_by_signal(jvm):
            be_stopped_while_waiting(jvm, stop)
        with pytest.raises(StoppedError), gateway.ended_by_signal(jvm):
            pass  # the answer came, but the JVM may be dead by now


def be_stopped_while_waiting(jvm: gateway.Gateway, stop: threading.Event) -> None:
    """A call that the JVM never answers, and which ends with the JVM."""
    stop.set()
    assert jvm.process.wait() == -signal.SIGKILL
    raise ConnectionError("the JVM has gone away")


def test_settings_are_in_a_private_file_while_the_jvm_starts_and_gone_then(tmp_path: Path) -> None:
    conf = {"spark.x": "hunter2", "spark.driver.extraJavaOptions": "-Da='b c' @file"}
    with gateway.settings_file(conf, tmp_path) as arguments:
        assert "hunter2" not in " ".join(arguments)
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
        assert (tmp_path / "options").read_text() == "'-Da=b c'"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [*combinations(gateway._JAVA_OPTIONS, 1), gateway._JAVA_OPTIONS])
def test_options_for_the_program_java_stay_on_its_command_line_and_no_other_setting_is_touched(
    given: tuple[str, ...], tmp_path: Path
) -> None:
    words = "--add-opens java.base/java.lang=ALL-UNNAMED -Xss2m -Da=hunter2"
    with gateway.settings_file(dict.fromkeys(given, words), tmp_path):
        text = (tmp_path / "settings").read_bytes().decode("unicode_escape")
        settings = dict(line.split("=", 1) for line in text.splitlines())
        shown = [option for name in gateway._JAVA_OPTIONS for option in shlex.split(settings.get(name, ""))]
        ran = subprocess.run([find_java().executable, *shown, "-version"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "hunter2" not in text
    assert set(settings) == set(given)


@pytest.mark.parametrize("options", ["-Da='hunter2", "-Da=hunter2 -Xmx1g"])
def test_options_that_spark_would_refuse_are_refused_without_their_values(options: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        gateway.settings_file({"spark.driver.extraJavaOptions": options}, tmp_path).__enter__()
    assert caught.value.object_name == "spark.driver.extraJavaOptions"
    assert "hunter2" not in str(caught.value)


def test_the_log_of_the_jvm_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    gateway.launch([sys.executable, "-c", JVM, f"-Dx={tmp_path / 'x'}"], scratch=tmp_path, log=tmp_path / "log").close()
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_cluster_gets_the_settings_in_a_file_that_leaves_those_of_its_operator_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/arguments\ncp "$3" {tmp_path}/settings\nexit 3\n')
    submit.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    conf = {"spark.master": "spark://nowhere:7077", "spark.hadoop.fs.azure.account.key.x": "hunter2"}
    with pytest.raises(UnavailableError, match="exited with code 3"), session._open_cluster(conf, frozenset(conf)):
        pass
    first, second, *_, last = (tmp_path / "arguments").read_text().splitlines()
    assert (first, second, last) == ("--load-spark-defaults", "--properties-file", "pyspark-shell")
    assert "hunter2" not in (tmp_path / "arguments").read_text()
    assert "hunter2" in (tmp_path / "settings").read_bytes().decode("unicode_escape")
