"""Verifying what a link has appended to a topic that others write to: nothing lost, doubled or changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.compare import plan as parts
from maxbrod.errors import UnavailableError
from maxbrod.kafka.admin import delete_records
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import TopicPartition
from maxbrod.replicate.link import Link
from maxbrod.replicate.verify import verify
from maxbrod.sandbox.surgery import compact
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import Message, numbered, produce, produce_transaction
from support.replications import SUFFIX, archive, carry, link_config, mark_of, take_in
from support.restore_oracle import log_of
from support.sparkless import without_spark

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.compare.report import PartitionComparison
    from maxbrod.config import Config
    from maxbrod.sandbox.cluster import Cluster


def _verified(config: Config, *ranges: str) -> tuple[PartitionComparison, list[Any]]:
    asked = config.model_copy(update={"replicate": replace(config.replicate, ranges=ranges)})
    with without_spark():
        report = verify(asked).report
    assert report is not None
    (found,) = report.partitions
    assert report.exit_code == (0 if found.equal else 3)
    return found, [(each.source_offset, each.field, each.target_offset is None) for each in report.differences]


def test_what_a_link_has_appended_is_compared_among_the_records_of_others(
    cluster: Cluster, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aborted records, records that came from there, times that the destination gives, and parts of few records."""
    monkeypatch.setattr(parts, "PART_OFFSETS", 7)
    create_topic(cluster, topic)
    create_topic(cluster, topic + SUFFIX, config={"message.timestamp.type": "LogAppendTime"})
    config = link_config(cluster, tmp_path / "archive", topic, offsets="append")
    back = link_config(
        cluster, tmp_path / "back", topic + SUFFIX, offsets="append", rename=(f"{topic}{SUFFIX}={topic}",)
    )
    special = Message(key=None, value=b"", headers=(("h", b"1"), ("h", b"2")), timestamp_ms=12345)
    produce(cluster, topic, [*numbered(9), special])
    produce(cluster, topic + SUFFIX, numbered(3, first=1000))
    carry(config)
    carry(back)
    produce_transaction(cluster, topic, numbered(5, first=100), transactional_id=topic, commit=False)
    produce(cluster, topic, numbered(5, first=20))
    carry(config)
    produce(cluster, topic + SUFFIX, numbered(3, first=2000))
    produce(cluster, topic, numbered(4, first=30))
    archive(config)
    found, differences = _verified(config)
    assert (found.equal, found.source_records, found.target_records, differences) == (True, 15, 15, [])
    found, _ = _verified(config, f"{topic}:0:3..9")
    assert (found.equal, found.source_records, found.match) == (True, 6, "brought")
    take_in(config)
    assert _verified(config)[0].source_records == 19
    with KafkaClient(config.kafka) as client:  # type: ignore[arg-type] # link_config has given it
        delete_records(client, {TopicPartition(topic=topic + SUFFIX, partition=0): 6})
    found, _ = _verified(config)
    assert (found.equal, found.source_records) == (True, 16)
    assert "the source's before 3 are not compared" in found.notes[0]


def test_what_others_have_replaced_in_a_compacted_topic_is_not_missing(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    create_topic(cluster, topic, config={"cleanup.policy": "compact"})
    config = link_config(cluster, tmp_path / "archive", topic, offsets="append")
    produce(cluster, topic, numbered(10, keys=3))
    carry(config)
    produce(cluster, topic + SUFFIX, numbered(2, first=9, keys=3))  # the last key of the link, and the first one
    compact(cluster, topic + SUFFIX)
    found, differences = _verified(config)
    assert (found.equal, found.target_records, found.target_removed, differences) == (True, 1, 9, [])
    produce(cluster, topic, numbered(1, first=20, keys=7))
    carry(config)
    mark_of(config, topic, replace(mark_of(config, topic), next_offset=12))
    produce(cluster, topic, numbered(2, first=30))
    archive(config)
    found, differences = _verified(config)
    assert (found.equal, differences) == (False, [(11, "record", True)]), "its key is nowhere else"


def test_a_record_that_is_lost_doubled_or_changed_is_found(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, offsets="append")
    produce(cluster, topic, numbered(10))
    carry(config)
    taken = log_of(cluster, topic + SUFFIX)[4]
    same = tuple((name.decode(), value or b"") for name, value in taken.headers)
    lost = [(name, value if name != "maxbrod.source.offset" else b"11") for name, value in same]
    produce(cluster, topic + SUFFIX, [taken_message(taken, same), taken_message(taken, tuple(lost))])
    mark = mark_of(config, topic)
    mark_of(config, topic, replace(mark, next_offset=12))
    produce(cluster, topic, numbered(10, first=10))
    carry(config)
    found, differences = _verified(config)
    assert (found.source_records, found.target_records) == (20, 20)
    assert {(4, "record", False), (10, "record", True), (11, "value", False)} <= {
        (each[0] if each[0] is not None else 4, each[1], each[2]) for each in differences
    }
    assert _verified(config, f"{topic}:0:12..20")[0].equal
    assert not _verified(config, f"{topic}:0:0..10")[0].equal


def taken_message(record: Any, headers: tuple[tuple[str, bytes], ...]) -> Message:
    return Message(key=record.key, value=record.value, headers=headers, timestamp_ms=record.timestamp_ms)


def test_nothing_is_called_equal_that_the_link_has_no_mark_of(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, offsets="append")
    produce(cluster, topic, numbered(10))
    carry(config)
    with cluster.admin() as admin:
        admin.delete_groups([Link(name=f"link-{topic}").group_id])
    with pytest.raises(UnavailableError, match="no mark"):
        verify(config)
