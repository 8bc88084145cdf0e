"""Spark itself follows archives: killed between any two steps, and beside backups of a real cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.layouts.kafka.format import SegmentLimits
from maxbrod.sandbox.topics import create_topic
from support.backups import back_up, config_of
from support.ledger import Ledger
from support.native_logs import data_batch
from support.processes import environment, program
from support.programs import tables as drivers
from support.table_archives import compact, write
from support.table_queries import records
from support.topics import KEEP

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full


def grow(archive: Path, first: int, end: int) -> None:
    batches = [data_batch(base, 5) for base in range(first, end, 5)]
    write(archive, batches, run_id=f"run-{first}", limits=SegmentLimits(records_max=10), written_at=end)


def follow_until_killed(archive: Path, scratch: Path, *where: str) -> None:
    command = program("tables", "be_killed", archive, scratch, *where)
    assert subprocess.run(command, env=environment(), check=False).returncode == -signal.SIGKILL


def attempts_at(scratch: Path) -> dict[int, list[list[int]]]:
    """The offsets that each attempt at a batch has written, by the batch's number."""
    found: dict[int, list[list[int]]] = {}
    for file in sorted(scratch.glob("attempt-*")):
        found.setdefault(int(file.name.split("-")[1]), []).append(json.loads(file.read_text()))
    return found


def test_every_record_is_in_one_batch_although_the_driver_is_killed_between_any_two_steps(
    spark: Any, tmp_path: Path
) -> None:
    archive, scratch = tmp_path / "archive", tmp_path / "scratch"
    grow(archive, 0, 50)
    follow_until_killed(archive, scratch, "1", "planned")
    grow(archive, 50, 60)
    compact(archive)
    follow_until_killed(archive, scratch, "1", "written")
    grow(archive, 60, 70)
    drivers.follow(spark, str(archive), str(scratch))
    attempts = attempts_at(scratch)
    assert [len(each) for _, each in sorted(attempts.items())] == [1, 2, 1, 1]
    assert attempts[1] == [[*range(20, 40)]] * 2
    assert sorted(offset for each in attempts.values() for offset in each[-1]) == [*range(70)]


def trigger(spark: Any, archive: Path, scratch: Path, **options: str) -> None:
    """Follow what is there now, with what the checkpoint knows."""
    stream = spark.readStream.format("maxbrod").options(**options).load(str(archive))
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(scratch / "out"))
    )
    query.awaitTermination()


def test_a_stream_has_what_was_acknowledged_while_backups_go_on(
    spark: Any, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster, topic, partitions=2, config=KEEP)
    ledger, archive, scratch = Ledger(), tmp_path / "archive", tmp_path / "scratch"
    for count in (70, 50, 30):
        for partition in range(2):
            ledger.write(cluster, topic, count, partition=partition)
        back_up(config_of(cluster, archive, topic))
        trigger(spark, archive, scratch, maxOffsetsPerTrigger="64")
        for partition in range(2):
            found = records(spark.read.parquet(str(scratch / "out")).where(f"partition = {partition}"))
            assert found == dict(ledger.of(cluster, topic, partition))


def test_a_running_stream_has_what_is_archived_meanwhile(spark: Any, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    grow(archive, 0, 10)
    stream = spark.readStream.format("maxbrod").option("startingRun", "latest").load(str(archive))
    query = (
        stream.select("offset")
        .writeStream.format("memory")
        .queryName("meanwhile")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        for end in (20, 30):
            grow(archive, end - 10, end)
            query.processAllAvailable()
            assert sorted(row.offset for row in spark.table("meanwhile").collect()) == [*range(10, end)]
        compact(archive)
        query.processAllAvailable()
        assert spark.table("meanwhile").count() == 20
    finally:
        query.stop()


def test_the_format_is_found_where_nothing_was_registered(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "archive", [data_batch(0, 3)])
    other = spark.newSession()
    frame = other.read.format("maxbrod").load(str(tmp_path / "archive"))
    assert [row.offset for row in frame.where("offset > 1").collect()] == [2]


@pytest.mark.parametrize("options", [{"asOf": "latest"}, {"startingRun": "run-7"}])
def test_a_stream_that_cannot_begin_says_why(spark: Any, tmp_path: Path, options: dict[str, str]) -> None:
    write(tmp_path / "archive", [data_batch(0, 3)])
    with pytest.raises(Exception, match=r"asOf|run-7"):
        trigger(spark, tmp_path / "archive", tmp_path / "scratch", **options)


def test_what_spark_imports_to_find_the_format_loads_nothing() -> None:
    program = "import sys, pyspark_maxbrod; print(sorted({'maxbrod', 'pyarrow', 'deltalake'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
