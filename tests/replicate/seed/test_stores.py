"""Checkpoints and segment events: durable before they are known, the highest and the newest one counts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from maxbrod.config import KafkaConfig
from maxbrod.errors import UnavailableError
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.layouts.parquet.events import Checkpoint, EventSegment, EventType, SegmentEvent
from maxbrod.replicate.seed.control_topics import (
    Checkpoints,
    ControlTopic,
    EventPublisher,
    KeyValue,
    SegmentEvents,
    TreeSource,
    checkpoint_partition,
)
from maxbrod.sandbox.topics import create_topic
from support.samples import samples_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.sandbox.cluster import Cluster

HOUR_NS = 3600 * 10**9


class FakeTopic:
    """Records that arrive, in memory."""

    name = "fake"

    def __init__(self) -> None:
        self.records: list[KeyValue] = []

    def new_records(self, *, settled: bool = False) -> list[KeyValue]:  # noqa: ARG002 - as the real one
        found, self.records = self.records, []
        return found


class FailingPublisher:
    def __init__(self, topic: FakeTopic, failures: int) -> None:
        self.topic, self.failures = topic, failures
        self.published: list[SegmentEvent] = []

    def publish(self, events: Sequence[SegmentEvent]) -> None:
        if self.failures:
            self.failures -= 1
            raise UnavailableError("the topic has no leader")
        self.published += events


def checkpoint(offset: int, partition: int = 0) -> Checkpoint:
    return Checkpoint(region="r", topic="t", partition=partition, offset=offset, time_ns=1)


def event(start: int = 0, *, time_ns: int = 1, kind: EventType = EventType.CREATED) -> SegmentEvent:
    segment = EventSegment(region="r", topic="t", partition=0, level=0, start=start, end=start + 9)
    return SegmentEvent(type=kind, time_ns=time_ns, segment=segment, size=5)


def checkpoints_of(topic: FakeTopic) -> Checkpoints:
    return Checkpoints(cast("ControlTopic", topic))


def events_of(topic: FakeTopic, failures: int = 0) -> tuple[SegmentEvents, FailingPublisher]:
    publisher = FailingPublisher(topic, failures)
    known = SegmentEvents(cast("ControlTopic", topic), cast("EventPublisher", publisher), retention_ns=HOUR_NS)
    return known, publisher


# Checkpoints


def test_the_highest_checkpoint_counts_in_whatever_order() -> None:
    topic = FakeTopic()
    found = checkpoints_of(topic)
    topic.records = [KeyValue(checkpoint(o).key, checkpoint(o).encode()) for o in (5, 9, 7)]
    found.refresh()
    assert found.offset(TreeSource("r", "t", 0)) == 9
    assert found.offset(TreeSource("r", "t", 1)) is None


def test_tombstones_and_foreign_records_take_no_checkpoint_back() -> None:
    topic = FakeTopic()
    found = checkpoints_of(topic)
    key = checkpoint(5).key
    topic.records = [
        KeyValue(key, checkpoint(5).encode()),
        KeyValue(key, None),
        KeyValue(key, b""),
        KeyValue(None, b"\xff"),
    ]
    found.refresh()
    assert found.offset(TreeSource("r", "t", 0)) == 5


def test_checkpoints_go_to_the_partition_of_librdkafka() -> None:
    """CRC-32 of the key: computed by hand with another program."""
    assert checkpoint_partition(b"123456789", 1 << 32) == 0xCBF43926


# Segment events


def test_an_event_that_could_not_be_published_is_new_when_it_comes_again() -> None:
    """The original knows it before it is published: the second delivery is then a duplicate, and lost."""
    known, publisher = events_of(FakeTopic(), failures=1)
    with pytest.raises(UnavailableError):
        known.keep([event()])
    assert known.poll(now_ns=2) == []
    known.keep([event()])
    assert publisher.published == [event()]
    assert known.poll(now_ns=2) == [event()]


def test_an_event_is_heard_once_however_often_it_comes() -> None:
    topic = FakeTopic()
    known, publisher = events_of(topic)
    known.keep([event()])
    known.keep([event(), event()])
    topic.records = [KeyValue(None, event().encode())]  # our own record
    assert known.poll(now_ns=2) == [event()]
    assert known.poll(now_ns=3) == []
    assert publisher.published == [event()]


def test_the_newest_event_about_a_segment_counts() -> None:
    topic = FakeTopic()
    known, publisher = events_of(topic)
    removed = event(time_ns=5, kind=EventType.REMOVED)
    topic.records = [KeyValue(None, removed.encode())]
    assert known.poll(now_ns=6) == [removed]
    known.keep([event(time_ns=4)])
    assert publisher.published == []
    known.keep([event(time_ns=6)])
    assert known.poll(now_ns=6) == [event(time_ns=6)]


def test_events_older_than_the_retention_are_heard_all_the_same() -> None:
    """The original acknowledges them unseen: after a long outage only listings find the segments."""
    known, publisher = events_of(FakeTopic())
    old = event(time_ns=0)
    known.keep([old])
    assert publisher.published == [old]
    assert known.poll(now_ns=100 * HOUR_NS) == [old]


def test_memory_of_events_ends_with_the_retention() -> None:
    known, _ = events_of(FakeTopic())
    known.keep([event(start, time_ns=start) for start in range(0, 100, 10)])
    known.poll(now_ns=2 * HOUR_NS)
    assert known._known == {}


def test_a_record_that_is_no_event_is_skipped() -> None:
    topic = FakeTopic()
    known, _ = events_of(topic)
    topic.records = [KeyValue(None, b"\xff"), KeyValue(None, event().encode())]
    assert known.poll(now_ns=2) == [event()]


# On real topics


def test_events_reach_other_instances_through_the_topic(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic, partitions=3)
    kafka = KafkaConfig(bootstrap=cluster.bootstrap)
    with KafkaClient(kafka) as one, KafkaClient(kafka) as two, KafkaClient(kafka) as three:

        def store(client: KafkaClient, writer: KafkaClient) -> SegmentEvents:
            publisher = EventPublisher(writer, topic, patience_s=60)
            return SegmentEvents(ControlTopic(client, topic), publisher, retention_ns=HOUR_NS)

        mine, others = store(one, two), store(three, two)
        sent = [event(start, time_ns=10 * HOUR_NS + start) for start in range(0, 50, 10)]
        mine.keep(sent[:3])
        mine.keep(sent)
        assert mine.poll(now_ns=10 * HOUR_NS) == sent
        assert others.poll(now_ns=10 * HOUR_NS) == sent
        assert others.poll(now_ns=10 * HOUR_NS) == []
        records = ControlTopic(one, topic).new_records()
        assert records == [KeyValue(None, each.encode()) for each in sent]


def test_records_of_the_original_tool_are_understood_from_topics() -> None:
    manifest: dict[str, Any] = json.loads((samples_of("crowdstrike") / "manifest.json").read_text())
    topic = FakeTopic()
    for each in manifest["protobuf"]:
        if each["kind"] == "Checkpoint":
            topic.records.append(KeyValue(each["kafka_key"].encode(), bytes.fromhex(each["kafka_value_hex"])))
    found = checkpoints_of(topic)
    found.refresh()
    assert found.offset(TreeSource("us-east-1", "sensor.events", 107)) == 99
    assert found.offset(TreeSource("us-east-1", "t", 0)) == 0
