"""Appending and verifying on a real Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maxbrod.replicate.ingress.run import Ingress
from maxbrod.replicate.verify import verify
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce, produce_transaction
from support.replications import SUFFIX, archive, committed, link_config

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


def test_spark_appends_every_record_once_and_finds_both_sides_equal(
    spark: Any, cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    create_topic(cluster, topic, partitions=3)
    config = link_config(cluster, tmp_path / "archive", topic, offsets="append")
    with Ingress(config, session=spark) as ingress:
        for interval in range(2):
            for number in range(3):
                produce(cluster, topic, numbered(500, first=interval * 500), partition=number)
            produce_transaction(cluster, topic, numbered(5, first=9000), transactional_id=topic, commit=False)
            archive(config)
            report = ingress.run()
            assert (report.states, report.appended) == ({"in step": 3}, 1500)
    for number in range(3):
        assert committed(cluster, topic + SUFFIX, number) == list(range(1000))
    compared = verify(config, session=spark).report
    assert compared is not None
    assert [(each.equal, each.source_records) for each in compared.partitions] == [(True, 1000)] * 3
