"""Many small ranges come with few requests, each whole or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest

from maxbrod.kafka.fetch import ranges as small_ranges
from maxbrod.kafka.fetch import request as fetch
from maxbrod.kafka.fetch.ranges import SmallRange, read_small_ranges
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.kafka_reads import bounds, client_of, joined, log_bytes, partition_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.kafka.wire.client import KafkaClient, Leader
    from maxbrod.kafka.wire.deadline import Deadline
    from maxbrod.model import TopicPartition
    from maxbrod.sandbox.cluster import Cluster

PARTITIONS = 30


@pytest.fixture
def client(cluster: Cluster) -> Iterator[KafkaClient]:
    with client_of(cluster) as opened:
        yield opened


@pytest.fixture
def filled(cluster: Cluster, topic: str) -> UUID:
    topic_id = create_topic(cluster, topic, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        produce(cluster, topic, numbered(3), partition=partition)
    return topic_id


def ranges_of(client: KafkaClient, topic: str, topic_id: UUID) -> list[SmallRange]:
    ranges = []
    for partition in range(PARTITIONS):
        where = partition_of(topic, partition)
        start, end = bounds(client, where)
        ranges.append(SmallRange(where=where, topic_id=topic_id, start=start, end=end, bytes_estimate=200))
    return ranges


def requests_sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sent: list[int] = []
    build = fetch.fetch_request

    def counted(requests: list[object], **options: object) -> object:
        sent.append(len(requests))
        return build(requests, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(small_ranges, "fetch_request", counted)
    return sent


def test_all_of_them_come_with_one_request_as_they_are_in_the_log(
    cluster: Cluster, client: KafkaClient, topic: str, filled: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ranges_of(client, topic, filled)
    sent = requests_sent(monkeypatch)
    came = dict(read_small_ranges(client, wanted))
    assert sent == [PARTITIONS]
    assert set(came) == set(wanted)
    for each, chunk in came.items():
        assert (chunk.start, chunk.end) == (each.start, each.end)
        assert joined([chunk]) == log_bytes(cluster, topic, partition=each.where.partition)


def test_what_one_answer_has_no_room_for_is_asked_for_again(
    client: KafkaClient, topic: str, filled: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ranges_of(client, topic, filled)
    sent = requests_sent(monkeypatch)
    monkeypatch.setattr(small_ranges, "ANSWER_BYTES", 1000)
    came = dict(read_small_ranges(client, wanted))
    # Whoever stands where an answer is cut is left to `ranges`; whoever got nothing is asked for once more.
    assert len(sent) > 1
    assert len(wanted) - len(sent) <= len(came) <= len(wanted)


def test_a_range_that_ends_before_its_partition_has_only_its_own_batches(
    cluster: Cluster, client: KafkaClient, topic: str
) -> None:
    topic_id = create_topic(cluster, topic)
    for _ in range(3):
        produce(cluster, topic, numbered(2))
    wanted = SmallRange(where=partition_of(topic), topic_id=topic_id, start=2, end=4, bytes_estimate=1)
    [(_, chunk)] = read_small_ranges(client, [wanted])
    # How a producer cuts its records into batches is its own business.
    assert chunk.headers["base_offset"].min() == 2
    assert chunk.headers.last_offset.max() == 3
    assert (chunk.start, chunk.end) == (2, 4)


def test_ranges_that_do_not_come_whole_are_left_to_those_who_can_wait(
    cluster: Cluster, client: KafkaClient, topic: str, filled: UUID
) -> None:
    first, *others = ranges_of(client, topic, filled)
    beyond = SmallRange(where=first.where, topic_id=filled, start=first.start, end=first.end + 5, bytes_estimate=1)
    another = SmallRange(where=first.where, topic_id=uuid4(), start=0, end=1, bytes_estimate=1)
    nowhere = SmallRange(where=partition_of("no-such-topic"), topic_id=uuid4(), start=0, end=1, bytes_estimate=1)
    assert set(dict(read_small_ranges(client, [beyond, another, nowhere, *others]))) == set(others)


def test_a_damaged_range_is_left_out_and_the_others_come(
    cluster: Cluster, client: KafkaClient, topic: str, filled: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ranges_of(client, topic, filled)
    read = fetch.read_answer

    def damaged(frame: object, _names: object) -> object:
        answer = read(frame)  # type: ignore[arg-type]
        answer.partitions[filled, 7].records[-1] ^= 1
        return answer

    monkeypatch.setattr(small_ranges, "read_answer", damaged)
    came = dict(read_small_ranges(client, wanted))
    assert {each.where.partition for each in wanted} - {each.where.partition for each in came} == {7}


def test_two_ranges_of_one_partition_are_never_taken_for_each_other(
    cluster: Cluster, client: KafkaClient, topic: str
) -> None:
    topic_id = create_topic(cluster, topic)
    for _ in range(2):
        produce(cluster, topic, numbered(3))
    where = partition_of(topic, 0)
    wanted = [
        SmallRange(where=where, topic_id=topic_id, start=start, end=start + 3, bytes_estimate=200) for start in (0, 3)
    ]
    for order in (wanted, wanted[::-1]):
        came = list(read_small_ranges(client, order))
        assert came
        for each, chunk in came:
            assert (chunk.start, chunk.end) == (each.start, each.end)
            assert int(chunk.headers["base_offset"][0]) == each.start
            assert int(chunk.headers["count"].sum()) == 3


def test_a_leader_that_has_gone_leaves_its_ranges_to_those_who_can_wait(
    client: KafkaClient, topic: str, filled: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It led when it was asked for, and the metadata heard since does not have it any more."""
    wanted = ranges_of(client, topic, filled)
    leader = client.leader

    def gone(where: TopicPartition, *, deadline: Deadline) -> Leader:
        return replace(leader(where, deadline=deadline), node_id=99)

    monkeypatch.setattr(client, "leader", gone)
    assert list(read_small_ranges(client, wanted)) == []
