"""Faults on the wire between us and a broker: the bytes that arrive are those of the log, each batch once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.config import KafkaConfig
from maxbrod.errors import CorruptDataError, UnavailableError
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.sandbox.proxy.faults import (
    CutAnswer,
    CutRequest,
    FlipAnswerBit,
    KafkaMatch,
    Latency,
    LoseAnswer,
    Stall,
    Throttle,
    TruncateAnswer,
)
from maxbrod.sandbox.topics import create_topic
from support.clusters import proxied_broker
from support.kafka_reads import bounds, fill, joined, log_bytes, partition_of, read_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.sandbox.proxy.faults import ProxyFault
    from maxbrod.sandbox.proxy.server import FaultProxy

pytestmark = pytest.mark.full

TOPIC = "proxied"
SMALL = 400_000
FETCH = KafkaMatch("Fetch")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, FaultProxy]]:
    """A broker that sends its clients to the proxy, with a topic of a few megabytes."""
    with proxied_broker(tmp_path_factory.mktemp("proxied")) as (cluster, proxy):
        create_topic(cluster, TOPIC, config={"retention.ms": "-1"})
        fill(cluster, TOPIC, 10_000)
        yield cluster, proxy


@pytest.fixture
def proxy(broker: tuple[Cluster, FaultProxy]) -> Iterator[FaultProxy]:
    yield broker[1]
    broker[1].clear()


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[KafkaClient]:
    with KafkaClient(KafkaConfig(bootstrap=proxy.bootstrap), request_timeout_s=3) as opened:
        yield opened


@pytest.mark.parametrize(
    "fault",
    [
        CutRequest(on=FETCH, after=2, times=2),
        CutRequest(on=FETCH, after=1, times=1, after_bytes=20, reset=True),
        CutAnswer(on=FETCH, after=1, times=2),
        CutAnswer(on=FETCH, after=1, times=2, after_bytes=2),
        CutAnswer(on=FETCH, after=2, times=3, after_bytes=100_000, reset=True),
        LoseAnswer(on=FETCH, after=1, times=2),
        LoseAnswer(on=KafkaMatch("Metadata"), times=1),
        LoseAnswer(on=KafkaMatch("ListOffsets"), times=1),
        LoseAnswer(on=KafkaMatch("ApiVersions"), times=1),
        CutAnswer(on=KafkaMatch("Metadata"), times=1, after_bytes=10),
        TruncateAnswer(on=FETCH, after=1, times=1, keep_bytes=150_000),
        TruncateAnswer(on=FETCH, after=1, times=1, keep_bytes=150_000, consistent=True),
        Latency(on=FETCH, request_s=0.05, answer_s=0.05),
        Stall(on=FETCH, after=1, times=1, carried_out=True),
        Throttle(answer_bytes_per_second=2_000_000),
        FlipAnswerBit(on=FETCH, after=1, times=1, at=-100_000, bit=3),
        FlipAnswerBit(on=FETCH, times=1, at=0),  # the correlation id
        FlipAnswerBit(on=FETCH, times=1, at=4),  # the tags of the header
        FlipAnswerBit(on=FETCH, times=1, at=15),  # the count of topics
    ],
    ids=lambda fault: f"{type(fault).__name__}-{fault.on.api if fault.on else 'all'}",
)
def test_a_fault_on_the_wire_changes_nothing_that_arrives(
    broker: tuple[Cluster, FaultProxy], proxy: FaultProxy, client: KafkaClient, fault: ProxyFault
) -> None:
    number = proxy.add(fault)
    assert read_all(client, partition_of(TOPIC), fetch_bytes=SMALL) == log_bytes(broker[0], TOPIC)
    assert proxy.fired[number] >= 1


def test_damage_in_every_answer_is_named_with_topic_partition_and_offset(
    proxy: FaultProxy, client: KafkaClient
) -> None:
    where = partition_of(TOPIC)
    start, end = bounds(client, where)
    proxy.add(FlipAnswerBit(on=FETCH, at=5000))
    with pytest.raises(CorruptDataError, match="checksum") as caught:
        list(read_range(client, where, start, end, fetch_bytes=SMALL))
    assert (caught.value.object_name, caught.value.offset) == (f"{TOPIC}-0", 0)


def test_answers_that_never_come_end_in_an_error_that_names_the_partition(
    proxy: FaultProxy, client: KafkaClient
) -> None:
    where = partition_of(TOPIC)
    start, end = bounds(client, where)
    proxy.add(Stall(on=FETCH))
    with pytest.raises(UnavailableError, match=rf"waited \d+ s for the leader of {TOPIC}-0") as caught:
        list(read_range(client, where, start, end, patience_s=4))
    assert caught.value.offset == start


def test_a_reader_that_stops_early_leaves_the_client_usable(
    broker: tuple[Cluster, FaultProxy], client: KafkaClient
) -> None:
    where = partition_of(TOPIC)
    chunks = read_range(client, where, *bounds(client, where), fetch_bytes=SMALL)
    first = next(chunks)
    chunks.close()  # type: ignore[attr-defined] # a generator
    whole = read_all(client, where)
    assert whole == log_bytes(broker[0], TOPIC)
    assert whole.startswith(joined([first]))
