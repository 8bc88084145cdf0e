"""Programs that tests of the table start in processes of their own: `python -m support.programs.tables <name> …`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import maxbrod
from maxbrod.work.session import open_session

if TYPE_CHECKING:
    from collections.abc import Callable


def serve() -> None:
    """A server of Spark Connect on any port, which is the first line of output; until the input ends."""
    conf = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }
    with open_session(master="local[2]", conf=conf) as session:
        services = session._jvm.org.apache.spark.sql.connect.service
        service = getattr(getattr(services, "SparkConnectService$"), "MODULE$")
        sys.stdout.write(f"{service.localPort()}\n")
        sys.stdout.flush()
        sys.stdin.read()


def connect(port: str, whole: str, sparse: str, scratch: str) -> None:
    """Read and write over Spark Connect, and print what was found. `sparse` has only the segment with offset 57."""
    with open_session(master=f"sc://127.0.0.1:{port}") as session:
        found: dict[str, Any] = {
            "unregistered": session.read.format("maxbrod").load(whole).where("offset >= 90").count()
        }
        maxbrod.register(session)
        rows = session.read.format("maxbrod").options(startingOffset="57", endingOffset="58").load(sparse).collect()
        sql = "SELECT count(*) AS records, max(value) AS value, (SELECT sum(records) FROM segments) AS told FROM orders"
        found["asked"] = maxbrod.query(whole, sql, value="utf8", session=session).to_pylist()
        found["point"] = [row.offset for row in rows]
        found["twice"] = _twice(session, whole)
        maxbrod.write(session.read.format("maxbrod").load(whole), f"{scratch}/written")
        found["written"] = session.read.format("maxbrod").load(f"{scratch}/written").count()
        stream = session.readStream.format("maxbrod").option("maxOffsetsPerTrigger", "60").load(whole)
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", f"{scratch}/checkpoint")
            .trigger(availableNow=True)
            .start(f"{scratch}/out")
        )
        query.awaitTermination()
        found["stream"] = sorted(row.offset for row in session.read.parquet(f"{scratch}/out").collect())
        found["batches"] = len([*Path(scratch, "checkpoint/commits").glob("[0-9]*")])
    json.dump(found, sys.stdout)


def _twice(session: Any, whole: str) -> list[int]:
    """What scans of one table count that have filters of their own, or none; with pushdown on and off, and asked."""
    sql = """SELECT (SELECT count(*) FROM orders WHERE offset < 30) AS first, (SELECT count(*) FROM orders) AS whole,
        (SELECT count(*) FROM orders WHERE offset >= 90) AS last, (SELECT count(*) FROM orders a JOIN orders b
        ON a.offset = b.offset + 60 WHERE a.offset < 70 AND b.offset > 2) AS joined"""
    found = []
    for enabled in ("true", "false"):
        session.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
        session.read.format("maxbrod").load(whole).createOrReplaceTempView("orders")
        found += [*session.sql(sql).collect()[0]]
    return [*found, *maxbrod.query(whole, sql, session=session).to_pylist()[0].values()]


def be_killed(archive: str, scratch: str, batch: str, point: str) -> None:
    """Follow an archive, and be killed in one batch, before it is written or before it is committed."""
    with open_session(master="local[1]") as session:
        follow(session, archive, scratch, batch, point)


def follow(session: Any, archive: str, scratch: str, batch: str = "", point: str = "") -> None:
    """Follow an archive to its end, or until the kill."""

    def write(frame: Any, number: int) -> None:
        _kill_if(number, "planned")
        # Every attempt leaves its own trace.
        offsets = sorted(row.offset for row in frame.select("offset").collect())
        attempts = len([*Path(scratch).glob(f"attempt-{number}-*")])
        Path(scratch, f"attempt-{number}-{attempts}").write_text(json.dumps(offsets))
        _kill_if(number, "written")

    def _kill_if(number: int, here: str) -> None:
        if (str(number), here) == (batch, point):
            os.kill(os.getpid(), signal.SIGKILL)

    stream = session.readStream.format("maxbrod").option("maxOffsetsPerTrigger", "20").load(archive)
    query = (
        stream.writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{scratch}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {"serve": serve, "connect": connect, "be_killed": be_killed}
    programs[sys.argv[1]](*sys.argv[2:])
