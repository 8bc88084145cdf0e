"""Spark itself reads the table: of a real backup, in every layout, with its own filters, types and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from pyspark.sql.types import StructType

import maxbrod
from maxbrod.layouts.kafka.format import SegmentLimits
from maxbrod.layouts.registry import FOREIGN
from maxbrod.sandbox.events import FIRST_TIMESTAMP_MS
from maxbrod.sandbox.topics import create_topic
from maxbrod.table import registration
from maxbrod_bench.stage import write_load
from support.archive_oracle import read_archive
from support.backups import back_up, config_of
from support.conversions import convert
from support.ledger import Ledger
from support.native_logs import data_batch
from support.table_archives import write
from support.table_queries import records
from support.topics import KEEP, key_of, transact

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

OF_KAFKA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)


@pytest.fixture
def table(spark: Any) -> Any:
    """Reads with the format's own name, registered once with the session."""
    maxbrod.register(spark)
    return spark.read.format("maxbrod")


def test_the_table_has_the_columns_of_sparks_own_kafka_source(table: Any, tmp_path: Path) -> None:
    write(tmp_path / "archive", [data_batch(0, 3)])
    frame = table.load(str(tmp_path / "archive"))
    assert frame.schema == StructType.fromDDL(OF_KAFKA)
    assert frame.count() == 3
    chosen = table.schema("offset bigint, value binary").load(str(tmp_path / "archive"))
    assert sorted(map(tuple, chosen.collect())) == [(offset, bytearray(b"value")) for offset in range(3)]


def test_the_table_of_a_real_backup_holds_what_was_acknowledged(
    table: Any, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster, topic, partitions=2, config=KEEP)
    ledger, aborted = Ledger(), Ledger()
    ledger.write(cluster, topic, 150)
    transact(aborted, cluster, topic, 20, commit=False)
    transact(ledger, cluster, topic, 20, commit=True)
    ledger.write(cluster, topic, 30, partition=1)
    archive = tmp_path / "archive"
    first = back_up(config_of(cluster, archive, topic))
    before = dict(ledger.of(cluster, topic, 1))
    ledger.write(cluster, topic, 40, partition=1)
    back_up(config_of(cluster, archive, topic))

    frame = table.load(str(archive))
    everything = table.option("isolationLevel", "read_uncommitted").load(str(archive))
    held = read_archive(str(archive)).records
    for partition in range(2):
        expected = dict(ledger.of(cluster, topic, partition))
        assert records(frame.where(f"topic = '{topic}' and partition = {partition}")) == expected
        assert records(everything.where(f"partition = {partition}")) == held[key_of(cluster, topic, partition)]
    assert len(everything.where("partition = 0").collect()) == 190
    then = table.option("isolationLevel", "read_committed").option("asOf", first.run_id).load(str(archive))
    assert records(then.where("partition = 1")) == before

    for layout in FOREIGN:
        convert(archive, tmp_path / layout, layout, accept_loss=True)
        other = maxbrod_table(table, tmp_path / layout)
        for partition in range(2):
            found = records(other.where(f"partition = {partition}"))
            assert found == dict(ledger.of(cluster, topic, partition)), (layout, partition)


def maxbrod_table(table: Any, url: Path) -> Any:
    """Without the options that an earlier read has set: a reader of Spark's keeps them."""
    return table._spark.read.format("maxbrod").load(str(url))


def test_a_millisecond_of_a_plain_backup_is_found_in_one_segment_of_many(
    table: Any, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """Batches of eight records in order of time, and more bytes than would be packed into one object."""
    write_load(cluster, topic, 9000, partitions=1, batch_bytes=9500, json=False)
    archive = tmp_path / "archive"
    back_up(config_of(cluster, archive, topic, segment_records=100))
    logs = sorted((archive / "segments").rglob("*.log"))
    at = FIRST_TIMESTAMP_MS + 4321
    sql = f"SELECT offset FROM records WHERE timestamp = timestamp_millis({at})"
    assert maxbrod.query(archive, sql, session=table._spark).column(0).to_pylist() == [4321]
    for log in logs:
        if not int(log.name[:20]) <= 4321 < int(log.name[:20]) + 200:
            log.unlink()
    kept = list((archive / "segments").rglob("*.log"))
    assert (len(logs) > 50, len(kept) < 3) == (True, True)
    assert maxbrod.query(archive, sql, session=table._spark).column(0).to_pylist() == [4321]
    bounded = table._spark.read.format("maxbrod").option("since", str(at)).option("until", str(at + 1))
    assert [row.offset for row in bounded.load(str(archive)).collect()] == [4321]


@pytest.mark.parametrize(
    ("condition", "expected", "needed"),
    [
        ("offset = 57", [57], [5]),
        ("41 >= offset and offset >= 38 and partition = 3", [38, 39, 40, 41], [3, 4]),
        ("timestamp >= timestamp_millis(1095)", [95, 96, 97, 98, 99], [9]),
        ("topic in ('orders', 'x') and offset in (12, 14) ", [12, 14], [1]),
        ("topic like 'ord%' and offset < 3", [0, 1, 2], [0]),
        ("offset = 12 or (offset = 57 and topic = 'orders')", [12, 57], [1, 5]),
        ("topic = 'x'", [], []),
    ],
)
def test_a_point_query_on_spark_needs_no_other_object(
    spark: Any, tmp_path: Path, condition: str, expected: list[int], needed: list[int]
) -> None:
    batches = [data_batch(base, 5) for base in range(0, 100, 5)]
    rows = write(tmp_path / "archive", batches, limits=SegmentLimits(records_max=10))
    for number, row in enumerate(rows):
        if number not in needed:
            (tmp_path / "archive" / row.path).unlink()
    found = maxbrod.query(tmp_path / "archive", f"SELECT offset FROM records WHERE {condition}", session=spark)
    assert sorted(found.column(0).to_pylist()) == expected


def test_importing_the_package_registers_the_format_with_the_active_session(spark: Any) -> None:
    with patch.object(registration, "register") as registered:
        registration.register_active()
    registered.assert_called_once()


def test_a_missing_object_fails_the_query_by_its_name(table: Any, tmp_path: Path) -> None:
    (row,) = write(tmp_path / "archive", [data_batch(0, 3)])
    (tmp_path / "archive" / row.path).unlink()
    with pytest.raises(Exception, match=row.path.rsplit("/", 1)[1]):
        maxbrod_table(table, tmp_path / "archive").collect()
