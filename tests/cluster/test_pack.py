from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from maxbrod.cli.main import run
from maxbrod.cluster import cli as packing
from maxbrod.cluster.cli import pack
from maxbrod.config import load_config
from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from maxbrod.work.progress import Progress


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only maxbrod and one package: all of them are hundreds of megabytes."""
    closure = packing._closure
    monkeypatch.setattr(
        packing, "_closure", lambda: {name: found for name, found in closure().items() if name in {"maxbrod", "pyyaml"}}
    )


def test_the_launcher_runs_the_machines_python_with_the_packages_wherever_it_is_unpacked(
    few: None, tmp_path: Path
) -> None:
    made = pack(tmp_path / "e.tar.gz")
    with tarfile.open(made.path) as archive:
        archive.extractall(tmp_path / "another place", filter="data")
    program = (
        "import json, sys, maxbrod, yaml; print(json.dumps([maxbrod.__file__, yaml.__file__, sys.version_info[:2]]))"
    )
    ran = subprocess.run(
        [tmp_path / "another place/bin/python", "-c", program],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": "/of/spark"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    *files, version = json.loads(ran.stdout)
    packages = str(tmp_path / "another place/packages")
    assert all(file.startswith(packages) for file in files)
    assert tuple(version) == sys.version_info[:2]


def test_a_machine_without_the_drivers_python_is_named(
    few: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "_base_executable", "/nonexistent/python")
    made = pack(tmp_path / "e.tar.gz")
    with tarfile.open(made.path) as archive:
        archive.extractall(tmp_path, filter="data")
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("dirname", "hostname"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    ran = subprocess.run(
        [tmp_path / "bin/python", "-V"], env={"PATH": str(tools)}, capture_output=True, text=True, check=False
    )
    if Path("/usr/local/bin/python{}.{}".format(*sys.version_info[:2])).exists():
        pytest.skip("this machine has that Python where the launcher looks last")
    assert ran.returncode == 127
    assert "there is no Python {}.{} on ".format(*sys.version_info[:2]) in ran.stderr


def test_spark_tests_and_scripts_of_this_environment_are_left_out(few: None, tmp_path: Path) -> None:
    made = pack(tmp_path / "e.tar.gz")
    with tarfile.open(made.path) as archive:
        names = archive.getnames()
        assert {(each.uid, each.mtime) for each in archive.getmembers()} == {(0, 0)}
    assert "packages/maxbrod/work/preflight.py" in names
    assert "packages/pyspark_maxbrod/__init__.py" in names
    assert any(name.startswith("packages/maxbrod-") and name.endswith("METADATA") for name in names)
    assert not [name for name in names if "__pycache__" in name or ".." in name or "/tests/" in name]
    assert not [name for name in names if name.endswith(".pth")]


def test_what_tasks_require_is_packed_and_what_spark_brings_is_not() -> None:
    found = packing._closure()
    assert {"maxbrod", "pyarrow", "numba", "llvmlite", "obstore", "kafka-python"} <= set(found)
    assert not {"pyspark", "py4j", "pytest"} & set(found)


def test_the_same_packages_make_the_same_archive(few: None, tmp_path: Path) -> None:
    assert pack(tmp_path / "a.tgz").path.read_bytes() == pack(tmp_path / "b.tgz").path.read_bytes()


def test_a_folder_that_does_not_exist_is_named(few: None, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        pack(tmp_path / "missing" / "e.tar.gz")


def test_the_command_prints_the_settings(few: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", "pack", str(tmp_path / "e.tar.gz"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["settings"] == {
        "spark.archives": f"{tmp_path}/e.tar.gz#environment",
        "spark.pyspark.python": "./environment/bin/python",
    }


def test_the_printed_settings_are_a_configuration_file(
    few: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my: 'pack'.tar.gz"
    assert run(["cluster", "pack", str(path)]) == 0
    _, printed = capsys.readouterr().out.split("For the configuration file:\n")
    file = tmp_path / "maxbrod.yaml"
    file.write_text(f"archive: {tmp_path}\n{printed}")
    assert load_config(file).spark.conf == {
        "spark.archives": f"{path}#environment",
        "spark.pyspark.python": "./environment/bin/python",
    }


@pytest.mark.parametrize("name", ["e", "e.zip", "e.tar", "e.tar.bz2", "a,b.tar.gz", "a#b.tgz", "a%20b.tgz"])
def test_a_name_that_spark_cannot_unpack_is_refused_before_anything_is_written(
    few: None, tmp_path: Path, name: str
) -> None:
    with pytest.raises(UsageError, match="Spark would"):
        pack(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_packing_tells_how_far_it_is(few: None, tmp_path: Path) -> None:
    steps: list[Progress] = []
    pack(tmp_path / "e.tar.gz", on_progress=steps.append)
    done = [each.bytes_done for each in steps]
    assert done == sorted(done)
    assert (done[0], len(set(done)) > 10) == (0, True)
    assert {each.bytes_total for each in steps} == {done[-1]}
