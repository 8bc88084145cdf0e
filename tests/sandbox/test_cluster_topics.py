"""What Kafka does to a partition in the wild, done on purpose: each effect seen on a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.errors import UsageError
from maxbrod.sandbox import surgery, topics, traffic
from maxbrod.sandbox.jars import CONSOLE_CONSUMER, DUMP_LOG_SEGMENTS, run_tool
from support.clusters import start_cluster
from support.java_oracle import JavaOracle, JavaRecord

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full


def values(records: list[JavaRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def test_records_come_out_as_they_went_in(java: JavaOracle, cluster: Cluster, topic: str) -> None:
    topics.create_topic(cluster, topic, partitions=2)
    messages = [
        traffic.Message(key=None, value=b"", headers=(("h", b"1"), ("h", b"")), timestamp_ms=1_700_000_000_001),
        traffic.Message(key=b"", value=None, timestamp_ms=0),
    ]
    assert traffic.produce(cluster, topic, messages, partition=1) == [0, 1]
    assert java.consume(cluster.bootstrap, topic, 1) == [
        JavaRecord(1_700_000_000_001, None, b"", (("h", b"1"), ("h", b"")), 0),
        JavaRecord(0, b"", None, (), 1),
    ]


def test_compaction_keeps_the_last_value_of_each_key(java: JavaOracle, cluster: Cluster, topic: str) -> None:
    topics.create_topic(cluster, topic)
    traffic.produce(cluster, topic, traffic.numbered(100, keys=10))
    roll = surgery.compact(cluster, topic)
    assert roll == 100
    # In the very files, at once: a consumer that starts slowly would not notice a compaction that is late.
    segments = sorted((cluster.log_dir(1) / f"{topic}-0").glob("*.log"))
    kept = [record.offset for segment in segments for record in java.parse(segment.read_bytes())]
    assert kept == [*range(90, 100), roll]
    assert kept == [record.offset for record in java.consume(cluster.bootstrap, topic, 0)]


def test_compaction_reaches_every_replica(java: JavaOracle, cluster3: Cluster, topic: str) -> None:
    topics.create_topic(cluster3, topic, replication_factor=3)
    traffic.produce(cluster3, topic, traffic.numbered(20, keys=2))
    surgery.compact(cluster3, topic)
    for broker in cluster3.broker_ids:
        segments = sorted((cluster3.log_dir(broker) / f"{topic}-0").glob("*.log"))
        kept = [record.offset for segment in segments for record in java.parse(segment.read_bytes())]
        assert kept == [18, 19, 20]


def test_retention_moves_the_log_start_to_the_end(java: JavaOracle, cluster: Cluster, topic: str) -> None:
    topics.create_topic(cluster, topic)
    traffic.produce(cluster, topic, traffic.numbered(20))
    assert surgery.expire(cluster, topic) == 20
    traffic.produce(cluster, topic, traffic.numbered(1, first=20))
    assert topics.offsets(cluster, topic) == (20, 21)
    assert values(java.consume(cluster.bootstrap, topic, 0, from_offset=20)) == [b"value-20"]


def test_deleting_records_moves_the_log_start_exactly(cluster: Cluster, topic: str) -> None:
    topics.create_topic(cluster, topic)
    traffic.produce(cluster, topic, traffic.numbered(20))
    surgery.delete_records(cluster, topic, before_offset=7)
    assert topics.offsets(cluster, topic) == (7, 20)


def test_a_deleted_topic_leaves_no_folder(cluster: Cluster, topic: str) -> None:
    topics.create_topic(cluster, topic, partitions=2)
    topics.delete_topic(cluster, topic)
    assert list(cluster.log_dir(1).glob(f"{topic}-*")) == []
    with pytest.raises(UsageError, match="no such topic"):
        topics.topic_id(cluster, topic)


def test_a_recreated_topic_has_another_id_and_no_records(cluster: Cluster, topic: str) -> None:
    first = topics.create_topic(cluster, topic)
    traffic.produce(cluster, topic, traffic.numbered(5))
    old, new = topics.recreate_topic(cluster, topic)
    assert old == first
    assert new != old
    assert topics.offsets(cluster, topic) == (0, 0)


def test_transactions_end_as_they_were_told(java: JavaOracle, cluster: Cluster, topic: str) -> None:
    topics.create_topic(cluster, topic)
    one, two, three = ([message] for message in traffic.numbered(3))
    traffic.produce_transaction(cluster, topic, one, transactional_id=topic)
    traffic.produce_transaction(cluster, topic, two, transactional_id=topic, commit=False)
    with traffic.open_transaction(cluster, topic, three, transactional_id=f"{topic}-open") as held:
        # Each transaction that ended left its marker, at 1 and 3.
        assert held == [4]
        assert values(java.consume(cluster.bootstrap, topic, 0)) == [b"value-0"]
        everything = java.consume(cluster.bootstrap, topic, 0, isolation_level="read_uncommitted")
        assert values(everything) == [b"value-0", b"value-1", b"value-2"]
    assert topics.offsets(cluster, topic) == (0, 6)


def test_kafkas_own_tools_see_the_records(cluster: Cluster, topic: str) -> None:
    topics.create_topic(cluster, topic)
    traffic.produce(cluster, topic, traffic.numbered(3))
    read = run_tool(
        CONSOLE_CONSUMER,
        *("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--from-beginning", "--max-messages", "3"),
    )
    assert read.splitlines() == ["value-0", "value-1", "value-2"]
    (segment,) = (cluster.log_dir(1) / f"{topic}-0").glob("*.log")
    dump = run_tool(DUMP_LOG_SEGMENTS, "--print-data-log", "--files", str(segment))
    assert "payload: value-2" in dump


def test_an_unclean_election_loses_acknowledged_records(java: JavaOracle, tmp_path: Path) -> None:
    with start_cluster(tmp_path / "c", brokers=2) as cluster:
        topics.create_topic(cluster, "t", assignments={0: [1, 2]})
        traffic.produce(cluster, "t", traffic.numbered(5))
        election = surgery.lose_by_unclean_election(cluster, "t", traffic.numbered(3, first=5))
        assert (election.old_leader, election.new_leader, election.lost_offsets) == (1, 2, (5, 6, 7))
        assert topics.offsets(cluster, "t") == (0, 5)

        traffic.produce(cluster, "t", traffic.numbered(1, first=100))
        cluster.restart(1)
        topics.wait_for_in_sync(cluster, "t", {1, 2})
        # The log of the old leader itself was cut, and the same offset now holds another record.
        (segment,) = (cluster.log_dir(1) / "t-0").glob("*.log")
        on_disk = java.parse(segment.read_bytes())
        assert values(on_disk) == [*(b"value-%d" % number for number in range(5)), b"value-100"]


def test_an_election_without_a_follower_is_refused(cluster: Cluster, topic: str) -> None:
    topics.create_topic(cluster, topic)
    with pytest.raises(UsageError, match="a leader and a follower"):
        surgery.lose_by_unclean_election(cluster, topic, traffic.numbered(1))
    assert cluster.alive(1)
