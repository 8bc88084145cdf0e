"""Programs that the tests of the session start as drivers of their own: `python sessions.py <name>`."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from maxbrod.config import SparkConfig
from maxbrod.work.session import open_configured, open_session
from maxbrod.work.shared_session import SharedSession, lending

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# Names and values of all kinds: what a word list misses, what Java's properties escape, and options of the JVM itself.
SECRETS = {
    "spark.maxbrod.password": "hunter2",
    "spark.hadoop.fs.azure.account.key.x.blob.core.windows.net": "hunter2 =#!:\\\\ä𝄞\n",
    "spark.driver.extraJavaOptions": "-Dmaxbrod.secret='hunter2 \"it''s\"'",
    "spark.driver.memory": "700m",
}


def describe() -> None:
    """Print, as one JSON document, what a session looks like from the inside and the outside."""
    with open_session(master="local[2]", conf=SECRETS) as session:
        rows = (
            session.range(0, 2, 1, 2)
            .mapInArrow(_worker, "python string, pyspark string, pandas boolean, folder string, path array<string>")
            .collect()
        )
        jvm = _jvm()
        facts = {
            "workers": [row.asDict() for row in rows],
            "master": session.sparkContext.master,
            "given": SECRETS,
            "settings": dict(session.sparkContext.getConf().getAll()),
            "listening": sorted({c.laddr.ip for c in jvm.net_connections() if c.status == psutil.CONN_LISTEN}),
            "commands": [process.cmdline() for process in (jvm, *jvm.children(recursive=True))],
            "shown": [str(row) for row in session.sql("SET -v").collect() + session.sql("SET").collect()],
            "java": session.sparkContext._jvm.System.getProperty("maxbrod.secret"),
            "ports": _ports(session),
            "sockets": _sockets(),
            "jvm": jvm.pid,
        }
    facts["environment"] = dict(os.environ)
    facts["jvm_gone"] = not psutil.pid_exists(jvm.pid)
    json.dump(facts, sys.stdout)


def share() -> None:
    """Print what becomes of a shared session that several threads use, whose JVM is killed, and that nobody uses."""
    now = [0.0]
    shared = SharedSession(idle_s=60, clock=lambda: now[0])
    config = SparkConfig(master="local[2]")
    facts: dict[str, Any] = {}

    def use() -> tuple[int, int]:
        with open_configured(config) as session:
            return _jvm().pid, session.range(10).count()

    with lending(shared):
        with ThreadPoolExecutor(4) as pool:
            facts["used"] = [future.result() for future in [pool.submit(use) for _ in range(4)]]
        facts["opened_first"] = shared.opened
        _jvm().kill()
        facts["after_kill"] = use()
        facts["closed_early"] = shared.close_if_idle()
        now[0] = 61.0
        with open_configured(config):
            facts["closed_in_use"] = shared.close_if_idle()
        now[0] = 121.0
        facts["closed_idle"] = shared.close_if_idle()
        facts["left"] = [child.name() for child in psutil.Process().children(recursive=True)]
    facts["opened"] = shared.opened
    facts["left_at_end"] = [child.name() for child in psutil.Process().children(recursive=True)]
    json.dump(facts, sys.stdout)


def _ports(session: Any) -> list[tuple[str, str]]:
    """Whatever a session listens on, and what each answers to a stranger who sends it a request of Spark's protocol."""
    gateway = session.sparkContext._gateway.gateway_parameters
    # Py4J hangs up on strangers, and with them on the driver: it is not asked.
    answers = [("gateway", "token" if gateway.auth_token else "open")]
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        ports = {c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        answers += [(process.name(), _stranger(port)) for port in sorted(ports - {gateway.port})]
    return answers


def _stranger(port: int) -> str:
    body = bytes(64)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(struct.pack(">QBQI", 21 + len(body), 3, 1, len(body)) + body)
        return connection.recv(1 << 16).decode(errors="replace")


def _sockets() -> list[tuple[str, int]]:
    """Sockets in the file system, and the mode of the folder of each."""
    processes = (psutil.Process(), *psutil.Process().children(recursive=True))
    named = {str(c.laddr) for process in processes for c in process.net_connections("unix")}
    found = {path for path in named if path.startswith("/")}
    return sorted((path, Path(path).parent.stat().st_mode & 0o777) for path in found)


def count() -> None:
    with open_session() as session:
        sys.stdout.write(str(session.range(0, 10, 1, 2).mapInArrow(_same, "id long").count()))


def hang() -> None:
    """Hold a worker in a task that does not end; the first line of output says that it runs."""
    with open_session(master="local[1]") as session:
        sys.stdout.write(f"{_jvm().pid}\n")
        sys.stdout.flush()
        session.range(1).mapInArrow(_sleep, "id long").collect()


def _jvm() -> psutil.Process:
    (jvm,) = (child for child in psutil.Process().children() if child.name() == "java")
    return jvm


def _worker(batches: Iterable[Any]) -> Iterator[Any]:
    import pyarrow as pa  # noqa: PLC0415
    import pyspark  # noqa: PLC0415

    for _ in batches:
        yield pa.RecordBatch.from_pylist(
            [
                {
                    "python": sys.executable,
                    "pyspark": pyspark.__file__,
                    "pandas": "pandas" in sys.modules,
                    "folder": str(Path.cwd()),
                    "path": sys.path,
                }
            ]
        )


def _same(batches: Iterable[Any]) -> Iterable[Any]:
    return batches


def _sleep(batches: Iterable[Any]) -> Iterator[Any]:
    time.sleep(600)
    yield from batches


if __name__ == "__main__":
    {"describe": describe, "count": count, "hang": hang, "share": share}[sys.argv[1]]()
