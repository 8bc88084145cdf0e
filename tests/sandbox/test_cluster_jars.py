"""Kafka is fetched once, completely or not at all, and a machine without a network is told what to do."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from maxbrod.errors import EnvironmentMissingError, UsageError
from maxbrod.java import find_java
from maxbrod.private_files import cache_dir, filled
from maxbrod.sandbox import jars

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.full

# A repository of nothing: what a machine without a network sees, at once and anywhere.
NOWHERE = """
<ivysettings>
  <settings defaultResolver="nowhere"/>
  <resolvers><filesystem name="nowhere" m2compatible="true">
    <artifact pattern="{folder}/[organisation]/[module]/[revision]/[artifact]-[revision].[ext]"/>
  </filesystem></resolvers>
</ivysettings>
"""

FILLER = """
import sys, time
from maxbrod.private_files import filled
def fill(folder):
    with open(sys.argv[1], "a") as log:
        log.write("filled\\n")
    time.sleep(0.5)
    (folder / "done").touch()
assert (filled("thing", fill) / "done").exists()
"""


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MAXBROD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_without_a_repository_the_error_says_what_to_do(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "settings.xml"
    settings.write_text(NOWHERE.format(folder=tmp_path))
    monkeypatch.setenv("MAXBROD_IVY_SETTINGS", str(settings))
    find_java()  # Remembered, as it is not to be found on the PATH of this test.
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentMissingError, match=r"ivy: .*not found.*no mvn on PATH") as raised:
        filled("kafka", lambda home: jars._build(home, jars.KAFKA_VERSION))
    assert "MAXBROD_IVY_SETTINGS" in (raised.value.hint or "")
    # Nothing half made is left for the next start to trip over.
    assert [path.name for path in own_cache.iterdir()] == ["kafka.lock"]


@pytest.mark.parametrize("version", ["4", "4.3.1/../..", "3.2.3"])
def test_a_version_that_cannot_run_is_refused_before_anything_is_fetched(own_cache: Path, version: str) -> None:
    with pytest.raises(UsageError):
        jars.kafka_release(version)
    assert not own_cache.exists()


def test_two_processes_fill_the_cache_once(own_cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", FILLER, str(log)]
    for process in [subprocess.Popen(command) for _ in range(2)]:
        assert process.wait(30) == 0
    assert log.read_text() == "filled\n"


def test_a_failed_fill_leaves_nothing(own_cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("no space")

    with pytest.raises(RuntimeError, match="no space"):
        filled("thing", fail)
    assert not (own_cache / "thing").exists()
    filled("thing", lambda folder: (folder / "whole").touch())
    assert [path.name for path in (own_cache / "thing").iterdir()] == ["whole"]


def test_the_cache_is_where_the_platform_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAXBROD_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "maxbrod"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_dir() == tmp_path / "home" / ".cache" / "maxbrod"
