"""Answers get lost, connections break, leaders die: each batch stands in the log once, in order, where it belongs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from maxbrod.config import KafkaConfig
from maxbrod.errors import CorruptDataError, UnavailableError
from maxbrod.kafka.fetch.offsets import log_end
from maxbrod.kafka.produce.appends import Append, Hole
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.producer_ids import new_producer_id
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.sandbox.events import orders
from maxbrod.sandbox.proxy.faults import (
    CutAnswer,
    CutRequest,
    FlipRequestBit,
    KafkaMatch,
    Latency,
    LoseAnswer,
    Stall,
    Throttle,
    TruncateAnswer,
)
from maxbrod.sandbox.topics import create_topic, wait_for_in_sync
from support.clusters import proxied_broker
from support.kafka_appends import assert_stored, batches_of, feed_of, produce_orders
from support.kafka_reads import client_of, partition_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.sandbox.proxy.faults import ProxyFault
    from maxbrod.sandbox.proxy.server import FaultProxy

pytestmark = pytest.mark.full

KEEP = {"retention.ms": "-1"}
PRODUCE = KafkaMatch("Produce")
MARKERS = KafkaMatch("WriteTxnMarkers")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, FaultProxy]]:
    """A broker that sends its clients to the proxy."""
    with proxied_broker(tmp_path_factory.mktemp("proxied")) as (cluster, proxy):
        yield cluster, proxy


@pytest.fixture
def proxy(broker: tuple[Cluster, FaultProxy]) -> Iterator[FaultProxy]:
    yield broker[1]
    broker[1].clear()


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[KafkaClient]:
    with KafkaClient(KafkaConfig(bootstrap=proxy.bootstrap), request_timeout_s=2) as opened:
        yield opened


@pytest.mark.parametrize(
    "fault",
    [
        CutRequest(on=PRODUCE, after=2, times=2),
        CutRequest(on=PRODUCE, after=3, times=1, after_bytes=5000, reset=True),
        CutAnswer(on=PRODUCE, after=1, times=3),
        CutAnswer(on=PRODUCE, after=4, times=2, after_bytes=10),
        LoseAnswer(on=PRODUCE, times=1),  # the first batch: the broker does not know the producer before it
        LoseAnswer(on=PRODUCE, after=1, times=5),
        LoseAnswer(on=PRODUCE, after=7, times=2, reset=True),
        LoseAnswer(on=KafkaMatch("Metadata"), times=1),
        LoseAnswer(on=KafkaMatch("InitProducerId"), times=2),
        TruncateAnswer(on=PRODUCE, after=2, times=1, keep_bytes=15, consistent=True),
        FlipRequestBit(on=PRODUCE, times=1, at=-500),  # the first, in a record
        FlipRequestBit(on=PRODUCE, after=3, times=1, at=-500),
        Stall(on=PRODUCE, after=2, times=1, carried_out=True),
        Stall(on=PRODUCE, after=2, times=1),
        Latency(on=PRODUCE, request_s=0.02, answer_s=0.02),
        Throttle(request_bytes_per_second=2_000_000),
    ],
    ids=lambda fault: f"{type(fault).__name__}-{fault.on.api if fault.on else 'all'}",
)
def test_a_fault_on_the_wire_neither_loses_nor_doubles_nor_reorders_a_batch(
    broker: tuple[Cluster, FaultProxy], proxy: FaultProxy, client: KafkaClient, topic: str, fault: ProxyFault
) -> None:
    create_topic(broker[0], topic, config=KEEP)
    number = proxy.add(fault)
    records = produce_orders(client, topic, new_producer_id(client), 2000)
    assert proxy.fired[number] >= 1
    assert_stored(broker[0], topic, records)


@pytest.mark.parametrize(
    "fault",
    [
        LoseAnswer(on=MARKERS, times=3),
        CutRequest(on=MARKERS, times=1),
        CutRequest(on=MARKERS, after=1, times=1, after_bytes=100),
        CutAnswer(on=MARKERS, after=1, times=2),
        Stall(on=MARKERS, after=1, times=1, carried_out=True),
        LoseAnswer(on=PRODUCE, after=1, times=2),
    ],
    ids=lambda fault: f"{type(fault).__name__}-{fault.on.api if fault.on else 'all'}",
)
def test_a_fault_on_the_wire_never_fills_a_hole_twice_or_in_part(
    broker: tuple[Cluster, FaultProxy], proxy: FaultProxy, client: KafkaClient, topic: str, fault: ProxyFault
) -> None:
    create_topic(broker[0], topic, config=KEEP)
    number = proxy.add(fault)
    batches = batches_of(orders(600), new_producer_id(client))
    appends: list[Append] = []
    for place, batch in enumerate(batches):
        appends += [batch, Hole(count=place + 1, source_offset=batch.source_offset + 100)]
    done = list(produce_all(client, [feed_of(client, topic, appends)], patience_s=30))
    assert proxy.fired[number] >= 1
    assert [each.base_offset for each in done][::2] == [0, 101, 203, 306, 410, 515]
    assert log_end(client, partition_of(topic)) == 621


def test_damage_in_every_request_is_named_with_the_archives_offset(
    broker: tuple[Cluster, FaultProxy], proxy: FaultProxy, client: KafkaClient, topic: str
) -> None:
    create_topic(broker[0], topic, config=KEEP)
    proxy.add(FlipRequestBit(on=PRODUCE, after=2, at=-500))
    with pytest.raises(CorruptDataError, match="damaged") as caught:
        produce_orders(client, topic, new_producer_id(client), 1000)
    assert (caught.value.object_name, caught.value.offset) == (f"{topic}-0", 200)
    assert log_end(client, partition_of(topic)) == 200


def test_answers_that_never_come_end_in_an_error_that_names_the_partition(
    broker: tuple[Cluster, FaultProxy], proxy: FaultProxy, client: KafkaClient, topic: str
) -> None:
    create_topic(broker[0], topic, config=KEEP)
    proxy.add(Stall(on=PRODUCE))
    with pytest.raises(UnavailableError, match=rf"waited \d+ s for the leader of {topic}-0") as caught:
        produce_orders(client, topic, new_producer_id(client), 200, patience_s=3)
    assert caught.value.offset == 0


def test_a_caller_that_stops_early_leaves_the_client_usable(
    broker: tuple[Cluster, FaultProxy], client: KafkaClient, topic: str
) -> None:
    create_topic(broker[0], topic, config=KEEP)
    records = orders(1000)
    batches = batches_of(records, new_producer_id(client))
    stream = produce_all(client, [feed_of(client, topic, batches)])
    next(stream)
    stream.close()  # type: ignore[attr-defined] # a generator
    # Nobody knows how many arrived; the same batches once more make it whole.
    list(produce_all(client, [feed_of(client, topic, batches)]))
    assert_stored(broker[0], topic, records)


@pytest.mark.parametrize("death", ["kill", "stop"])
def test_producing_goes_on_at_the_next_leader(cluster3: Cluster, topic: str, death: str) -> None:
    create_topic(cluster3, topic, assignments={0: [1, 2, 3], 1: [2, 3, 1]}, config=KEEP)
    records = {0: orders(4000, seed=4), 1: orders(4000, seed=5)}
    with client_of(cluster3, request_timeout_s=5) as client:
        identity = new_producer_id(client)

        def interrupted(partition: int) -> Iterator[Append]:
            for place, batch in enumerate(batches_of(records[partition], identity)):
                if (partition, place) == (0, 20):
                    getattr(cluster3, death)(1)
                yield batch

        feeds = [feed_of(client, topic, interrupted(partition), partition=partition) for partition in records]
        try:
            done = list(produce_all(client, feeds, patience_s=60))
        finally:
            cluster3.restart(1)
            cluster3.wait_until_settled()
            for partition in records:
                wait_for_in_sync(cluster3, topic, {1, 2, 3}, partition=partition)
    assert len(done) == 80
    for partition, each in records.items():
        for holder in (1, 2, 3):
            assert_stored(cluster3, topic, each, partition=partition, broker=holder)


def test_too_few_replicas_are_waited_for_and_named_if_they_do_not_come(cluster3: Cluster, topic: str) -> None:
    create_topic(cluster3, topic, assignments={0: [2, 3]}, config={**KEEP, "min.insync.replicas": "2"})
    records = orders(1000)
    # A leader that does not know yet that it has lost its replica waits for it, for a part of the request's timeout.
    with client_of(cluster3, request_timeout_s=4) as client:
        batches = batches_of(records, new_producer_id(client))
        list(produce_all(client, [feed_of(client, topic, batches[:2])]))
        cluster3.kill(3)
        restarting = threading.Timer(1, cluster3.restart, [3])
        try:
            wait_for_in_sync(cluster3, topic, {2})
            with pytest.raises(UnavailableError, match=r"waited \d+ s for the leader.*NOT_ENOUGH_REPLICAS"):
                list(produce_all(client, [feed_of(client, topic, batches[2:], first_offset=200)], patience_s=12))
            restarting.start()
            list(produce_all(client, [feed_of(client, topic, batches[2:], first_offset=200)], patience_s=240))
        finally:
            if not restarting.is_alive() and 3 not in cluster3.running:
                restarting.start()
            restarting.join()
            cluster3.wait_until_settled()
            wait_for_in_sync(cluster3, topic, {2, 3})
    assert_stored(cluster3, topic, records, broker=2)
