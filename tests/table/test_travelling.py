from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import py4j
import pyspark
from pyspark import cloudpickle

from maxbrod.table.read.options import parse_options
from maxbrod.table.source import ArchiveReader

LOAD = "import pickle, sys; pickle.load(sys.stdin.buffer)"


def reader() -> ArchiveReader:
    return ArchiveReader(parse_options({"path": "/backups", "topics": "orders"}), ["offset", "value"])


def test_a_reader_arrives_as_it_left() -> None:
    arrived = cloudpickle.loads(cloudpickle.dumps(reader()))
    assert type(arrived) is ArchiveReader
    assert vars(arrived) == vars(reader())


def test_a_worker_without_maxbrod_says_what_to_set(tmp_path: Path) -> None:
    for module in (pyspark, py4j):
        home = Path(str(module.__file__)).parent
        (tmp_path / home.name).symlink_to(home)
    ran = subprocess.run(
        [getattr(sys, "_base_executable", sys.executable), "-S", "-c", LOAD],
        input=cloudpickle.dumps(reader()),
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    last = ran.stderr.decode().strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: the Python of the Spark workers on ")
    assert "has no maxbrod: start the session with spark.archives and spark.pyspark.python" in last
