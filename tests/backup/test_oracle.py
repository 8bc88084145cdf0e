"""A backup holds what was acknowledged, record by record and byte by byte; and the oracle would notice if not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.sandbox.topics import create_topic
from support.archive_oracle import read_archive
from support.archives import damage
from support.backups import back_up, back_up_on, config_of, settles
from support.ledger import Ledger
from support.topics import log_on_disk

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


def filled(cluster: Cluster, topic: str, *, partitions: int = 2, count: int = 300) -> Ledger:
    create_topic(cluster, topic, partitions=partitions, config={"retention.ms": "-1"})
    ledger = Ledger()
    for partition in range(partitions):
        ledger.write(cluster, topic, count, partition=partition)
    return ledger


@pytest.mark.parametrize("compression", ["auto", "source", "zstd"])
def test_a_backup_holds_every_acknowledged_record(
    cluster: Cluster, topic: str, tmp_path: Path, compression: str
) -> None:
    ledger = filled(cluster, topic)
    report = back_up(config_of(cluster, tmp_path / "archive", topic, compression=compression))
    assert (report.exit_code, report.records) == (0, 600)
    held = read_archive(str(tmp_path / "archive"))
    held.assert_equals(ledger)
    if compression != "zstd":
        assert [held.logs[key] for key in sorted(held.logs)] == [log_on_disk(cluster, topic, each) for each in (0, 1)]


def test_a_backup_on_spark_holds_the_bytes_that_the_broker_has(
    cluster: Cluster, topic: str, tmp_path: Path, spark: Any
) -> None:
    ledger = filled(cluster, topic, partitions=3)
    report = back_up_on(spark, config_of(cluster, tmp_path / "archive", topic))
    assert (report.exit_code, report.records) == (0, 900)
    held = read_archive(str(tmp_path / "archive"))
    held.assert_equals(ledger)
    assert [held.logs[key] for key in sorted(held.logs)] == [log_on_disk(cluster, topic, each) for each in range(3)]


def test_a_second_run_without_news_changes_nothing(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    filled(cluster, topic)
    config = config_of(cluster, tmp_path / "archive", topic)
    back_up(config)
    assert settles(config)
    before = sorted(path for path in (tmp_path / "archive").rglob("*") if path.is_file())
    report = back_up(config)
    assert (report.exit_code, report.committed) == (0, False)
    assert sorted(path for path in (tmp_path / "archive").rglob("*") if path.is_file()) == before


def test_the_oracle_notices_a_lost_record_a_changed_byte_and_a_hole(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    ledger = filled(cluster, topic, partitions=1)
    archive = tmp_path / "archive"
    back_up(config_of(cluster, archive, topic))
    held = read_archive(str(archive))
    ((key, records),) = ledger.records.items()
    for broken in (
        {**records, 7: records[7]._replace(key=b"other")},
        {**records, 300: records[0]},
        {offset: each for offset, each in records.items() if offset != 299},
        {**records, 3: records[3]._replace(timestamp_ms=records[3].timestamp_ms + 1)},
    ):
        ledger.records[key] = broken
        with pytest.raises(AssertionError):
            held.assert_equals(ledger)
    (stored,) = (archive / "packs").iterdir()
    damage(stored)
    with pytest.raises(AssertionError):
        read_archive(str(archive))
    stored.unlink()
    with pytest.raises(Exception, match="no such object"):
        read_archive(str(archive))
