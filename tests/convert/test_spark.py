"""Backups in other layouts, conversions and deep checks as jobs of a real Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.archive.archive import open_archive
from maxbrod.archive.surveyed import topic_id_for
from maxbrod.backup.follow import open_backup
from maxbrod.check.foreign import check_foreign
from maxbrod.config import Config, SparkConfig
from maxbrod.convert.options import ConvertOptions
from maxbrod.convert.verb import Conversion
from maxbrod.errors import EXIT_CORRUPT
from maxbrod.sandbox.topics import create_topic
from maxbrod.work.work import Work
from support.archive_oracle import read_archive
from support.backups import back_up, config_of
from support.ledger import Ledger
from support.topics import KEEP

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from maxbrod.sandbox.cluster import Cluster

MASTER = SparkConfig(master="local[2]")


def test_a_conversion_runs_on_spark_and_proves_itself_there(
    cluster: Cluster, topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    create_topic(cluster, topic, partitions=3, config=KEEP)
    ledger = Ledger()
    for partition in range(3):
        ledger.write(cluster, topic, 40, partition=partition)
    back_up(config_of(cluster, tmp_path / "archive", topic))
    places = ((tmp_path / "archive", tmp_path / "kbak", "kbak"), (tmp_path / "kbak", tmp_path / "back", "kafka"))
    for source, target, to in places:
        options = ConvertOptions(source=str(source), target=str(target), to=to)
        with Work(Config(spark=MASTER), session=spark) as work:
            report = Conversion(work, options).run()
        assert (report.exit_code, report.topics[0].equal, report.topics[0].target_records) == (0, True, 120)
    held = read_archive(str(tmp_path / "back"))
    for partition in range(3):
        assert held.records[topic_id_for(topic), partition] == ledger.of(cluster, topic, partition)


def test_a_backup_in_another_layout_runs_on_spark_and_is_checked_there(
    cluster: Cluster, topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    create_topic(cluster, topic, partitions=2, config=KEEP)
    ledger = Ledger()
    for partition in range(2):
        ledger.write(cluster, topic, 50, partition=partition)
    config = config_of(cluster, tmp_path / "tree", topic).model_copy(update={"layout": "kbs", "spark": MASTER})
    with open_backup(config, session=spark) as work:
        assert work.run().records == 100
    archive = open_archive(str(tmp_path / "tree"))
    report = check_foreign(archive, Work(Config(spark=MASTER), session=spark))
    assert (report.exit_code, report.records, report.deep) == (0, 100, True)

    assert archive.survey is not None
    victim = tmp_path / "tree" / archive.survey.segments[0].path
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    broken = check_foreign(open_archive(str(tmp_path / "tree")), Work(Config(spark=MASTER), session=spark))
    assert broken.exit_code == EXIT_CORRUPT
    assert victim.name in broken.faults[0].path
