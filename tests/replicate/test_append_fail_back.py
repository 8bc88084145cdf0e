"""Failing back over links that append: what was written since the promotion comes back once, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.replicate.fail_back import fail_back
from maxbrod.replicate.ingress.run import Ingress
from maxbrod.replicate.link import State
from maxbrod.replicate.promote import promote
from maxbrod.replicate.verify import verify
from maxbrod.sandbox.topics import create_topic, recreate_topic
from maxbrod.sandbox.traffic import numbered, produce, produce_transaction
from support.replications import SUFFIX, archive, carry, committed, link_config, mark_of, take_in
from support.sparkless import without_spark

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.config import Config
    from maxbrod.sandbox.cluster import Cluster


def _way_back(cluster: Cluster, tmp_path: Path, topic: str) -> Config:
    there = topic + SUFFIX
    return link_config(
        cluster, tmp_path / "back", there, offsets="append", rename=(f"{there}={topic}",), link=f"back-{topic}"
    )


def test_what_was_written_since_the_promotion_comes_back_once_and_what_diverged_is_said(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    create_topic(cluster, topic, partitions=2)
    there, back = link_config(cluster, tmp_path / "there", topic, offsets="append"), _way_back(cluster, tmp_path, topic)
    produce(cluster, topic, numbered(10))
    carry(there)
    produce(cluster, topic + SUFFIX, numbered(3, first=1000))
    produce(cluster, topic, numbered(5, first=10))  # these never arrive
    produce_transaction(cluster, topic, numbered(5, first=20), transactional_id=topic, commit=False)
    promote(there)
    ended = mark_of(there, topic)
    produce(cluster, topic + SUFFIX, numbered(4, first=2000))
    produce(cluster, topic + SUFFIX, numbered(2, first=3000), partition=1)
    promote(there)
    assert mark_of(there, topic).append == ended.append, "it was promoted once"
    archive(back)
    for _ in range(2):
        report = fail_back(back)
        first, second = report.partitions
        assert (report.ready, report.equal, report.exit_code) == (True, None, 3)
        assert (first.promoted_at, first.diverged, first.diverged_records) == (10, (10, 15), 5)
        assert (second.promoted_at, second.diverged, second.begin, second.new) == (0, None, 0, 2)
        with Ingress(back) as ingress:
            assert set(ingress.run().states) == {State.IN_STEP}
    produce(cluster, topic + SUFFIX, numbered(1, first=2004))
    assert carry(back).appended == 1
    assert take_in(back).appended == 0
    assert committed(cluster, topic) == [*range(15), *range(2000, 2005)]
    assert committed(cluster, topic, 1) == [3000, 3001]
    with without_spark():
        compared = verify(back).report
    assert compared is not None
    assert [(each.equal, each.source_records) for each in compared.partitions] == [(True, 5), (True, 2)]


def test_without_a_promotion_of_this_very_topic_nothing_comes_back(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    create_topic(cluster, topic)
    there, back = link_config(cluster, tmp_path / "there", topic, offsets="append"), _way_back(cluster, tmp_path, topic)
    produce(cluster, topic, numbered(10))
    carry(there)
    produce(cluster, topic + SUFFIX, numbered(3, first=1000))
    archive(back)
    report = fail_back(back)
    assert (report.ready, report.exit_code) == (False, 5)
    assert "promoted" in (report.partitions[0].why or "")
    promote(there)
    archive(back)
    recreate_topic(cluster, topic)
    assert not fail_back(back).ready
