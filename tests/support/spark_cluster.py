"""A standalone Spark cluster on loopback: a master and workers, each with an address of its own."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from maxbrod.java import find_java
from maxbrod.sandbox.process import wait_for
from maxbrod.work.gateway import FOREIGN_VARIABLES, spark_home

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass
class SparkCluster:
    url: str
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def kill_worker(self, number: int) -> None:
        """As a machine that loses its power: the worker and its executor are gone at once."""
        import psutil  # noqa: PLC0415

        worker = psutil.Process(self.workers[number].pid)
        for process in (*worker.children(recursive=True), worker):
            process.kill()
        self.workers[number].wait()


@contextmanager
def spark_cluster(folder: Path, *, workers: int = 2, env: Mapping[str, str]) -> Iterator[SparkCluster]:
    """`env` is the environment of the workers. It replaces the tests' own, as that of another machine would."""
    with ExitStack() as undo:
        log = folder / "master.log"
        _start(undo, log, env, "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        url = wait_for("the master", lambda: _found(log, r"Starting Spark master at (spark://\S+)"), timeout_s=120)
        cluster = SparkCluster(url)
        for number in range(workers):
            address, log = f"127.0.0.{number + 2}", folder / f"worker{number}.log"
            where = ("--host", address, "--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work{number}"))
            own = {**env, "SPARK_LOCAL_IP": address}
            cluster.workers.append(
                _start(undo, log, own, "worker.Worker", *where, "--port", "0", "--webui-port", "0", url)
            )
        for number in range(workers):
            log = folder / f"worker{number}.log"
            wait_for("a worker", lambda log=log: _found(log, "(Successfully) registered"), timeout_s=120)  # type: ignore[misc]
        yield cluster


def _start(undo: ExitStack, log: Path, env: Mapping[str, str], name: str, *arguments: str) -> subprocess.Popen[bytes]:
    java = find_java()
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "TMPDIR") if key in os.environ}
    command = [str(java.executable), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", str(spark_home() / "jars" / "*")]
    process = subprocess.Popen(
        [*command, f"org.apache.spark.deploy.{name}", *arguments],
        env={
            **kept,
            "JAVA_HOME": str(java.home),
            "SPARK_HOME": str(spark_home()),
            "SPARK_SCALA_VERSION": "2.13",
            **env,
        },
        stdin=subprocess.DEVNULL,
        stdout=undo.enter_context(log.open("wb")),
        stderr=subprocess.STDOUT,
    )
    undo.callback(process.wait)
    undo.callback(process.kill)
    assert not set(FOREIGN_VARIABLES) & set(env) - {"SPARK_HOME"}
    return process


def _found(log: Path, pattern: str) -> str | None:
    found = re.search(pattern, log.read_text(errors="replace"))
    return found and found[1]
